"""The checkpoint library's tests: they need torch, which is not among the project's tools.

`tests/image/test_checkpoint.py` runs them inside the built image; by hand: a venv with torch, numpy, pytest
and pytest-timeout, then `python -m pytest tests/checkpoint`.
"""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
# Of networks as small as these, more threads only wait for each other; the programs that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
HAS_TORCH: Final = importlib.util.find_spec("torch") is not None


class Skipped(pytest.Module):
    """A test file that says why it cannot run."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        pytest.skip(
            "torch is not installed here; tests/image/test_checkpoint.py runs this in the image",
            allow_module_level=True,
        )


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Skip the folder's files where there is no torch."""
    return None if HAS_TORCH else Skipped.from_parent(parent, path=module_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run, not made yet."""
    return tmp_path / "runs" / "exp1"


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Give back the signals that a training which was left behind still catches."""
    yield
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Torch of some versions warns about torch: no fault of ours."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore::UserWarning:torch"))
