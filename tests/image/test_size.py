"""Claim: an image keeps the budgets of its row, and its layers are such that a registry can carry them."""

from __future__ import annotations

import re

import pytest

from hermitcrab.build import image, render, size
from hermitcrab.build.engine import Engine
from hermitcrab.matrix import Combo

LARGEST_LAYER = 2e9  # bytes compressed; larger ones fail on slow links and some registries


@pytest.fixture(scope="module")
def layers(engine: Engine, combo: Combo) -> list[size.Layer]:
    """The layers with what was measured of them."""
    return size.layers(engine, image.tag(combo))


@pytest.fixture
def measured(layers: list[size.Layer], combo: Combo) -> list[size.Layer]:
    """The layers, when all of them were compressed once."""
    if any(layer.gzip is None or layer.zstd is None for layer in layers):
        command = f"./invoke size --cuda {combo.cuda} --torch {combo.torch} --compressed"
        pytest.skip(f"the layers of {combo.id} were not compressed yet; measure them with: {command}")
    return layers


def test_disk_budget(engine: Engine, combo: Combo) -> None:
    """On disk the image is what its row allows, and not so far below that the budget says nothing."""
    found = engine.image(image.tag(combo))
    assert found is not None
    assert 0.5 * combo.disk_gb <= sum(row["Size"] for row in found.history()) / 1e9 <= combo.disk_gb


def test_compressed_budgets(measured: list[size.Layer], combo: Combo) -> None:
    """Compressed it is, too."""
    assert sum(layer.gzip or 0 for layer in measured) / 1e9 <= combo.gzip_gb
    assert sum(layer.zstd or 0 for layer in measured) / 1e9 <= combo.zstd_gb


def test_no_layer_is_too_large(measured: list[size.Layer]) -> None:
    """Each layer stays below 2 GB compressed."""
    assert max(layer.gzip or 0 for layer in measured) < LARGEST_LAYER


def test_wheels_lie_at_the_bottom(layers: list[size.Layer]) -> None:
    """Calm layers first: a change in a tool or a template moves no layer of wheels."""
    wheels = [f"layers/{name}" for stage in render.STAGES for name in stage.names]
    sources = [re.sub(r"^COPY /(\S*?)/? / .*", r"\1", layer.made_by) for layer in layers]
    present = [wheel for wheel in wheels if wheel in sources]
    assert present[-2:] == wheels[-2:]
    assert sources == [*present, "", "box", "proof"]
