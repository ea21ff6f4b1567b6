"""The trainings of tests/gpu on the CPU, so that they are sound when a card is at hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from hermitcrab.checkpoint import choice
from tests.checkpoint.loop import scaler

ROOT: Final = Path(__file__).parents[2]


def start(work: str, folder: Path) -> subprocess.Popen[str]:
    """Start a training."""
    command = [sys.executable, "-B", "-m", "tests.gpu.card", work, str(folder), "cpu"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def told(work: str, folder: Path) -> dict[str, Any]:
    """Run it to its end; what it found."""
    with start(work, folder) as training:
        assert training.stdout
        said = training.stdout.read()
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def test_bit_for_bit(tmp_path: Path) -> None:
    """From every step; a forgotten generator is seen; the scale that an overflow halved is that of its step."""
    found = told("exact", tmp_path)
    assert found["distinct"] == 12 and found["saving changes nothing"] and found["wrong"] == []
    assert found["seen when forgotten"] and found["exact"], found["inexact"]
    before, halved, end = found["scales"]
    if scaler().is_enabled():
        assert halved == before / 2 and 1024 < before < end


def test_a_save_costs_about_a_copy(tmp_path: Path) -> None:
    """Measured in earnest by benchmarks/checkpoint.py; here that it can be."""
    found = told("stall", tmp_path)
    assert found["bytes"] == 8 << 24 and found["pinned"] is False
    assert found["stall"] < 20 * found["copy"] + 0.5 and found["gap"] > 0


def test_a_kill_during_a_save(tmp_path: Path) -> None:
    """The one before is whole."""
    with start("hold", tmp_path / "run") as training:
        assert training.stdout
        while training.stdout.readline().strip() in {"None", "0"}:
            assert training.poll() is None
        while not list((tmp_path / "run").glob(".tmp_step*")):
            assert training.poll() is None
        training.kill()
    chosen = choice.choose(tmp_path / "run", None, lambda path: path, print)
    assert chosen is not None and chosen.manifest["step"] >= 1
