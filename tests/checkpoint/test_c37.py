"""Case C37, a training whose newest checkpoint is cut, on a disk that is full: every row of it, in our own format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
import torch
from torch import nn

from hermitcrab import Checkpointer, NoGoodCheckpointError, status
from hermitcrab.checkpoint import saver, store
from hermitcrab.errors import UserError

LISTING: Final = (Path(__file__).parents[1] / "cases/C37.txt").read_text()
SIZES: Final = {int(step): int(size) for size, step in re.findall(r"root +(\d+) .* step_(\d+)\.pt", LISTING)}


@pytest.fixture
def situation(folder: Path) -> Path:
    """As in the listing: three checkpoints, the newest cut, an empty latest.tmp. Its model holds the step's number."""
    newest, good, _ = sorted(SIZES, reverse=True)
    model = nn.Linear(64, 64)
    with Checkpointer(folder, model=model, every_steps=1, keep=3, rehearse=False) as ckpt:
        ckpt.resume()
        for step in sorted(SIZES):
            nn.init.constant_(model.weight, step)
            ckpt.step(step)
            ckpt.wait()
    state = folder / f"step_{newest:08d}" / "state.pt"
    data = state.read_bytes()
    state.write_bytes(data[: len(data) * SIZES[newest] // SIZES[good]])
    (folder / "latest.tmp").write_bytes(b"")
    return folder


def go_on(folder: Path) -> tuple[Checkpointer, nn.Linear, int]:
    """Start the program again."""
    model = nn.Linear(64, 64)
    ckpt = Checkpointer(folder, model=model, every_steps=1, rehearse=False)
    return ckpt, model, ckpt.resume()


def test_the_listing_is_the_cases() -> None:
    """One cut to a fifth, two whole ones."""
    assert SIZES == {12000: 218103808, 11000: 1073809523, 10000: 1073809523}


def test_it_goes_on_at_the_one_before(situation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest is named with what is wrong with it; latest.tmp is nothing."""
    _, model, start = go_on(situation)
    assert start == 11001 and model.weight[0, 0].item() == 11000
    said = capsys.readouterr().err
    assert "WARNING: step_00012000 is not used: state.pt has " in said and "resumed from step_00011000" in said
    assert (situation / "latest.tmp").read_bytes() == b"" and (situation / "bad/step_00012000").is_dir()


def test_nothing_good_stops_unless_told(situation: Path) -> None:
    """With a status of its own, and never silently from 0."""
    for item in store.found(situation):
        (item.path / "state.pt").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(NoGoodCheckpointError) as caught:
            go_on(situation)
        assert caught.value.code == 65
    assert Checkpointer(situation, model=nn.Linear(64, 64)).resume(fresh=True) == 0


def test_a_full_disk(situation: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Training goes on, the old ones survive, and the end is no success: nothing may power off for it."""
    told = tmp_path / "status.json"
    monkeypatch.setenv("STATUS_FILE", str(told))
    monkeypatch.setattr(saver, "_free", lambda _: 0)
    ckpt, model, start = go_on(situation)
    for step in range(start, start + 3):
        nn.init.constant_(model.weight, step)
        ckpt.step(step)
        ckpt.wait()
    with pytest.raises(UserError, match=r"the last save failed: .* the newest checkpoint is of step 11000"):
        ckpt.close()
    assert status.read(told).finished is False
    assert [item.step for item in store.found(situation)] == [11000, 10000]
    assert all(store.reason_of(item.path) is None for item in store.found(situation))
    monkeypatch.undo()
    _, model, again = go_on(situation)
    assert again == 11001 and torch.equal(model.weight, torch.full((64, 64), 11000.0))
