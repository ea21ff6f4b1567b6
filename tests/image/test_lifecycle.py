"""Claim: a container is its command: it starts anywhere, ends when told, and reports as it ended."""

from __future__ import annotations

import time
from typing import Any, Final

import pytest
from docker.models.containers import Container

from hermitcrab.matrix import Combo
from tests.image import boxes
from tests.image.boxes import ask
from tests.image.conftest import Start

KEY: Final = "ssh-ed25519 " + "AAAAC3NzaC1lZDI1NTE5AAAAI" + "B" * 43 + " test"  # of nobody
TERMINATED: Final = 128 + 15
ARGUMENTS: Final = [
    "",
    " a  b ",
    "$HOME",
    "`id`",
    "*",
    "~",
    "a\nb\t",
    "\\",
    "'",
    '"',
    "--",
    "-h",
    "crab",
    "é漢\u200b",
    "&&",
]


@pytest.mark.parametrize(
    ("command", "running"),
    [
        (None, "sleep infinity"),
        (["sleep", "1000"], "sleep 1000"),
        (["python", "-c", "import time; time.sleep(1000)"], "time.sleep(1000)"),
    ],
    ids=["none", "sleep", "python"],
)
def test_sigterm_ends_it(create_once: Start, combo: Combo, command: list[str] | None, running: str) -> None:
    """`docker stop` is obeyed within two seconds, long before the engine would kill."""
    container = create_once(combo, command)
    container.start()
    boxes.until(f"the command {running}", lambda: _runs(container, running), container)
    began = time.monotonic()
    container.stop(timeout=10)
    took = time.monotonic() - began
    assert container.wait(timeout=10)["StatusCode"] == TERMINATED
    assert took < 2, f"SIGTERM took {took:.1f} s"


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["sh", "-c", "exit 0"], 0),
        (["python", "-c", "raise SystemExit(7)"], 7),
        (["sh", "-c", "kill -9 $$"], 128 + 9),
        (["no-such-program"], 127),
        (["/etc/passwd"], 126),
    ],
    ids=["0", "7", "killed", "missing", "not a program"],
)
def test_exit_status_comes_back(create_once: Start, combo: Combo, command: list[str], status: int) -> None:
    """The container ends as its command did; what cannot run is a shell's 127 or 126 and one line."""
    done = boxes.finish(create_once(combo, command))
    assert done.status == status
    assert done.out == b""
    assert len(done.err.splitlines()) == (status in {126, 127})


def test_arguments_arrive_byte_for_byte(create_once: Start, combo: Combo) -> None:
    """No shell splits, expands or joins them, and nothing is added to the output."""
    done = boxes.finish(create_once(combo, ["printf", "%s\\0", *ARGUMENTS]))
    assert done == (0, b"".join(argument.encode() + b"\0" for argument in ARGUMENTS), b"")


def test_read_only_root(create_once: Start, combo: Combo) -> None:
    """Where nothing can be written, keys are a warning and the command runs all the same."""
    environment = {"PUBLIC_KEY": KEY, "SSH_PORT": str(boxes.free_port())}
    command = ["python", "-c", "import torch; print(torch.ones(2).sum().item())"]
    done = boxes.finish(create_once(combo, command, read_only=True, environment=environment))
    assert (done.status, done.out) == (0, b"2.0\n"), done.err
    assert b"entry: warning: cannot add keys" in done.err
    assert b"Traceback" not in done.err


def test_unknown_user(create_once: Start, combo: Combo) -> None:
    """A uid without a passwd entry gets its command, a name and a home, and no sshd."""
    words = 'id -u; printf "%s\\n" "$USER"; cd && touch it && echo wrote; pgrep sshd || echo none'
    done = boxes.finish(create_once(combo, ["sh", "-c", words], user="12345", environment={"PUBLIC_KEY": KEY}))
    assert (done.status, done.out) == (0, b"12345\nuid12345\nwrote\nnone\n"), done.err
    assert b"sshd is not started" in done.err


def test_zombies_are_reaped(host: Any) -> None:
    """A process whose parent is gone leaves nothing behind when it ends."""
    orphan = ask(host, "sh", "-c", "sleep 3 >/dev/null & echo $!")
    assert ask(host, "ps", "-o", "ppid=", "-p", orphan) == "1", "the orphan is not tini's"
    boxes.until(f"the end of process {orphan}", lambda: not host.file(f"/proc/{orphan}").exists, seconds=10)


def _runs(container: Container, command: str) -> bool:
    processes = (container.top() or {}).get("Processes") or []
    return any(row[-1].endswith(command) for row in processes)
