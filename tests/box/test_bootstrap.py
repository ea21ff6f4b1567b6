"""Claim: `curl … | bash` makes a bare Debian the environment of the image, whatever is in the way."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hermitcrab.build.engine import Engine
from hermitcrab.errors import UserError
from tests.box import bootstrapping, machine
from tests.box.bootstrapping import Served, run
from tests.box.conftest import Start
from tests.box.debian import SUITES, Suite
from tests.box.machine import Box
from tests.image.boxes import free_port, until

STAMP: Final = "/etc/hermitcrab/bootstrap.json"
CASES: Final = Path(__file__).parents[1] / "cases"
BOOKWORM: Final = SUITES[1]
WORDS: Final = "--cuda 12.1"
# All that a run may not touch when it does nothing: every file beside apt's own lists, with its time.
STATE: Final = (
    "find / -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /var/lib/apt -o -path /var/cache"
    " -o -path /var/log \\) -prune -o ! -type d -printf '%p %s %T@\\n' | sort"
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The small script, served."""
    with pytest.MonkeyPatch.context() as patch:
        scripts = {"small": bootstrapping.small(patch, tmp_path_factory.mktemp("locks"))}
    with bootstrapping.serving(scripts) as found:
        yield found


@pytest.fixture(autouse=True, scope="module")
def on_this_network(engine: Engine) -> None:
    """The boxes must reach this machine's loopback."""
    if engine.network != "host":
        pytest.skip("the engine's containers have a network of their own: this machine's loopback is not theirs")


def make(start: Start, engine: Engine, suite: Suite = BOOKWORM, *packages: str) -> Box:
    """A box, or a skip with the reason."""
    try:
        name = bootstrapping.bare(engine, suite, *packages)
    except UserError as error:
        pytest.skip(str(error))
    return start(name, ["sleep", "infinity"], **bootstrapping.options())


def told(box: Box, path: str = STAMP) -> dict[str, object]:
    """What the stamp says."""
    found: dict[str, object] = json.loads(box.read(path))
    return found


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: f"debian{suite.version}")
def test_a_bare_box_and_again(suite: Suite, start_once: Start, engine: Engine, served: Served) -> None:
    """From nothing but curl to a stamp; a second run is quick and changes nothing; uninstall takes it out."""
    box = make(start_once, engine, suite)
    before = set(box.shell("ls -A /root /etc/hermitcrab /opt 2>/dev/null || true").splitlines())
    status, said = run(box, f"{served.curl()} | bash -s -- {WORDS}", seconds=500)
    assert status == 0, said
    assert (told(box)["result"], told(box)["python"]) == ("done", suite.python)
    assert box.shell("bash -lc 'command -v crab python tmux git rsync gcc'").splitlines()[:2] == [
        "/opt/venv/bin/crab",
        "/opt/venv/bin/python",
    ]
    state = box.shell(STATE)
    begun = time.monotonic()
    status, said = run(box, f"{served.curl()} | bash -s -- {WORDS}")
    assert (status, time.monotonic() - begun < 6) == (0, True), said
    assert "done before: nothing to change" in said
    assert box.shell(STATE) == state
    status, said = run(box, f"{served.curl()} | sh -s -- --uninstall")
    assert status == 0, said
    left = set(box.shell("ls -A /root /etc/hermitcrab /opt 2>/dev/null || true").splitlines())
    assert left - before <= {"/etc/hermitcrab:", ".ssh", ""}  # Debian 13's SSH server makes one


