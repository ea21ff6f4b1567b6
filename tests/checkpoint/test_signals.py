"""More than one signal: the second does not disturb the save, the third ends the program at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from hermitcrab.checkpoint import store
from hermitcrab.checkpoint.signals import Signals

ROOT: Final = Path(__file__).parents[2]
# The save takes until the file "go" is there; it says when it is under way, and how often it was begun.
PROGRAM: Final = """
import os, signal, sys, time, torch
from hermitcrab import Checkpointer
from hermitcrab.checkpoint import commit

folder, go = sys.argv[1:]
write = commit.write

def slow(*words):
    print("saving", flush=True)
    while not os.path.exists(go):
        time.sleep(0.01)
    return write(*words)

commit.write = slow
ckpt = Checkpointer(folder, model=torch.nn.Linear(2, 2), every_steps=10**6, rehearse=False)
ckpt.resume()
os.kill(os.getpid(), signal.SIGTERM)
ckpt.step(0)
print("not reached", flush=True)
"""


@pytest.mark.parametrize("often", [False, True])
def test_again_and_again(tmp_path: Path, often: bool) -> None:
    """One save, begun once, though a second SIGTERM comes; whoever goes on sending them ends it at once."""
    command = [sys.executable, "-B", "-c", PROGRAM, str(tmp_path / "run"), str(tmp_path / "go")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout and program.stdout.readline() == "saving\n"
        program.terminate()
        while often and program.poll() is None:
            program.terminate()
            time.sleep(0.01)
        (tmp_path / "go").touch()
        said = program.stdout.read()
    assert said == ""
    assert program.returncode == (-signal.SIGTERM if often else 143)
    assert [item.step for item in store.found(tmp_path / "run")] == ([] if often else [0])


def test_it_is_the_third(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the second: many a launcher sends two."""
    ended: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: ended.append((pid, number)))
    signals = Signals()
    signals.install()
    for count in (0, 0, 1):
        signals._caught(signal.SIGTERM, None)
        assert len(ended) == count and signals.save and signals.stop
    assert ended == [(os.getpid(), signal.SIGTERM)]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
