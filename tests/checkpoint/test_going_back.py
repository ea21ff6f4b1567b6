"""Whoever goes back to an earlier step, or begins where resume() did not say, is not left with another state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np  # type: ignore[import-not-found]
import pytest
import torch
from torch import nn

from hermitcrab import Checkpointer, ResumableSampler
from hermitcrab.checkpoint import saver, store
from hermitcrab.errors import UserError


def run(folder: Path, last: int, value: float, *, back: int | None = None, **options: Any) -> Checkpointer:
    """Train up to a step: each fills the model with the step's number plus ``value``."""
    model = nn.Linear(1, 1)
    with Checkpointer(folder, model=model, every_steps=1, rehearse=False, **options) as ckpt:
        for step in range(ckpt.resume(step=back), last):
            nn.init.constant_(model.weight, step + value)
            ckpt.step(step)
            ckpt.wait()
    return ckpt


def weight(path: Path) -> float:
    """What a checkpoint holds."""
    return float(saver.load(path)["model"]["weight"])


def there(folder: Path) -> dict[int, float]:
    """The good checkpoints, and what they hold."""
    return {item.step: weight(item.path) for item in store.found(folder) if store.reason_of(item.path) is None}


def test_a_run_that_goes_back_goes_on_from_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not to be pushed out by what it left, whose steps it takes; that is set aside, and nothing is deleted."""
    run(folder, 8, 0.0, keep=8)
    run(folder, 5, 0.5, back=2)
    assert there(folder) == {4: 4.5, 3: 3.5}
    assert "step_00000007 is not used: the run went back to step 2 and on from there" in capsys.readouterr().err
    assert {item.step: weight(item.path) for item in store.found(folder / "bad")} == {
        step: float(step) for step in range(3, 8)
    }
    run(folder, 6, 0.5)
    assert there(folder) == {5: 5.5, 4: 4.5}


def test_looking_at_an_earlier_step_changes_nothing(folder: Path) -> None:
    """As long as no step is done from there."""
    run(folder, 4, 0.0, keep=4)
    run(folder, 2, 0.5, back=1)
    assert there(folder) == {step: float(step) for step in range(4)}


def test_going_back_leaves_other_runs_alone(folder: Path) -> None:
    """Theirs are other steps."""
    run(folder, 6, 0.0, run="a")
    run(folder, 4, 0.0, run="b", keep=4)
    run(folder, 3, 0.5, run="b", back=0, keep=4)
    assert there(folder) == {5: 5.0, 4: 4.0, 2: 2.5, 1: 1.5, 0: 0.0}


def test_a_path_to_go_back_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RESUME says it for a program that asks for nothing."""
    run(folder, 4, 0.0, keep=4)
    monkeypatch.setenv("RESUME", str(folder / "step_00000001"))
    run(folder, 3, 0.5)
    assert there(folder) == {2: 2.5, 1: 1.0}


def test_steps_begin_where_resume_says(folder: Path) -> None:
    """A loop that begins at 0 again would train on a late state, and not be saved."""
    run(folder, 4, 0.0)
    ckpt = Checkpointer(folder, model=nn.Linear(1, 1), every_steps=1, rehearse=False)
    assert ckpt.resume() == 4
    with pytest.raises(UserError, match="step 3 is done, the next is 4: begin at what resume"):
        ckpt.step(3)
    ckpt.step(4)
    with pytest.raises(UserError, match="step 4 is done, the next is 5"):
        ckpt.step(4)
    ckpt.step(9)  # who counts in fives may
    ckpt.close()
    assert ckpt.saved == 9
    with pytest.raises(UserError, match="step -1 is done, the next is 0"):
        begun(folder / "other").step(-1)


def begun(folder: Path, **options: Any) -> Checkpointer:
    """One that has resumed."""
    ckpt = Checkpointer(folder, model=nn.Linear(1, 1), **{"every_steps": 1, "rehearse": False, **options})
    ckpt.resume()
    return ckpt


@pytest.mark.parametrize("step", [np.int64(3), torch.tensor(3)])
def test_a_step_of_another_kind(folder: Path, step: Any) -> None:
    """Its number counts; the manifest is JSON."""
    ckpt = begun(folder)
    ckpt.step(step)
    ckpt.close()
    assert store.verify(folder / "step_00000003")["step"] == 3
    with pytest.raises(TypeError):
        begun(folder).step(4.0)


def test_resume_is_called_once(folder: Path) -> None:
    """Each call counts as a start from that checkpoint, and two that got nowhere would condemn it."""
    ckpt = begun(folder)
    with pytest.raises(UserError, match=r"resume\(\) was called before"):
        ckpt.resume()


@pytest.mark.parametrize("saved", [0, 2])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["iter", "peek", "batches"])
def test_a_loader_begun_before_resume_is_refused(folder: Path, saved: int, workers: int, how: str) -> None:
    """It would train on the first batches again in silence; at the first start already, not on the day of a resume."""
    sampler, loader, ckpt = parts(folder, workers)
    if saved:
        start, batches = ckpt.resume(), iter(loader)
        for step in range(start, saved):
            next(batches)
            ckpt.step(step)
        ckpt.close()
        sampler, loader, ckpt = parts(folder, workers)
    batches = sampler.batches(loader) if how == "batches" else iter(loader)
    if how != "iter":
        next(batches)
    assert ckpt.resume() == saved
    with pytest.raises(UserError, match="the loader was begun before resume"):
        train_on(batches, ckpt, saved)
    assert next(iter(loader)).tolist() == sampler.order(0)[3 * sampler.batch :][:3].tolist()


def train_on(batches: Any, ckpt: Checkpointer, step: int) -> None:
    """Do one step."""
    next(batches)
    ckpt.step(step)


def parts(folder: Path, workers: int) -> tuple[ResumableSampler, Any, Checkpointer]:
    """What a program makes before it resumes."""
    sampler = ResumableSampler(12, batch_size=3, by_index=True)
    loader = torch.utils.data.DataLoader(torch.arange(12), batch_sampler=sampler, num_workers=workers)
    ckpt = Checkpointer(folder, model=nn.Linear(1, 1), sampler=sampler, every_steps=1, rehearse=False)
    return sampler, loader, ckpt


def test_a_loader_that_was_only_looked_through_is_none(folder: Path) -> None:
    """A pass for statistics before, then another iterator: nothing is wrong."""
    for last in (2, 4):
        sampler = ResumableSampler(12, batch_size=3, by_index=True)
        loader = torch.utils.data.DataLoader(torch.arange(12), batch_sampler=sampler)
        assert sum(int(batch.sum()) for batch in loader) == sum(range(12))
        with Checkpointer(folder, model=nn.Linear(1, 1), sampler=sampler, every_steps=1, rehearse=False) as ckpt:
            start, seen = ckpt.resume(), []
            batches = iter(loader)
            for step in range(start, last):
                seen.append(next(batches).tolist())
                ckpt.step(step)
        assert seen == sampler.order(0).view(4, 3)[start:last].tolist()
