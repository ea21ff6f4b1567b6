"""What a training tells its supervisor, and what the supervisor's variables tell a training."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hermitcrab import Checkpointer, status
from hermitcrab.checkpoint import store, telling
from hermitcrab.errors import UserError
from hermitcrab.status import Status

ROOT = Path(__file__).parents[2]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The status file that a supervisor names."""
    path = tmp_path / "status.json"
    monkeypatch.setenv("STATUS_FILE", str(path))
    monkeypatch.setenv("ATTEMPT", "3")
    return path


def make(folder: Path | None = None, **options: Any) -> Checkpointer:
    """A checkpointer that saves each step."""
    return Checkpointer(folder, model=nn.Linear(2, 2), **{"every_steps": 1, "rehearse": False, **options})


def until(path: Path, **fields: Any) -> Status:
    """Wait for the thread that writes; the status once it says so."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        said = status.read(path)
        if all(getattr(said, name) == value for name, value in fields.items()):
            return said
        time.sleep(0.01)
    pytest.fail(f"never {fields}: {status.read(path)}")


def test_a_life(folder: Path, told: Path) -> None:
    """Start, steps, commits, phases, end: each is told, with who tells it."""
    ckpt = make(folder, total=9, every_steps=2)
    assert ckpt.resume() == 0
    said = until(told, phase="", signals=("SIGTERM", "SIGUSR2"))
    assert (said.pid, said.attempt, said.total, said.folder) == (os.getpid(), 3, 9, str(folder))
    ckpt.step(0, loss=torch.tensor(0.5), grad_norm=2.0)
    said = until(told, step=0)
    assert (said.loss, said.grad_norm, said.committed, said.finished) == (0.5, 2.0, None, False)
    ckpt.step(1, loss=0.25)
    said = until(told, committed=1)
    assert (said.exact, said.checkpoint) == (False, str(folder / "step_00000001"))
    with ckpt.phase("evaluating"):
        until(told, phase="evaluating")
    until(told, phase="")
    ckpt.step(2)
    ckpt.close()
    said = status.read(told)
    assert (said.step, said.committed, said.finished, said.phase, said.signals) == (2, 2, True, "", ())
    again = make(folder)
    again.resume()
    until(told, committed=2, finished=False)
    again._drain()


def test_an_end_that_is_none(folder: Path, told: Path) -> None:
    """After an exception or SIGTERM nothing is finished."""

    def crash() -> None:
        with make(folder) as ckpt:
            ckpt.resume()
            ckpt.step(0)
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        crash()
    assert status.read(told).finished is False and status.read(told).step == 0
    ckpt = make(folder)
    ckpt.resume()
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit):
        ckpt.step(1)
    said = status.read(told)
    assert (said.finished, said.committed) == (False, 1)


@pytest.mark.parametrize("loss", [math.nan, torch.tensor(math.inf, requires_grad=True), torch.tensor(0.5).bfloat16()])
def test_any_loss(folder: Path, told: Path, loss: Any) -> None:
    """Told as the number it is."""
    ckpt = make(folder, every_steps=1000)
    ckpt.resume()
    ckpt.step(0, loss=loss, grad_norm=loss)
    said = until(told, step=0)
    assert str(said.loss) == str(said.grad_norm) == str(float(torch.as_tensor(loss).detach()))
    ckpt._drain()


@pytest.mark.parametrize("loss", [torch.zeros(2), "text", {"loss": 1.0}, torch.tensor(1j)])
def test_what_other_trainers_call_a_loss(told: Path, loss: Any) -> None:
    """An adapter cannot choose: what is no number is not told, all else is."""
    teller = telling.from_environment()
    teller.step(3, loss, 0.5)
    said = until(told, step=3)
    assert (said.loss, said.grad_norm) == (None, 0.5)
    teller.close()


@pytest.mark.usefixtures("told")
def test_a_hung_or_full_disk_is_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loop goes on, with nothing said; at most a moment at the end."""

    def hang(*_: Any) -> None:
        time.sleep(0.5)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(status, "write", hang)
    ckpt = make(folder, every_steps=10**6)
    ckpt.resume()
    slowest = 0.0
    for step in range(2000):
        began = time.perf_counter()
        ckpt.step(step, loss=0.5)
        slowest = max(slowest, time.perf_counter() - began)
    ckpt.close()
    assert slowest < 0.25
    assert "No space" not in capsys.readouterr().err


