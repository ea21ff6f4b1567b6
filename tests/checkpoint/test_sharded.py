"""A model spread over two processes (FSDP2 on gloo): saved in parts, resumed exactly, loaded by another number."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import torch
from torch import nn

from hermitcrab.checkpoint import sharded, store
from hermitcrab.errors import UserError
from tests.checkpoint import fsdp, test_ranks

LAST: Final = 11
pytestmark = pytest.mark.skipif(fsdp.fully_shard is None, reason="this torch has no fully_shard")
together = partial(test_ranks.together, main=fsdp.main)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What it comes to without interruption."""
    ended = together(tmp_path_factory.mktemp("whole"), LAST)
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert ended[0][1][1] == ended[1][1][1]
    return [words[1:] for _, words, _ in ended]


def test_killed_resumed_and_resharded(folder: Path, whole: list[list[str]]) -> None:
    """Both die after step 6, go on from 5, and end as if nothing had been; then one process loads it all."""
    assert [status for status, _, _ in together(folder, 7, "die")] == [-9, -9]
    newest = store.found(folder)[0]
    manifest = store.verify(newest.path)
    assert newest.step == 5 and manifest["exact"] is True
    parts = sorted(name for name in manifest["files"] if name.endswith(".distcp"))
    assert parts == ["sharded/__0_0.distcp", "sharded/__1_0.distcp"] and "sharded/.metadata" in manifest["files"]
    ended = together(folder, LAST)
    assert [words[0] for _, words, _ in ended] == ["6", "6"], ended
    assert [words[1:] for _, words, _ in ended] == whole
    ((status, words, said),) = together(folder, LAST, world=1)
    assert status == 0 and words[0] == str(LAST), said
    assert words[1] == whole[0][0], "the same weights and moments, put together"
    part = store.found(folder)[0].path / parts[1]
    part.write_bytes(part.read_bytes()[:-1])
    assert [words[0] for _, words, _ in together(folder, LAST)] == ["9", "9"], "one rank's part is damaged"


def test_a_disk_that_is_full_on_one_rank_stops_none(folder: Path) -> None:
    """The save fails for both, both go on training, nothing half-written stays."""
    ended = together(folder, 8, "full", "die")
    assert [status for status, _, _ in ended] == [-9, -9], ended
    assert "step 5 is NOT saved: File too large" in ended[0][2] + ended[1][2]
    assert [item.step for item in store.found(folder)] == [2] and not list(folder.glob(".tmp*"))


def test_nan_on_one_rank_is_not_committed(folder: Path) -> None:
    """Both stop, and say where it is."""
    ended = together(folder, 6, "nan")
    assert all(status == 1 and "of rank 1 holds NaN" in said for status, _, said in ended), ended
    assert [item.step for item in store.found(folder)] == [2]


def test_an_older_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, before anything is trained."""

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UserError, match="sharded state needs a newer torch than"):
        sharded.state_of({})


def test_an_optimizer_of_no_model_is_refused() -> None:
    """Its moments have no names without one."""
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)
    with pytest.raises(UserError, match="tensors are not all of one model"):
        sharded.state_of({"model": nn.Linear(1, 1), "optimizer": optimizer})
