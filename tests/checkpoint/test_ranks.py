"""Two processes under DistributedDataParallel (gloo): rank 0 writes, both agree, both go on exactly."""

from __future__ import annotations

import multiprocessing
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from hermitcrab.checkpoint import store
from tests.checkpoint import fsdp, rank

LAST: Final = 11
FORKS: Final = multiprocessing.get_context("forkserver")  # a rank is a process of its own that need not import torch
FORKS.set_forkserver_preload([rank.__name__, fsdp.__name__, "torch._dynamo"])  # which newer optimizers import


def together(
    folder: Path, last: int, *words: str, world: int = 2, main: Callable[..., None] = rank.main
) -> list[tuple[int | None, list[str], str]]:
    """Run the ranks; status, words and errors of each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as said:
        files = [Path(said, str(number)) for number in range(world)]
        ranks = [
            FORKS.Process(target=rank.run, args=(main, file, folder, number, world, port, last, *words), daemon=True)
            for number, file in enumerate(files)
        ]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join(120)
        return [
            (each.exitcode, file.with_suffix(".out").read_text().split(), file.with_suffix(".err").read_text())
            for each, file in zip(ranks, files, strict=True)
        ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What each rank comes to without interruption: weights and its next random numbers."""
    ended = together(tmp_path_factory.mktemp("whole"), LAST)
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert ended[0][1][1] == ended[1][1][1], "the ranks have the same weights"
    assert ended[0][1][2:] != ended[1][1][2:], "and random states of their own"
    return [words[1:] for _, words, _ in ended]


def test_killed_and_resumed(folder: Path, whole: list[list[str]]) -> None:
    """All ranks die after step 6, of which step 5 is saved; both begin at 6 and end as if nothing had been."""
    assert [status for status, _, _ in together(folder, 7, "die")] == [-9, -9]
    assert store.found(folder)[0].step == 5
    manifest = store.verify(store.found(folder)[0].path)
    assert (manifest["world_size"], manifest["samples"], manifest["exact"]) == (2, 24, True)
    ended = together(folder, LAST)
    assert [words[0] for _, words, _ in ended] == ["6", "6"], ended
    assert [words[1:] for _, words, _ in ended] == whole


def test_a_signal_to_one_rank_is_heeded_by_all(folder: Path) -> None:
    """USR2 reaches rank 1 only; rank 0 writes at that very step."""
    assert [status for status, _, _ in together(folder, 5, "signal", "die")] == [-9, -9]
    assert store.found(folder)[0].step == 4


def test_another_world_size(folder: Path) -> None:
    """The replicated state loads, the position counts samples of all; that it is not exact is said and recorded."""
    together(folder, 7, "die")
    ((status, words, said),) = together(folder, LAST, world=1)
    assert status == 0 and words[0] == "6", said
    assert "world_size was 2, is 1" in said
    manifest = store.verify(store.found(folder)[0].path)
    assert manifest["exact"] is False and "the ranks' random states are new ones" in manifest["inexact"]


def test_all_bad_stops_every_rank(folder: Path) -> None:
    """None waits for ever for the others."""
    together(folder, 4)
    for item in store.found(folder):
        (item.path / "state.pt").write_bytes(b"")
    assert [status for status, _, _ in together(folder, 6)] == [65, 65]