@pytest.mark.usefixtures("told")
def test_steps_are_told_about_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not each of thousands; the newest of them, though, is."""
    written: list[Status] = []
    monkeypatch.setattr(status, "write", lambda _, said: written.append(said))
    monkeypatch.setattr(telling, "EVERY_S", 0.2)
    teller = telling.from_environment()
    began = time.monotonic()
    while time.monotonic() - began < 0.5:
        teller.step(len(written), 1.0)
        time.sleep(0.001)
    teller.step(10**6)
    time.sleep(0.3)
    assert 3 <= len(written) <= 5 and written[-1].step == 10**6
    teller.close()


def test_no_supervisor_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written, no thread runs."""
    monkeypatch.delenv("STATUS_FILE", raising=False)
    ckpt = make(folder)
    ckpt.resume()
    ckpt.step(0)
    assert ckpt._phases.teller._thread is None
    ckpt.close()


def test_the_folder_of_the_supervisor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CKPT_DIR is the folder when none is given; neither is an error that says so."""
    monkeypatch.setenv("CKPT_DIR", str(folder))
    assert make().folder == folder
    monkeypatch.delenv("CKPT_DIR")
    with pytest.raises(UserError, match="give Checkpointer a folder, or set CKPT_DIR"):
        make()


def test_what_resume_says(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """auto, none, or the path of one checkpoint, here or elsewhere; an argument of the program wins."""
    with make(folder, keep=5) as ckpt:
        for step in range(ckpt.resume(), 4):
            ckpt.step(step)
            ckpt.wait()
    for said, first in (("auto", 4), ("", 4), ("none", 0), (str(folder / "step_00000001"), 2)):
        monkeypatch.setenv("RESUME", said)
        assert make(folder).resume() == first, said
        assert make(tmp_path / "other").resume() == (2 if first == 2 else 0)
    assert make(folder).resume(step=2) == 3
    assert make(folder).resume(fresh=True) == 0
    monkeypatch.setenv("RESUME", str(folder / "step_00000077"))
    with pytest.raises(UserError, match=r"step_00000077: manifest\.json"):
        make(folder).resume()


PROGRAM = """
import os, sys, signal, torch
from hermitcrab import Checkpointer
ckpt = Checkpointer(model=torch.nn.Linear(2, 2), every_steps=2, rehearse=False)
start = ckpt.resume()
print("start", start, flush=True)
for step in range(start, start + 4):
    ckpt.step(step)
    ckpt.wait()
    if sys.argv[1] == "die" and step == start:
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "interrupt" and step == start:
        raise KeyboardInterrupt
ckpt.close()
"""


def program(folder: Path, how: str) -> tuple[str, str]:
    """Run a training that ends in a certain way; what it printed and said."""
    variables = {**os.environ, "CKPT_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-B", "-c", PROGRAM, how]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    return done.stdout.strip(), done.stderr


def test_one_that_kills_the_program_twice_is_stepped_over(folder: Path) -> None:
    """End to end: sound, but both starts from it died before the next commit; the third takes the one before."""
    assert program(folder, "finish")[0] == "start 0"
    assert [item.step for item in store.found(folder)] == [3, 1]
    for _ in range(2):  # whoever presses Ctrl-C says nothing against a checkpoint
        assert program(folder, "interrupt")[0] == "start 4"
    assert program(folder, "die")[0] == "start 4"
    assert program(folder, "die")[0] == "start 4"
    out, said = program(folder, "die")
    assert out == "start 2" and "step_00000003 is not used: it is sound, but the program died 2 times" in said
    assert (folder / "bad/step_00000003.txt").exists()
