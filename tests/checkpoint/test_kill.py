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

import torch

from hermitcrab import Checkpointer
from hermitcrab.checkpoint import choice, store
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


class Victim:
    """A training that lives as often as is asked."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-B", "-m", "tests.checkpoint.victim", str(folder)]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        self.program = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=nowhere, text=True)

    def live(self) -> list[str]:
        """Begin a life; its pid and first step."""
        print("live", file=self.program.stdin, flush=True)
        return self.say().split()

    def say(self) -> str:
        """The next line."""
        assert self.program.stdout
        return self.program.stdout.readline().strip()

    def end(self) -> None:
        """No life any more."""
        assert self.program.stdin and self.program.stdout
        self.program.stdin.close()
        self.program.wait()
        self.program.stdout.close()


def test_killed_at_random_moments(folder: Path) -> None:
    """200 times SIGKILL from outside: no step that was said to be safe is lost, none is torn, no orphan stays."""
    dice, newest = random.Random(5), -1
    victim = Victim(folder)
    for _ in range(200):
        pid, start = victim.live()
        assert int(start) >= newest + 1
        newest = int(victim.say())  # a start that gets nowhere twice would step back
        time.sleep(dice.random() * 0.03)
        os.kill(int(pid), signal.SIGKILL)
        newest = [newest, *map(int, iter(victim.say, "dead"))][-1]
    victim.end()
    found = store.found(folder)
    assert found[0].step >= newest and len(found) >= 2
    assert all(store.reason_of(item.path) is None for item in found)
    choice.sweep(folder, lambda _: None)
    assert not list(folder.glob(".*")) and not (folder / "bad").exists()


def test_the_oracle_sees_a_torn_state(folder: Path) -> None:
    """Planted: the state of another step under this one's name, with all sums right."""
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    with Checkpointer(folder, model=model, optimizer=optimizer) as ckpt:
        ckpt.resume()
        ckpt.step(0)
    victim = Victim(folder)
    assert victim.live() == ["torn"]
    os.kill(int(victim.say().split()[0]), signal.SIGKILL)
    victim.end()
