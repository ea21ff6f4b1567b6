"""The real `crab check` on a machine with an NVIDIA card, by a Python that has torch.

Run: CRAB_PYTHON=/path/to/python pytest tests/gpu. It writes benchmarks/RESULTS.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hermitcrab.box.check import nvml
from hermitcrab.box.check.child import Child

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("CRAB_PYTHON", sys.executable)
HEADING = "## `crab check` on a real card"
DEVICES = [*Path("/dev").glob("nvidia[0-9]*"), *Path("/dev").glob("dxg")]
pytestmark = [
    pytest.mark.skipif(not DEVICES, reason="no NVIDIA device in /dev"),
    pytest.mark.skipif(
        subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode != 0,
        reason=f"no torch in {PYTHON}; name one that has it in CRAB_PYTHON",
    ),
]


def crab(*options: str, **environ: str) -> tuple[int, dict[str, Any]]:
    """Run the check and read its findings by id."""
    done = subprocess.run(
        [PYTHON, "-m", "hermitcrab.cli", "check", "--json", *options],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)["findings"]
    print("\n".join(f"{row['status']}  {row['id']:<16}{row['text']}" for row in found))
    return done.returncode, {row["id"]: row for row in found}


def used() -> list[int | None]:
    """Ask, in a process of its own, how much memory each card has in use."""
    with Child() as child:
        answer: nvml.Nvml = child.ask(nvml.read, Path("/"), seconds=60)
    return [card.used for card in answer.cards]


def record(found: dict[str, Any]) -> None:
    """Write down what was measured, in a section of its own."""
    rows = "\n".join(f"| {id_} | {row['status']} | {row['text']} |" for id_, row in found.items())
    path = ROOT / "benchmarks/RESULTS.md"
    path.parent.mkdir(exist_ok=True)
    kept = path.read_text() if path.exists() else "# Results\n\n"
    before, _, after = kept.partition(HEADING)
    _, mark, following = after.partition("\n## ")
    table = f"{HEADING}\n\n| finding | status | text |\n|---|---|---|\n{rows}\n"
    path.write_text(f"{before}{table}{mark}{following}")


def test_the_card_passes_and_nothing_stays_allocated() -> None:
    """Every kernel passes or says why it was not run; the memory in use is what it was."""
    before = used()
    code, found = crab()
    record(found)

    assert code == 0
    kernels = {id_: row["status"] for id_, row in found.items() if id_.startswith("kernel.")}
    assert len(kernels) == 7
    assert set(kernels.values()) <= {"pass", "skip"}
    assert kernels["kernel.fp32"] == kernels["kernel.cudnn"] == "pass"
    assert found["gpu0.tflops"]["status"] in {"pass", "warn"}
    assert used() == before


def test_quick_is_quick() -> None:
    """At most five seconds beyond importing torch."""
    program = "import time; start = time.monotonic(); import torch; print(time.monotonic() - start)"
    imported = float(subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, check=True).stdout)
    start = time.monotonic()
    code, _ = crab("--quick")

    assert code == 0
    assert time.monotonic() - start - imported <= 5


def test_another_card_than_the_expected_fails() -> None:
    """The check can fail on a card that is in order."""
    code, found = crab("--quick", "--expect", "Voodoo 2")

    assert code == 1
    assert found["gpu.expect"]["status"] == "fail"


def test_a_hidden_card_fails() -> None:
    """CUDA_VISIBLE_DEVICES is found as the cause."""
    code, found = crab("--quick", CUDA_VISIBLE_DEVICES="")

    assert code == 1
    assert "CUDA_VISIBLE_DEVICES" in found["gpu.count"]["text"]
