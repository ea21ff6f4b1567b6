"""What the four lines promise besides exactness: full disks, signals, NaN, wrappers, damaged and deadly checkpoints."""

from __future__ import annotations

import copy
import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np  # type: ignore[import-not-found]
import pytest
import torch
from torch import nn

from hermitcrab import Checkpointer, NoGoodCheckpointError, ResumableSampler
from hermitcrab.checkpoint import commit, saver, store
from hermitcrab.checkpoint.saver import NonFiniteError
from hermitcrab.checkpoint.snapshot import Snapshot
from hermitcrab.checkpoint.tee import Tee
from hermitcrab.errors import UserError
from tests.checkpoint.loop import flat

ROOT = Path(__file__).parents[2]


def make(folder: Path, model: Any = None, **options: Any) -> Checkpointer:
    """A checkpointer that saves each step and waits for nothing."""
    return Checkpointer(
        folder, model=nn.Linear(2, 2) if model is None else model, **{"every_steps": 1, "rehearse": False, **options}
    )


def steps(folder: Path) -> list[int]:
    """The steps with a good checkpoint, oldest first."""
    return sorted(item.step for item in store.found(folder) if store.reason_of(item.path) is None)


def train(folder: Path, last: int, **options: Any) -> Checkpointer:
    """Do steps up to ``last``, from where it was, and close."""
    with make(folder, **options) as ckpt:
        for step in range(ckpt.resume(), last):
            ckpt.step(step, loss=float(step))
    return ckpt


def test_four_lines(folder: Path) -> None:
    """0 on a first run, else one after the newest; the last step is saved by close()."""
    model = nn.Linear(2, 2)
    ckpt = Checkpointer(folder, model=model)
    assert ckpt.resume() == 0
    for step in range(3):
        ckpt.step(step, loss=torch.tensor(1.0))
    ckpt.close()
    assert steps(folder) == [2] and ckpt.saved == 2
    other = nn.Linear(2, 2)
    assert Checkpointer(folder, model=other).resume() == 3
    assert torch.equal(other.weight, model.weight)


def test_state_loads_with_weights_only(folder: Path) -> None:
    """By torch alone, without hermitcrab."""
    train(folder, 2)
    state = torch.load(folder / "step_00000001/state.pt", weights_only=True)
    assert sorted(state) == ["model", "rng"]


def test_rehearsal_measures_and_leaves_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After the first step one knows size, time and what the disk holds; nothing is committed by it."""
    ckpt = Checkpointer(folder, model=nn.Linear(2, 2))
    ckpt.resume()
    ckpt.step(0)
    ckpt.wait()
    assert "one checkpoint is" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == []


def test_a_copy_is_saved_not_what_comes_later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors may change as soon as step() is back, before anything is written."""
    model, extra, may = nn.Linear(2, 2), Extra(), threading.Event()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    sampler = ResumableSampler(10)
    write = commit.write
    monkeypatch.setattr(commit, "write", lambda *words: may.wait(10) and write(*words))
    ckpt = make(folder, model, optimizer=optimizer, extra=extra, sampler=sampler)
    ckpt.resume()
    state: Any = [model.state_dict(), optimizer.state_dict(), extra.state_dict(), torch.get_rng_state()]
    before = "".join(map(str, flat(copy.deepcopy(state))))
    ckpt.step(0)
    nn.init.zeros_(model.weight)
    optimizer.step()
    extra.change()
    sampler.advance(3)
    torch.rand(1)
    may.set()
    ckpt.close()
    state = saver.load(folder / "step_00000000")
    state["extra"]["array"] = state["extra"]["array"].numpy()
    after = [state["model"], state["optimizer"], state["extra"], state["rng"][0]["torch"]]
    assert "".join(map(str, flat(after))) == before and state["sampler"]["samples"] == 1


class Extra:
    """A part whose state is its own containers, as users write them."""

    def __init__(self) -> None:
        self.state = {"list": [1, [2]], "array": np.arange(3.0), "tensor": torch.arange(3.0), "dict": {"a": 1}}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state

    def change(self) -> None:
        """All of it, in place."""
        self.state["list"][1][0] = 9
        self.state["array"][0] = 9
        self.state["tensor"].add_(9)
        self.state["dict"]["a"] = 9


