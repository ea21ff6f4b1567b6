"""The child: a crash, a hang or an exception is an answer, and nothing is left of it."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hermitcrab.box.check import child
from hermitcrab.box.check.child import Child, Failure


def add(a: int, b: int) -> int:
    """Answer."""
    return a + b


def fail(text: str) -> None:
    """Raise, after saying something."""
    print("noise on stdout")
    raise RuntimeError(text)


def crash() -> None:
    """Die as a kernel does that corrupts memory."""
    faulthandler.disable()  # pytest's would tell of it
    os.write(2, b"corrupted double-linked list")
    os.kill(os.getpid(), signal.SIGSEGV)


def leave(status: int) -> None:
    """End without a word."""
    os._exit(status)


def hang(note: str) -> None:
    """Start a program that outlives its parent, and never answer."""
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(note).write_text(f"{os.getpid()} {program.pid}")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)


def gone(pid: int) -> bool:
    """Say whether a process has ended, within a moment; a zombie has."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_a_child_keeps_what_it_has_imported() -> None:
    """All questions go to one process, which is not this one."""
    with Child() as asked:
        pids = {asked.ask(os.getpid, seconds=10) for _ in range(3)}
        assert asked.ask(add, 1, 2, seconds=10) == 3
    assert len(pids) == 1 and os.getpid() not in pids
    assert gone(pids.pop())


def test_an_exception_is_an_answer_and_costs_no_child() -> None:
    """What it printed goes nowhere near the output of the check."""
    with Child() as asked:
        pid = asked.ask(os.getpid, seconds=10)
        assert asked.ask(fail, "no kernel image", seconds=10) == Failure("RuntimeError: no kernel image")
        assert asked.ask(sys.exit, 3, seconds=10) == Failure("SystemExit: 3")
        assert asked.ask(os.getpid, seconds=10) == pid


def test_a_crash_is_named_and_the_next_question_answered() -> None:
    """By the signal and the last words."""
    with Child() as asked:
        assert asked.ask(crash, seconds=10) == Failure(
            "the process was killed by SIGSEGV", "corrupted double-linked list"
        )
        assert asked.ask(add, 1, 2, seconds=10) == 3
        assert asked.ask(leave, 7, seconds=10) == Failure("the process ended with status 7")


def test_a_hang_ends_with_all_it_started(tmp_path: Path) -> None:
    """Neither the child nor its children stay."""
    note = tmp_path / "pids"
    with Child() as asked:
        answer = asked.ask(hang, str(note), seconds=1)

    assert answer == Failure("no answer in 1 s")
    assert all(gone(int(pid)) for pid in note.read_text().split())


def test_after_two_deaths_the_rest_is_not_asked() -> None:
    """A machine that kills every child is known by then."""
    with Child() as asked:
        for _ in range(child.MOST_DEATHS):
            asked.ask(leave, 1, seconds=10)
        assert "not run" in asked.ask(add, 1, 2, seconds=10).why


def test_a_process_that_cannot_be_ended_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check goes on when even SIGKILL waits in the driver."""
    asked = Child()
    asked.ask(add, 1, 2, seconds=10)
    pid = asked._pid
    monkeypatch.setattr(child, "_death", lambda _pid: "")

    asked.__exit__()
    os.waitpid(pid, 0)
