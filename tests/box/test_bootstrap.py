"""Claim: `curl … | bash` makes a bare Debian the environment of the image, for whoever runs it and by whatever way."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import testinfra

from hermitcrab.build import bootstrap, bootstrap_send
from tests.box import bootstrapping, machine
from tests.box.bootstrapping import STAMP, TREE, WORDS, First, Ready, Served, changed, run, told
from tests.box.conftest import Start
from tests.box.debian import SUITES, Suite
from tests.box.machine import Box
from tests.image.boxes import answers_ssh, free_port, until

CASES: Final = Path(__file__).parents[1] / "cases"
QUICK_S: Final = 6.0  # of a second run, on a machine that does other things as well
SSHD: Final = (
    "mkdir -p /run/sshd; ssh-keygen -A >/dev/null; for home in /root /home/me /home/boss; do mkdir -p $home/.ssh;"
    " cp /key.pub $home/.ssh/authorized_keys; chown -R --reference=$home $home/.ssh; done;"
    " /usr/sbin/sshd -p {port} -o ListenAddress=127.0.0.1"
)
CONFIG: Final = (
    "Host box\n HostName 127.0.0.1\n Port {port}\n IdentityFile {key}\n IdentitiesOnly yes\n IdentityAgent none\n"
    " StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n"
)


class Far(NamedTuple):
    """A box at the other end of an SSH connection."""

    box: Box
    config: Path

    def host(self, user: str) -> Any:
        """The box as testinfra sees it in a user's session."""
        return testinfra.get_host(f"ssh://{user}@box?ssh_config={self.config}&controlpersist=0&timeout=30")

    def run(self, user: str, words: str, address: str) -> tuple[int, str]:
        """Paste the line into a user's session; its status, and all that was said."""
        settings = " ".join(f"{name}={value}" for name, value in bootstrapping.environment().items())
        line = f"({address} | bash -s -- {words}; exit ${{PIPESTATUS[1]}}) 2>&1"
        done = self.host(user).run(f"env {settings} bash -c %s", line)
        return int(done.rc), f"{done.stdout}{done.stderr}"


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: f"debian{suite.version}")
def test_a_bare_box_and_again(suite: Suite, first: Callable[[Suite], First], served: Served) -> None:
    """From nothing but curl to a stamp; a second run is quick and changes nothing; uninstall takes it out."""
    box, status, said = first(suite)
    assert status == 0, said
    assert (told(box)["result"], told(box)["python"]) == ("done", suite.python)
    assert box.shell("bash -lc 'command -v crab python tmux git rsync gcc'").splitlines()[:2] == [
        "/opt/venv/bin/crab",
        "/opt/venv/bin/python",
    ]
    before, begun = box.shell(TREE), time.monotonic()
    status, said = run(box, f"{served.curl()} | bash -s -- {WORDS}")
    assert (status, time.monotonic() - begun < QUICK_S) == (0, True), said
    assert "done before: nothing to change" in said
    assert changed(before, box.shell(TREE)) == []
    status, said = run(box, f"{served.curl()} | sh -s -- --uninstall")
    assert status == 0, said
    left = box.shell("ls -A /root /opt; ls -A /etc/hermitcrab 2>/dev/null || true").split()
    assert set(left) <= {"/root:", ".bashrc", ".profile", ".ssh", "/opt:"}  # Debian 13's SSH server makes .ssh


