"""What the tests of `crab train` share: a folder in which real processes are started, and ended with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.train.training import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """A user's folder."""
    found = Folder(tmp_path)
    yield found
    found.close()
