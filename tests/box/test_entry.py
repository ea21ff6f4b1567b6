"""Claim: a box lets in who was given a key, runs its hooks, and hands sessions what the platform gave it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.box.conftest import Start
from tests.box.machine import Box, public, ssh
from tests.image.boxes import answers_ssh, until

AWKWARD: Final = "pod 'a' $HOME \"b\" `id`"
SECRET: Final = "rpa_" + "SECRETSECRETSECRETSECRET0"
HOOKS: Final = "/etc/hermitcrab/hooks.d"
HOOK: Final = "#!/bin/sh\necho {0} >> /hooked\necho {0} says hello\nexit {1}\n"
SHELLS: Final = {
    "ssh": "{}",
    "login": "bash -lc '{}'",
    "tmux": 'tmux new-session -d "({}) >/tmp/said; tmux wait-for -S said"; tmux wait-for said; cat /tmp/said',
}
STATUSES: Final = {"10-a": 0, "20-b": 3, "40-d": 0}
RUNNABLE: Final = {f"{HOOKS}/{name}": HOOK.format(name, status) for name, status in STATUSES.items()}


@pytest.fixture(scope="module")
def box(serve: Start, name: str, keys: tuple[Path, Path]) -> Box:
    """A box whose platform's form was filled in the usual ways."""
    environment = {
        "PUBLIC_KEY": public(keys[0]),
        "SSH_PUBLIC_KEY": "null",
        "AUTHORIZED_KEYS": f"# mine\r\n{public(keys[1])}\r\n{public(keys[0])}",
        "RUNPOD_POD_ID": AWKWARD,
        "RUNPOD_API_KEY": SECRET,
    }
    return serve(name, environment, hooks={0o755: RUNNABLE, 0o644: {f"{HOOKS}/30-c": HOOK.format("30-c", 0)}})


def test_both_keys_open(box: Box, keys: tuple[Path, Path]) -> None:
    """Keys of all variables are let in, each once, though a form sent "null" and Windows line ends."""
    assert [ssh(box, key, "echo in").stdout for key in keys] == ["in\n", "in\n"]
    assert box.read("/root/.ssh/authorized_keys") == f"{public(keys[0])}\n{public(keys[1])}\n"
    assert box.host.file("/root/.ssh/authorized_keys").mode == 0o600


def test_hooks_run_in_order_and_stop_nothing(box: Box) -> None:
    """A failing hook is named, one that is not executable too, and the box goes on."""
    assert box.read("/hooked") == "10-a\n20-b\n40-d\n"
    log = box.container.logs(stdout=False).decode()
    assert f"warning: hook {HOOKS}/20-b failed with status 3" in log
    assert f"warning: hook {HOOKS}/30-c is not executable: skipped" in log
    assert "10-a says hello" in log
    assert box.container.logs(stderr=False) == b"", "a hook wrote into the command's output"


@pytest.mark.parametrize("shell", SHELLS.values(), ids=SHELLS.keys())
def test_sessions_have_the_platforms_variables(box: Box, keys: tuple[Path, Path], shell: str) -> None:
    """What the platform gave to PID 1 reaches SSH, login shells and tmux unharmed; a secret does not."""
    done = ssh(box, keys[0], shell.format("printenv RUNPOD_POD_ID; printenv RUNPOD_API_KEY"))
    assert done.stdout == f"{AWKWARD}\n", done


def test_the_variables_are_for_the_owner_only(box: Box) -> None:
    """Mode 600, and no secret in it."""
    session = box.host.file("/root/.config/hermitcrab/session.sh")
    assert session.mode == 0o600
    assert SECRET not in session.content_string


def test_a_restart_is_the_same_box(box: Box, keys: tuple[Path, Path]) -> None:
    """Host keys and authorized_keys stay as they are; hooks run once more."""
    files = ("/etc/ssh/ssh_host_ed25519_key.pub", "/root/.ssh/authorized_keys")
    before = [box.read(path) for path in files]
    box.container.restart(timeout=10)
    until("sshd after the restart", lambda: answers_ssh(box.port), box.container)
    assert [box.read(path) for path in files] == before
    until("the hooks", lambda: box.read("/hooked") == 2 * "10-a\n20-b\n40-d\n", box.container)
    assert ssh(box, keys[0], "printenv RUNPOD_POD_ID").stdout == f"{AWKWARD}\n"


def test_as_in_apptainer(start_once: Start, name: str, keys: tuple[Path, Path]) -> None:
    """Any uid, a read-only root and no network, all at once: the command runs, and warnings say what did not."""
    command = ["python", "-c", "import torch; print(torch.ones(2).sum().item())"]
    options = {"user": "4711", "read_only": True, "network_mode": "none"}
    box = start_once(name, command, environment={"PUBLIC_KEY": public(keys[0])}, **options)
    assert box.container.wait(timeout=60)["StatusCode"] == 0
    assert box.container.logs(stderr=False) == b"2.0\n"
    log = box.container.logs(stdout=False)
    assert b"sshd is not started" in log
    assert b"Traceback" not in log