def test_by_ssh(start_once: Start, engine: Engine, served: Served, keys: tuple[Path, Path]) -> None:
    """`invoke bootstrap --host` sends it by standard input; no terminal, nothing asked (C18)."""
    box = make(start_once, engine, BOOKWORM, "openssh-server")
    port = free_port()
    machine.put(box.container, {"/root/.ssh/authorized_keys": machine.public(keys[0]) + "\n"}, 0o600)
    box.shell(f"mkdir -p /run/sshd; ssh-keygen -A >/dev/null; /usr/sbin/sshd -p {port} -o ListenAddress=127.0.0.1")
    here = box._replace(port=port)
    words = ["ssh", "-F", "/dev/null", "-T", "-i", str(keys[0]), "-p", str(port)]
    words += ["-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null", "-oLogLevel=ERROR", "root@127.0.0.1"]
    ca = f"HERMITCRAB_CA={bootstrapping.CA} " if "volumes" in bootstrapping.options() else ""
    done = subprocess.run(
        [*words, f"{ca}sh -s -- {WORDS}"], input=served.scripts["small"], capture_output=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()
    assert told(here)["result"] == "done"


def test_a_plain_user(start_once: Start, engine: Engine, served: Served) -> None:
    """C22: no sudo, no prompt; the user part is done, the rest named, status 3, no byte of the system changed."""
    box = make(start_once, engine, BOOKWORM, "python3")
    box.shell("useradd -m -s /bin/bash me")
    case = (CASES / "C25.txt").read_text()
    machine.put(box.container, {"/home/me/.tmux.conf": case})
    box.shell("chown -R me:me /home/me")
    before = box.shell(f"{STATE} | grep -v ' /home/me' | grep -v '^/home/me'")
    status, said = run(box, f"{served.curl()} | bash -s -- {WORDS}; exit ${{PIPESTATUS[1]}}", user="me")
    assert status == 3, said
    assert "neither root nor sudo without a password" in said
    assert "tmux git openssh-server" in said
    assert box.shell(f"{STATE} | grep -v ' /home/me' | grep -v '^/home/me'") == before
    assert told(box, "/home/me/.config/hermitcrab/bootstrap.json")["result"] == "partial"
    assert run(box, "bash -lc 'crab --version'", user="me")[1].startswith("crab ")
    assert box.read("/home/me/.tmux.conf").endswith(case)


def test_sudo_without_a_password(start_once: Start, engine: Engine, served: Served) -> None:
    """It is used, and the environment is the user's."""
    box = make(start_once, engine, BOOKWORM, "sudo")
    box.shell("useradd -m -s /bin/bash me; echo 'me ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/me")
    status, said = run(box, f"{served.curl()} | bash -s -- {WORDS}; exit ${{PIPESTATUS[1]}}", user="me")
    assert status == 0, said
    assert told(box)["result"] == "done"
    assert box.shell("stat -c %U /opt/venv /opt/venv/bin/crab /home/me/.config/hermitcrab").split() == ["me"] * 3
    assert box.shell("ls -d /tmp/hermitcrab.* 2>/dev/null || true") == ""


def test_a_tmp_that_runs_nothing(start_once: Start, engine: Engine, served: Served) -> None:
    """Noexec on /tmp and TMPDIR, an empty environment but for the certificate, and a Chinese locale."""
    try:
        name = bootstrapping.bare(engine, BOOKWORM)
    except UserError as error:
        pytest.skip(str(error))
    box = start_once(name, ["sleep", "infinity"], tmpfs={"/tmp": "rw,noexec,size=300m"}, **bootstrapping.options())
    command = f"{served.curl()} > /root/b.sh; env -i HERMITCRAB_CA=$HERMITCRAB_CA LC_ALL=zh_CN.UTF-8"
    status, said = run(box, f"{command} PATH=$PATH sh -s -- {WORDS} < /root/b.sh")
    assert status == 0, said
    assert told(box)["result"] == "done"


LOCK: Final = """
import fcntl, os, sys, time
held = [open(path, "w") for path in sys.argv[1:]]
for file in held:
    fcntl.lockf(file, fcntl.LOCK_EX)
while not os.path.exists("/release"):
    time.sleep(0.1)
"""


@pytest.mark.parametrize(
    "locks",
    [("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock"), ("/var/lib/apt/lists/lock",)],
    ids=["dpkg", "lists"],
)
def test_a_held_lock(locks: tuple[str, ...], start_once: Start, engine: Engine, served: Served) -> None:
    """C20: somebody's apt holds it; the run waits, says for whom, and goes on when it is given up. The lock stays."""
    box = make(start_once, engine, BOOKWORM, "python3")
    machine.put(box.container, {"/hold.py": LOCK})
    box.container.exec_run(["python3", "/hold.py", *locks], detach=True)
    inodes = box.ask("stat", "-c", "%i", *locks)
    environ = {"HERMITCRAB_APT_PAUSE": "1", "HOME": "/root"}
    command = f"{served.curl()} | bash -s -- {WORDS} > /said 2>&1; echo $? > /status"
    box.container.exec_run(["bash", "-c", command], detach=True, environment=environ)
    until("it waits", lambda: "waiting for" in box.shell("cat /said 2>/dev/null || true"), box.container, 120)
    assert re.search(r"waiting for \d+ \(python3\), which holds", box.read("/said"))
    assert not box.host.file("/status").exists
    assert box.ask("stat", "-c", "%i", *locks) == inodes
    box.shell("touch /release")
    until("its end", lambda: box.host.file("/status").exists, box.container, 300)
    assert (box.read("/status"), told(box)["result"]) == ("0\n", "done"), box.read("/said")


def test_an_interrupted_dpkg(start_once: Start, engine: Engine, served: Served) -> None:
    """What a cut installation left is finished, once."""
    box = make(start_once, engine, BOOKWORM, "python3")
    box.shell(": > /var/lib/dpkg/updates/0001")
    assert "dpkg was interrupted" in run(box, "apt-get install -y nano </dev/null")[1]
    status, said = run(box, f"{served.curl()} | bash -s -- {WORDS}")
    assert status == 0, said
    assert "dpkg was interrupted before: finishing" in said


@pytest.mark.parametrize("seconds", [3.0, 12.0, 30.0])
def test_cut_off_in_the_middle(seconds: float, start_once: Start, engine: Engine, served: Served) -> None:
    """The machine goes off at some moment: no stamp; the next run goes on and ends well."""
    box = make(start_once, engine)
    command = f"{served.curl()} | bash -s -- {WORDS}"
    box.container.exec_run(["bash", "-c", command], detach=True, environment={"HOME": "/root"})
    time.sleep(seconds)
    box.container.kill()
    box.container.start()
    if not box.host.file(STAMP).exists:
        status, said = run(box, command)
        assert status == 0, said
    assert told(box)["result"] == "done"
    assert box.shell("dpkg --audit; find /opt -maxdepth 1 -name '.*'") == ""


def test_without_network(start_once: Start, engine: Engine, served: Served) -> None:
    """One clear line, status 1, and nothing changed."""
    try:
        name = bootstrapping.bare(engine, BOOKWORM, "python3")
    except UserError as error:
        pytest.skip(str(error))
    box = start_once(name, ["sleep", "infinity"], network_mode="none")
    machine.put(box.container, {"/bootstrap.sh": served.scripts["small"]})
    before = box.shell(STATE)
    status, said = run(box, f"bash /bootstrap.sh {WORDS}")
    assert status == 1
    assert "apt-get update: Err:1" in said.splitlines()[-1], said
    assert box.shell(STATE) == before
    assert not box.host.file(STAMP).exists


def test_a_dry_run_changes_nothing(start_once: Start, engine: Engine, served: Served) -> None:
    """Not even a log; and a mirror that does not exist is wrong use."""
    box = make(start_once, engine, BOOKWORM, "python3")
    before = box.shell(f"{STATE}; ls -A /tmp /var/log /root")
    status, said = run(box, f"{served.curl()} | bash -s -- {WORDS} --dry-run")
    assert (status, said.splitlines()[-1]) == (0, "this was a dry run: nothing was changed")
    assert box.shell(f"{STATE}; ls -A /tmp /var/log /root") == before
    assert run(box, f"{served.curl()} | bash -s -- --mirror nosuch; exit ${{PIPESTATUS[1]}}")[0] == 2


CERTIFICATE: Final = (
    "openssl req -x509 -newkey rsa:2048 -nodes -keyout /key -out /cert -days 2 -subj /CN=localhost"
    " -addext subjectAltName=DNS:localhost 2>/dev/null; cd /srv;"
    " nohup openssl s_server -accept {port} -key /key -cert /cert -WWW >/dev/null 2>&1 & sleep 1"
)


def test_a_network_that_looks_into_tls(start_once: Start, engine: Engine, served: Served) -> None:
    """C27: an index with an unknown certificate is told as that; with --ca it is trusted, for the run only."""
    try:
        name = bootstrapping.bare(engine, BOOKWORM, "python3", "openssl", "python3-pip")
    except UserError as error:
        pytest.skip(str(error))
    box = start_once(name, ["sleep", "infinity"], environment=bootstrapping.passed())
    port = free_port()
    run(box, CERTIFICATE.format(port=port))
    index = {
        "PIP_INDEX_URL": f"https://localhost:{port}/simple",
        "UV_DEFAULT_INDEX": f"https://localhost:{port}/simple",
    }
    command = f"{served.curl()} | bash -s -- {WORDS}"
    status, said = run(box, command, environ=index)
    assert status == 1
    assert "the index's certificate is not trusted; name your network's CA bundle with --ca FILE" in said
    status, said = run(box, f"{command} --ca /cert", environ=index)
    assert status == 1
    assert "certificate" not in said.splitlines()[-1], said
    assert box.shell("find /etc/ssl /usr/local/share/ca-certificates -newer /cert -type f | head") == ""


def test_another_distribution(start_once: Start, engine: Engine, served: Served) -> None:
    """A clear answer and the user part only."""
    box = make(start_once, engine, BOOKWORM, "python3")
    machine.put(box.container, {"/etc/os-release": 'ID="alinux"\nID_LIKE="rhel fedora centos"\nVERSION_ID="3"\n'})
    status, said = run(box, f"{served.curl()} | bash -s -- {WORDS}; exit ${{PIPESTATUS[1]}}")
    assert status == 3, said
    assert "left out: torch (there is no pip here" in said
    assert box.shell("bash -lc 'crab --version'").startswith("crab ")
    assert "alinux 3 is not served; Debian 11, 12, 13, Ubuntu 20.04, 22.04, 24.04 are" in said
    assert box.shell("command -v tmux || true") == ""
