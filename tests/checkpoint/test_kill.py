"""A commit may be cut off anywhere: what was acknowledged loads, and nothing half-written is visible."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from hermitcrab.checkpoint import choice, commit, store
from hermitcrab.checkpoint.tee import Tee
from tests.checkpoint import driver

ROOT: Final = Path(__file__).parents[2]
COMMAND: Final = [sys.executable, "-B", "-m", "tests.checkpoint.driver"]


def start(folder: Path, *numbers: int) -> subprocess.Popen[str]:
    """Start the program that commits."""
    words = [*COMMAND, str(folder), *map(str, numbers)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def check(folder: Path, acknowledged: list[int]) -> int:
    """Whatever has a checkpoint's name is whole; the newest is at least the newest acknowledged."""
    for item in store.found(folder):
        store.verify(item.path)
        assert (item.path / "state.pt").read_bytes() == driver.payload(item.step)
    chosen = choice.choose(folder, "r", lambda path: path.name, lambda _: None)
    choice.committed(folder)  # this start did not kill the program
    newest = chosen.manifest["step"] if chosen else -1
    assert newest >= max(acknowledged, default=-1)
    assert len(store.found(folder)) >= min(2, len(acknowledged))
    assert not list(folder.glob(".tmp_*")) + list(folder.glob(".del_*")), "the dead writer's orphans are swept"
    return int(newest)


def test_killed_at_every_call(folder: Path) -> None:
    """SIGKILL before each write, fsync, rename, mkdir and unlink of a run of commits loses nothing."""
    with start(folder, 0, 4, 10**6) as whole:
        assert whole.stdout
        said = whole.stdout.read().split()
    calls = int(said[-1])
    assert calls > 40
    first = 4
    for number in range(1, calls + 1, 2 if calls > 60 else 1):
        with start(folder, first, 4, number) as killed:
            assert killed.stdout
            steps = [int(word) for word in killed.stdout.read().split() if word.isdigit()]
        assert killed.returncode == -signal.SIGKILL
        first = check(folder, [first - 1, *steps]) + 1


def test_killed_at_random_moments(folder: Path) -> None:
    """SIGKILL from outside, at any moment, loses no acknowledged step."""
    dice, first = random.Random(5), 0
    for _ in range(25):
        with start(folder, first, 10**6) as running:
            assert running.stdout
            steps = [int(running.stdout.readline())]
            time.sleep(dice.random() * 0.1)
            running.kill()
            steps += [int(word) for word in running.stdout.read().split()]
        first = check(folder, steps) + 1


@pytest.mark.parametrize("name", ["mkdir", "fsync", "rename", "_pass"])
def test_a_failing_call_leaves_the_others_as_they_are(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Any call of a commit may fail with an error: nothing new is visible, nothing old is lost."""
    done = commit.commit
    files = {"state.pt": lambda file: file.write(driver.payload(1))}
    done(folder, 1, {"run": "r"}, files)
    owner = Tee if hasattr(Tee, name) else os
    work = getattr(owner, name)
    for number in range(1, 12):
        left = [number]

        def failing(*arguments: object, left: list[int] = left, **options: object) -> object:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(5, "Input/output error")
            return work(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing)
            try:
                done(folder, 1 + number, {"run": "r"}, files)
                failed = False
            except OSError:
                failed = True
        assert failed <= (left[0] <= 0)  # making a folder that is there may fail
        for item in store.found(folder):
            store.verify(item.path)
        assert not list(folder.glob(".tmp_*"))
        if left[0] > 0:
            return
    pytest.fail("the call never succeeded")