def test_one_in_flight(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By time, a save under way lets the next one wait for a later step; the training does not stop."""
    may = threading.Event()
    write = commit.write
    monkeypatch.setattr(commit, "write", lambda *words: may.wait(10) and write(*words))
    ckpt = make(folder, every_steps=None, every_minutes=0.0)
    ckpt.resume()
    for step in range(5):
        ckpt.step(step)
    may.set()
    ckpt.wait()
    assert steps(folder) == [0]
    ckpt.close()
    assert steps(folder) == [0, 4]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG])
def test_a_disk_that_fails_stops_no_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    """Old ones stay, it is said loudly, it is tried again later, nothing half-written stays."""
    write = Tee._pass

    def failing(tee: Tee, data: Any) -> int:
        if ckpt._done in {2, 3}:
            raise OSError(code, os.strerror(code))
        return write(tee, data)

    monkeypatch.setattr(Tee, "_pass", failing)
    ckpt = make(folder)
    ckpt.resume()
    for step in range(4):
        ckpt.step(step)
        ckpt.wait()
    assert steps(folder) == [0, 1] and not list(folder.glob(".tmp*"))
    assert "step 2 is NOT saved: " + os.strerror(code) in capsys.readouterr().err
    with pytest.raises(UserError, match="step 1"):
        ckpt.save()
    ckpt._saver.clock.last -= 1000
    ckpt.step(4)
    ckpt.wait()
    assert steps(folder) == [1, 4]
    ckpt.close()


def test_close_says_that_the_last_steps_are_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An end without a saved end is no success: power-off must not follow it."""
    monkeypatch.setattr(saver, "_free", lambda _: 0)
    ckpt = make(folder)
    ckpt.resume()
    ckpt.step(0)
    with pytest.raises(UserError, match="the last save failed"):
        ckpt.close()


PROGRAM = """
import resource, signal, sys, torch
from hermitcrab import Checkpointer
model = torch.nn.Linear(512, 512)
ckpt = Checkpointer(sys.argv[1], model=model, every_steps=1, rehearse=False)
start = ckpt.resume()
for step in range(start, start + 3):
    if step == start + 1 and "full" in sys.argv:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
    ckpt.step(step)
    ckpt.wait()
print("trained to", step)
if "term" in sys.argv:
    import os
    os.kill(os.getpid(), signal.SIGTERM)
    ckpt.step(step + 1)
    print("not reached")
ckpt.close()
"""


def program(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program above."""
    command = [sys.executable, "-B", "-c", PROGRAM, str(folder), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_file_that_cannot_grow(folder: Path) -> None:
    """The real thing, through torch's own writer: the old one survives, training goes on, the end says so."""
    done = program(folder, "full")
    assert "trained to 2" in done.stdout and done.returncode == 1, done.stderr
    assert "step 2 is NOT saved: File too large" in done.stderr
    assert steps(folder) == [0] and not list(folder.glob(".tmp*"))


def test_sigterm_saves_and_ends_as_sigterm_does(folder: Path) -> None:
    """At the next step boundary, with the status that a shell shows for SIGTERM."""
    done = program(folder, "term")
    assert done.returncode == 143 and "not reached" not in done.stdout
    assert steps(folder) == [2, 3]


def test_all_bad_has_an_exit_status_of_its_own(folder: Path) -> None:
    """Uncaught, without a traceback, and never a start at 0."""
    assert program(folder).returncode == 0
    for item in store.found(folder):
        (item.path / "state.pt").write_bytes(b"")
    done = program(folder)
    assert done.returncode == 65 and "Traceback" not in done.stderr and "no checkpoint in" in done.stderr
    with pytest.raises(NoGoodCheckpointError):
        make(folder).resume()
    assert make(folder).resume(fresh=True) == 0


def test_usr2_saves_and_goes_on(folder: Path) -> None:
    """One save at the next boundary, none in the handler; the signal is given back at the end."""
    before = signal.getsignal(signal.SIGUSR2)
    ckpt = make(folder, every_steps=1000)
    ckpt.resume()
    ckpt.step(0)
    os.kill(os.getpid(), signal.SIGUSR2)
    assert steps(folder) == []
    ckpt.step(1)
    assert steps(folder) == [1]
    ckpt.step(2)
    assert steps(folder) == [1]
    ckpt.close()
    assert signal.getsignal(signal.SIGUSR2) == before


def test_a_handler_of_the_program_is_called_too(folder: Path) -> None:
    """Whoever catches SIGTERM decides when to end; the save comes all the same."""
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    try:
        ckpt = make(folder, every_steps=1000)
        ckpt.resume()
        os.kill(os.getpid(), signal.SIGTERM)
        ckpt.step(0)
        assert got == [signal.SIGTERM] and steps(folder) == [0]
        ckpt.close()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_weights_that_are_not_finite_are_not_committed(folder: Path) -> None:
    """The error comes at the next call, and names tensor and last good step; unless told otherwise."""
    model = nn.Linear(2, 2)
    ckpt = make(folder, model)
    ckpt.resume()
    ckpt.step(0)
    ckpt.wait()
    nn.init.constant_(model.bias, float("nan"))
    ckpt.step(1)
    with pytest.raises(NonFiniteError, match=r"model\.bias .* of step 0"):
        ckpt.wait()
    assert steps(folder) == [0]
    allowed = make(folder, model, allow_non_finite=True)
    allowed.resume()
    nn.init.constant_(model.bias, float("nan"))
    allowed.step(1, loss=float("nan"))
    allowed.close()
    assert steps(folder) == [0, 1]


def test_a_loss_that_is_not_finite_is_not_saved(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may pass, so the training goes on; the next step with a finite one is saved."""
    ckpt = make(folder)
    ckpt.resume()
    ckpt.step(0, loss=torch.tensor(float("inf")))
    assert "step 0 is not saved: its loss is inf" in capsys.readouterr().err
    with pytest.raises(UserError, match="loss is not finite"):
        ckpt.save()
    ckpt.step(1, loss=1.0)
    ckpt.close()
    assert steps(folder) == [1]


def compiled(model: Any) -> Any:
    """Wrapped as by torch.compile; the backend needs no compiler."""
    try:
        return torch.compile(model, backend="eager")
    except RuntimeError as error:
        pytest.skip(f"this torch compiles nothing on this Python: {error}")


WRAPPERS: dict[str, Any] = {
    "none": lambda model: model,
    "module.": nn.DataParallel,
    "_orig_mod.": compiled,
    "both": lambda model: compiled(nn.DataParallel(model)),
    "other way round": lambda model: nn.DataParallel(compiled(model)),
}


@pytest.mark.parametrize("after", WRAPPERS)
@pytest.mark.parametrize("before", WRAPPERS)
def test_wrappers_come_and_go(tmp_path: Path, before: str, after: str) -> None:
    """Saved under one wrapper, loaded under another; the names on disk are the model's own."""
    first, second = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    train(tmp_path, 1, model=WRAPPERS[before](first))
    assert list(saver.load(tmp_path / "step_00000000")["model"]) == list(first.state_dict())
    make(tmp_path, WRAPPERS[after](second)).resume()
    assert torch.equal(first[1].weight, second[1].weight)


def test_parts_are_checked_at_once(folder: Path) -> None:
    """What has no state is refused by name; None is no part; lists of parts are parts."""
    with pytest.raises(UserError, match=r"model=…\) is a int without state_dict"):
        make(folder, 3)
    assert "scaler" not in make(folder, scaler=None)._parts
    pair = [nn.Linear(1, 1), nn.Linear(1, 1)]
    train(folder, 1, critics=pair)
    again = [nn.Linear(1, 1), nn.Linear(1, 1)]
    make(folder, critics=again).resume()
    assert torch.equal(again[1].weight, pair[1].weight)
    with pytest.raises(UserError, match="has no optimizer; it has model, critics"):
        make(folder, optimizer=torch.optim.SGD(pair[0].parameters(), 0.1)).resume()


class OldScheduler(torch.optim.lr_scheduler.StepLR):  # type: ignore[misc] # torch is untyped where it is not installed
    """Lists a function in its state, as OneCycleLR did until torch made a name of it."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "anneal_func": max, "_schedulers": [{"anneal_func": max, "x": 1}]}


def test_functions_of_a_scheduler_are_left_out(folder: Path) -> None:
    """The new scheduler has them; everything else of it is saved."""
    scheduler = OldScheduler(torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1), 3)
    train(folder, 1, scheduler=scheduler)
    state = saver.load(folder / "step_00000000")["scheduler"]
    assert "anneal_func" not in state and state["_schedulers"] == [{"x": 1}] and state["step_size"] == 3


def test_resume_comes_first(folder: Path) -> None:
    """Else the first save might push out what is there."""
    with pytest.raises(UserError, match="resume"):
        make(folder).step(0)


def test_an_explicit_step_never_falls_back(folder: Path) -> None:
    """It loads that one or says what is wrong with it."""
    train(folder, 4, keep=4)
    assert make(folder).resume(step=1) == 2
    (folder / "step_00000001/state.pt").write_bytes(b"")
    with pytest.raises(UserError, match=r"step_00000001: state\.pt has 0 bytes"):
        make(folder).resume(step=1)
    with pytest.raises(UserError, match="there are 3, 2, 1, 0"):
        make(folder).resume(step=9)


def test_two_runs_in_one_folder_must_be_told_apart(folder: Path) -> None:
    """Steps of different runs say nothing about each other."""
    train(folder, 3, run="a")
    train(folder, 5, run="b", keep=3)
    with pytest.raises(UserError, match=r"2 runs; choose .*: a, b"):
        make(folder).resume()
    assert make(folder, run="a").resume() == 3
    assert make(folder, run="b").resume() == 5


def test_metrics_and_best(folder: Path) -> None:
    """The best by a metric outlives the newest two."""
    with make(folder, best="+accuracy") as ckpt:
        for step in range(ckpt.resume(), 6):
            ckpt.step(step, loss=1.0, accuracy=[0.1, 0.9, 0.2, 0.3, 0.4, 0.5][step])
            ckpt.wait()
    assert steps(folder) == [1, 4, 5]
    assert store.verify(folder / "step_00000001")["metrics"] == {"loss": 1.0, "accuracy": 0.9}


def test_too_little_memory_saves_while_the_training_waits(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second copy would have the container killed."""
    monkeypatch.setattr(Snapshot, "fits", lambda *_: False)
    ckpt = make(folder)
    ckpt.resume()
    ckpt.step(0)
    assert steps(folder) == [0] and "too little memory" in capsys.readouterr().err
    ckpt.close()


def test_without_a_sampler_it_says_that_it_is_not_exact(folder: Path) -> None:
    """The manifest names what cannot be."""
    train(folder, 1)
    manifest = store.verify(folder / "step_00000000")
    assert manifest["exact"] is False and "position in the data" in manifest["inexact"][0]


def test_other_data_is_refused(folder: Path) -> None:
    """A position in one data set is none in another."""
    train(folder, 1, sampler=ResumableSampler(100, batch_size=4))
    with pytest.raises(UserError, match="100 samples, this data set has 90"):
        make(folder, sampler=ResumableSampler(90, batch_size=4)).resume()


def test_an_end_with_a_loss_that_is_not_finite_is_no_success(folder: Path) -> None:
    """close() does not let a lost last step pass."""
    ckpt = make(folder)
    ckpt.resume()
    ckpt.step(0, loss=float("nan"))
    with pytest.raises(UserError, match="step 0 is not saved: its loss is not finite"):
        ckpt.close()


def test_an_exception_on_its_way_saves_nothing(folder: Path) -> None:
    """The state may be in the middle of a step."""

    def crash() -> None:
        with make(folder, every_steps=1000) as ckpt:
            ckpt.resume()
            ckpt.step(0)
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        crash()
    assert steps(folder) == []


def test_importing_needs_no_torch() -> None:
    """`import hermitcrab` and `crab --help` stay fast; a wrong name is an AttributeError."""
    code = "import sys, hermitcrab, hermitcrab.checkpoint.ckpt; assert 'torch' not in sys.modules; hermitcrab.No"
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "AttributeError: module 'hermitcrab' has no attribute 'No'" in done.stderr