@pytest.fixture(scope="module", params=SUITES, ids=lambda suite: f"debian{suite.version}")
def far(
    request: pytest.FixtureRequest,
    start: Start,
    ready: Ready,
    keys: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Far:
    """A box of each Debian, reached by SSH: by root, by `boss` with sudo that asks nothing, by `me` without rights."""
    box, port = ready(start, request.param), free_port()
    machine.put(box.container, {"/key.pub": machine.public(keys[0]) + "\n"})
    box.shell(SSHD.format(port=port))
    until(f"sshd on port {port}", lambda: answers_ssh(port), box.container)
    config = tmp_path_factory.mktemp("ssh") / "config"
    config.write_text(CONFIG.format(port=port, key=keys[0]))
    return Far(box._replace(port=port), config)


@pytest.mark.parametrize(
    ("user", "venv", "stamp"),
    [
        ("root", "/opt/venv", STAMP),
        ("boss", "/opt/venv", STAMP),
        ("me", "/home/me/.local/share/hermitcrab/venv", "/home/me/.config/hermitcrab/bootstrap.json"),
    ],
    ids=["root", "sudo", "plain"],
)
def test_over_ssh(far: Far, user: str, venv: str, stamp: str, served: Served) -> None:
    """The line pasted into a session: each user has an environment that is his, and takes it out again."""
    status, said = far.run(user, WORDS, served.curl())
    assert status == 0, said
    host = far.host(user)
    assert '"result": "done"' in host.file(stamp).content_string
    found = host.check_output("bash -lc 'command -v crab python'").split()
    assert found == [f"{venv}/bin/crab", f"{venv}/bin/python"]
    paths = (venv, f"{venv}/bin/crab", f"~{user}/.config/hermitcrab")
    assert host.check_output(f"stat -c %U {' '.join(paths)}").split() == [user] * 3
    assert host.check_output("ls -d /tmp/hermitcrab.* 2>/dev/null || true") == ""
    status, said = far.run(user, "--uninstall", served.curl())
    assert (status, host.file(venv).exists) == (0, False), said


def test_sent_by_invoke(
    far: Far, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`invoke bootstrap --host root@box`: by standard input, no terminal, nothing asked (C18), its progress shown."""
    script, ssh = tmp_path / "bootstrap.sh", tmp_path / "bin/ssh"
    script.write_bytes(served.scripts["small"])
    monkeypatch.setattr(bootstrap, "SCRIPT", script)
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {far.config} "$@"\n')  # not this machine's settings
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    trusted = ["--ca", bootstrapping.CA] if bootstrapping.certificates() else []
    bootstrap_send.send("root@box", [*WORDS.split(), *trusted])
    said = capfd.readouterr().out
    assert "torch …" in said
    assert "GPU check skipped, which is no pass" in said
    assert told(far.box)["result"] == "done"
    bootstrap_send.send("root@box", ["--uninstall"])


def test_a_plain_user_where_much_is_missing(start_once: Start, ready: Ready, served: Served) -> None:
    """C22: no sudo, no prompt; the user part is done, the rest named, status 3, no byte of the system changed."""
    box = ready(start_once)
    case = (CASES / "C25.txt").read_text()
    machine.put(box.container, {"/home/me/.tmux.conf": case})
    box.shell("dpkg -r tmux nano >/dev/null 2>&1; chown -R me:me /home/me")
    others = f"{TREE} | grep -v -e '^/home/me' -e '^/run/sudo'"  # sudo notes that it was asked
    before = box.shell(others)
    status, said = run(box, f"{served.curl()} | bash -s -- {WORDS}; exit ${{PIPESTATUS[1]}}", user="me")
    assert status == 3, said
    assert "left out: tmux nano (neither root nor sudo without a password)" in said
    assert "left out: torch" not in said
    assert changed(before, box.shell(others)) == []
    assert told(box, "/home/me/.config/hermitcrab/bootstrap.json")["result"] == "partial"
    assert run(box, "bash -lc 'crab --version'", user="me")[1].startswith("crab ")
    assert box.read("/home/me/.tmux.conf").endswith(case)


def test_a_dry_run_changes_nothing(start_once: Start, ready: Ready, served: Served) -> None:
    """Not even a log; and a mirror that does not exist is wrong use."""
    box = ready(start_once)
    before = box.shell(f"{TREE}; ls -l {bootstrapping.LOG}")
    status, said = run(box, f"{served.curl()} | bash -s -- {WORDS} --dry-run")
    assert (status, said.splitlines()[-1]) == (0, "this was a dry run: nothing was changed")
    assert run(box, f"{served.curl()} | bash -s -- --mirror nosuch --dry-run; exit ${{PIPESTATUS[1]}}")[0] == 2
    assert changed(before, box.shell(f"{TREE}; ls -l {bootstrapping.LOG}")) == []
