"""The trainings to copy: killed and resumed, they end with the very weights of an undisturbed run."""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Final

import pytest
import torch

from hermitcrab import status
from hermitcrab.checkpoint import store
from hermitcrab.examples import common, digits

ROOT: Final = Path(__file__).parents[2]
DIGITS: Final = ("digits", "--steps", "60", "--batch", "32", "--every-steps", "7", "--evaluate-every", "20")
CHARS: Final = ("chars", "--steps", "30", "--batch", "4", "--length", "16", "--width", "16", "--every-steps", "7")


def start(folder: Path, *words: str, **more: str) -> subprocess.Popen[str]:
    """Start an example, as the supervisor does."""
    name, *options = words
    given = {"PYTHONPATH": str(ROOT), "CKPT_DIR": str(folder), "STATUS_FILE": f"{folder}.json"}
    variables = {**os.environ, **given, **more}
    command = [sys.executable, "-B", "-m", f"hermitcrab.examples.{name}", *options]
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True, cwd=folder.parent)


def finish(folder: Path, *words: str) -> list[str]:
    """Run an example to its end; its last line."""
    with start(folder, *words) as running:
        assert running.stdout
        lines = running.stdout.read().splitlines()
    assert running.returncode == 0, lines
    return lines[-1].split()


def kill_at(folder: Path, step: int, *words: str) -> None:
    """SIGKILL once a checkpoint of that step or a later one is there."""
    with start(folder, *words) as running:
        end = time.monotonic() + 120
        while not any(item.step >= step for item in store.found(folder)):
            assert running.poll() is None and time.monotonic() < end
            time.sleep(0.002)
        running.kill()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What an undisturbed run with data loaded in its own process comes to."""
    return finish(tmp_path_factory.mktemp("whole") / "run", *DIGITS)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_digits_killed_twice(tmp_path: Path, whole: list[str], workers: str) -> None:
    """With random augmentation, dropout and evaluations between, in any number of workers: the same bits."""
    folder = tmp_path / "run"
    for step in (20, 41):
        kill_at(folder, step, *DIGITS, "--workers", workers, "--pause", "0.01")
    assert finish(folder, *DIGITS, "--workers", workers) == whole
    said = status.read(Path(f"{folder}.json"))
    assert (said.finished, said.exact, said.step, said.total) == (True, True, 59, 60)
    assert said.loss is not None and said.grad_norm is not None
    assert store.verify(store.found(folder)[0].path)["exact"] is True


def test_chars(tmp_path: Path) -> None:
    """Killed once; accumulated; on a text of one's own."""
    text = tmp_path / "text.txt"
    text.write_text("寄居蟹 moves from shell to shell and stays the same crab.\n" * 40, encoding="utf-8")
    words = (*CHARS, "--text", str(text), "--accumulate", "2")
    kill_at(tmp_path / "run", 13, *words)
    assert finish(tmp_path / "run", *words) == finish(tmp_path / "whole", *words)


def test_digits_on_two_ranks(tmp_path: Path) -> None:
    """As torchrun starts them, on the CPU; both killed once: the same bits again."""
    words = (*DIGITS[:2], "30", *DIGITS[3:], "--accumulate", "2")
    whole = together(tmp_path / "whole", *words)
    assert whole[0][-4:-3] == ["accuracy"] and "accuracy" not in whole[1], "rank 0 alone says what came of it"
    assert together(tmp_path / "run", *words, "--pause", "0.01", until=13) == [[], []]
    assert together(tmp_path / "run", *words) == whole


def together(folder: Path, *words: str, until: int | None = None) -> list[list[str]]:
    """Run both ranks, to the end or until a checkpoint of that step is there; the last line of each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [start(folder, *words, **shared, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(2)]
    while until is not None and not any(item.step >= until for item in store.found(folder)):
        assert [rank.poll() for rank in ranks] == [None, None]
        time.sleep(0.002)
    for rank in ranks if until is not None else ():
        rank.kill()
    said = [rank.communicate(timeout=120)[0].splitlines() for rank in ranks]
    return [lines[-1].split() if lines and until is None else [] for lines in said]


class Board:
    """Stands in for TensorBoard's writer."""

    made: ClassVar[list[Any]] = []

    def __init__(self, folder: str, purge_step: int) -> None:
        self.told: list[tuple[str, float, int]] = []
        self.folder, self.purge_step, self.closed = folder, purge_step, False
        Board.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.told.append((name, value, step))

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("rank", "there"), [(0, True), (1, True), (0, False)])
def test_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, there: bool) -> None:
    """From the step on that the run resumed at, on one rank, where TensorBoard is installed."""
    monkeypatch.setattr(Board, "made", [])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: there or None)
    monkeypatch.setattr(importlib, "import_module", lambda _: SimpleNamespace(SummaryWriter=Board))
    scalars = common.Scalars(tmp_path, 40, common.Place(rank, 2, torch.device("cpu")))
    scalars.add(41, loss=torch.tensor(0.5), lr=0.1)
    scalars.close()
    told = [(board.folder, board.purge_step, board.told, board.closed) for board in Board.made]
    expected = (str(tmp_path / "tensorboard"), 40, [("loss", 0.5, 41), ("lr", 0.1, 41)], True)
    assert told == ([expected] if rank == 0 and there else [])


def test_the_data_is_whole() -> None:
    """1797 images of ten digits; the file says whose they are."""
    pictures, labels = digits.images()
    assert pictures.shape == (1797, 8, 8) and float(pictures.max()) == 1 and float(pictures.min()) == 0
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert abs(float(pictures.sum() * 16) - 561718) < 1
    assert "CC BY 4.0" in digits.SHIPPED.read_text()
