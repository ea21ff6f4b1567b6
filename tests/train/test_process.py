"""Claims: no process of a training is left, whatever it does, and no process of anybody else is touched."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermitcrab.train import process
from hermitcrab.train.process import MARK, Reaper, Tree
from tests.train.training import alive

SLEEP = "import time; time.sleep(60)"
# A worker with a session of its own, and one that was left by its parent and hides its environment.
SPREAD = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "{SLEEP}"], start_new_session=True)
subprocess.Popen(["sh", "-c", "env -i sleep 60 & sleep 0.5"]).wait()
print("ready", flush=True)
time.sleep(60)
"""
IGNORING = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
)
# As a training with data loaders: a fork that must not get the signal.
FORKING = """
import os, signal, sys, time
if os.fork() == 0:
    signal.signal(signal.SIGTERM, lambda *_: open("told", "w").close())
    time.sleep(60)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def subreaper() -> Iterator[None]:
    """The test process adopts, as the supervisor does; given back for the tests after it."""
    process.become_subreaper()
    yield
    reaper = Reaper()
    reaper.sweep(0)
    reaper.sweep(0)
    ctypes.CDLL(None).prctl(process.SUBREAPER, 0, 0, 0, 0)


def begin(folder: Path, code: str) -> tuple[subprocess.Popen[bytes], Tree]:
    """Start a training that says when it is ready."""
    read, write = os.pipe()
    environ = {**os.environ, MARK: str(folder)}
    child = subprocess.Popen(
        [sys.executable, "-c", code], env=environ, stdout=write, start_new_session=True, cwd=folder
    )
    tree = Tree(child.pid, folder)
    os.close(write)
    with open(read, "rb") as output:
        assert output.readline() == b"ready\n"
    return child, tree


def no_hurry() -> bool:
    """Let it take its time."""
    return False


def test_a_whole_tree_is_ended(tmp_path: Path) -> None:
    """A worker with its own session, and a daemon without parent and environment, as well."""
    child, tree = begin(tmp_path, SPREAD)
    members = {one.pid for one in tree.look()}
    assert len(members) >= 3
    assert process.stop(tree, None, 5.0, no_hurry) == []
    child.wait(30)
    assert alive(tmp_path) == []
    assert not any(process.lives(pid, started) for pid, started in tree._seen)


def test_what_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    """And not before."""
    child, tree = begin(tmp_path, IGNORING)
    begun = time.monotonic()
    assert process.stop(tree, None, 1.0, no_hurry) == []
    assert 0.9 < time.monotonic() - begun < 30
    assert child.wait(30) == -signal.SIGKILL


def test_hurry_cuts_the_grace(tmp_path: Path) -> None:
    """The second Ctrl-C."""
    child, tree = begin(tmp_path, IGNORING)
    begun = time.monotonic()
    assert process.stop(tree, None, 60.0, lambda: time.monotonic() > begun + 0.3) == []
    assert child.wait(30) == -signal.SIGKILL and time.monotonic() - begun < 30


def test_a_fork_of_a_training_is_not_told(tmp_path: Path) -> None:
    """A data loader that dies of the signal breaks the step that is to be saved."""
    child, tree = begin(tmp_path, FORKING)
    process.stop(tree, None, 5.0, no_hurry)
    assert child.wait(30) == 0
    assert alive(tmp_path) == []


def test_whoever_announced_it_is_told_alone(tmp_path: Path) -> None:
    """With the shell above it, which would go on with its next line."""
    (tmp_path / "inner.py").write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), open('saved', 'w').close(), sys.exit(143)))\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    line = f"{sys.executable} inner.py; touch next-line"
    child, tree = begin(tmp_path, f"import os; os.execvp('bash', ['bash', '-c', {line!r}])")
    announcer = next(one.pid for one in tree.look() if b"inner.py" in process._command(one.pid).split(b"\0"))
    assert process.stop(tree, announcer, 10.0, no_hurry) == []
    child.wait(30)
    assert (tmp_path / "saved").exists() and not (tmp_path / "next-line").exists()


def test_others_below_the_supervisor_are_left_alone(tmp_path: Path) -> None:
    """As the first process of a container it has children that are none of the training's, such as sshd."""
    other = subprocess.Popen([sys.executable, "-c", SLEEP])
    try:
        child, tree = begin(tmp_path, SPREAD)
        process.stop(tree, None, 5.0, no_hurry)
        child.wait(30)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_number_that_was_given_to_another_is_no_target(tmp_path: Path) -> None:
    """Pids come round again; start times do not."""
    child, tree = begin(tmp_path, SPREAD)
    one = next(found for found in tree.look() if found.pid == child.pid)
    assert not process.send(one._replace(started=one.started + 1), signal.SIGKILL)
    assert child.poll() is None
    process.kill(tree)
    child.wait(30)


def test_a_stopped_process_is_woken_to_end(tmp_path: Path) -> None:
    """Ctrl-Z must not make it immortal for the grace."""
    child, tree = begin(tmp_path, SPREAD)
    os.kill(child.pid, signal.SIGSTOP)
    begun = time.monotonic()
    process.stop(tree, None, 30.0, no_hurry)
    assert child.wait(30) == -signal.SIGTERM and time.monotonic() - begun < 25


def test_adopted_dead_are_buried_and_own_are_not() -> None:
    """An orphan's zombie goes; the status of a child that somebody waits for stays."""
    own = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    subprocess.run(["sh", "-c", "sleep 0.2 & exit 0"], check=True)
    limit = time.monotonic() + 10
    reaper = Reaper()

    def dead() -> int:
        return sum(one.parent == os.getpid() and one.state == "Z" for one in process.table().values())

    while dead() < 2:
        assert time.monotonic() < limit
        time.sleep(0.05)
    reaper.sweep(own.pid)
    assert dead() == 2, "one sweep is no wait"
    reaper.sweep(own.pid)
    assert dead() == 1
    assert own.wait() == 7


def test_a_name_with_brackets_and_newlines_is_read(tmp_path: Path) -> None:
    """The kernel's table holds a program's name as it is."""
    hostile = tmp_path / "a) Z 1 (\nb"
    hostile.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(hostile), "60"])
    try:
        time.sleep(0.1)
        found = process.read(child.pid)
        assert found and found.parent == os.getpid() and found.state in "SR"
    finally:
        child.kill()
        child.wait()


def test_what_is_gone_is_nothing() -> None:
    """Also what never was a pid."""
    assert process.read(2**22 + 1) is None
    assert not any(process.lives(pid, 0) for pid in (None, "1", -1, 0, 1.5, True))
