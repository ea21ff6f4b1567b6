"""Claim: there is an image to test of every row; those not built here are skipped by name."""

from __future__ import annotations

import pytest

from hermitcrab.matrix import Combo
from tests.image.conftest import missing


def test_image_is_here(row: Combo, request: pytest.FixtureRequest) -> None:
    """A row without an image is a skip that says how to build it; one asked for by --combo is a failure."""
    reason = missing(row)
    if reason and request.config.getoption("combo"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
