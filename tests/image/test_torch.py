"""Claim: torch and its companions compute, for root and for a user that the image does not know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from hermitcrab.matrix import Combo
from tests.image import boxes
from tests.image.conftest import Start

PROBE: Final = Path(__file__).with_name("probe.py").read_text()
KNOWN: Final = {
    "matmul": 1240.0,
    "conv": [8.0, 12.0, 20.0, 24.0],
    "nms": [1],
    "lfilter": [1.0, 0.5, 0.25],
    "numpy": 3.0,
    "workers": 496,
    "workers by files": 496,
}


@pytest.mark.parametrize("user", ["root", "12345"])
def test_torch_computes(create_once: Start, combo: Combo, user: str) -> None:
    """Known values come out: eager, compiled by gcc where the row can, from workers and both companions."""
    words = ["python", "-c", PROBE, *(["compile"] if combo.compiles else [])]
    done = boxes.finish(create_once(combo, words, user=user), seconds=180)
    assert done.status == 0, done.err.decode()[-3000:]
    assert json.loads(done.out) == {**KNOWN, **({"compiled": KNOWN["matmul"]} if combo.compiles else {})}
