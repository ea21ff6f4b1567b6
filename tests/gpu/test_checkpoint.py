"""What of `Checkpointer` only a card can show: its random state, pinned copies, loss scaling, memory after a kill.

Run: CRAB_PYTHON=/path/to/python pytest tests/gpu. The trainings are in card.py; tests/checkpoint/test_card.py
runs the same ones on the CPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from hermitcrab.box.check import nvml
from hermitcrab.box.check.child import Child
from hermitcrab.checkpoint import choice, store

ROOT: Final = Path(__file__).parents[2]
PYTHON: Final = os.environ.get("CRAB_PYTHON", sys.executable)
DEVICES: Final = [*Path("/dev").glob("nvidia[0-9]*"), *Path("/dev").glob("dxg")]
HAS_CUDA: Final = [PYTHON, "-c", "import torch; raise SystemExit(not torch.cuda.is_available())"]
pytestmark = [
    pytest.mark.skipif(not DEVICES, reason="no NVIDIA device in /dev"),
    pytest.mark.skipif(
        bool(DEVICES) and subprocess.run(HAS_CUDA, capture_output=True, check=False).returncode != 0,
        reason=f"no torch that sees a card in {PYTHON}; name one that does in CRAB_PYTHON",
    ),
]
# Else cuBLAS is not deterministic; it is read when the card is first used.
ENVIRON: Final = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
SLACK_S: Final = 0.02  # what a step with a save does besides the copy, whatever the size
HELD: Final = 1 << 30


def start(work: str, folder: Path) -> subprocess.Popen[str]:
    """Start a training on the card."""
    command = [PYTHON, "-B", "-m", "tests.gpu.card", work, str(folder), "cuda"]
    return subprocess.Popen(command, cwd=ROOT, env=ENVIRON, stdout=subprocess.PIPE, text=True)


def told(work: str, folder: Path) -> dict[str, Any]:
    """Run it to its end; what it found."""
    with start(work, folder) as training:
        assert training.stdout
        said = training.stdout.read()
    assert training.returncode == 0
    print(said)
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def used() -> int:
    """Ask, in a process of its own, how many bytes of all cards are in use."""
    with Child() as child:
        answer: nvml.Nvml = child.ask(nvml.read, Path("/"), seconds=60)
    return sum(card.used or 0 for card in answer.cards)


def test_bit_for_bit_on_the_card(tmp_path: Path) -> None:
    """From every step: weights, fused moments, scale and the generators of all cards; a forgotten one is seen."""
    found = told("exact", tmp_path)

    assert found["distinct"] == 12 and found["saving changes nothing"] is True
    assert found["wrong"] == [] and found["seen when forgotten"] is True
    assert found["exact"] is True, found["inexact"]
    assert found["generators"] == len(found["gpu"]) >= 1


def test_the_scale_of_the_loss_is_kept(tmp_path: Path) -> None:
    """It grew, was halved by an overflow, and grew again: each checkpoint has that of its step, not the first one."""
    before, halved, end = told("exact", tmp_path)["scales"]

    assert halved == before / 2 and 1024 < before < end


def test_a_save_costs_one_copy(tmp_path: Path) -> None:
    """1.5 GB into pinned memory that is reused; the writer then never holds the interpreter for long."""
    found = told("stall", tmp_path)

    assert found["bytes"] > 1.5e9 and found["pinned"] is True
    assert found["stall"] <= 1.2 * found["copy"] + SLACK_S
    assert found["gap"] <= 0.05


def test_a_kill_during_a_save_frees_the_card(tmp_path: Path) -> None:
    """All of it, and the checkpoint before is whole."""
    before = used()
    with start("hold", tmp_path / "run") as training:
        assert training.stdout
        while training.stdout.readline().strip() in {"None", "0"}:
            assert training.poll() is None
        assert used() >= before + HELD, "it holds the card"
        while not list((tmp_path / "run").glob(".tmp_step*")):
            assert training.poll() is None
        training.kill()
    end = time.monotonic() + 60
    while used() > before and time.monotonic() < end:
        time.sleep(0.5)

    assert used() <= before
    chosen = choice.choose(tmp_path / "run", None, lambda path: path, print)
    assert chosen is not None and store.reason_of(chosen.path) is None
