"""What all tests share: a test is marked with what its folder says it needs."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEEDS = ("image", "box", "gpu")  # tests/<folder>; see the markers in pyproject.toml


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let one choose the images to test."""
    parser.addoption("--combo", action="append", default=[], help="id of a combo to test the image of")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by folder, so that `-m "not image"` works from anywhere."""
    for item in items:
        folder = item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""
        if folder in NEEDS:
            item.add_marker(folder)
