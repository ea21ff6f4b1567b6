"""Claim: an image holds no secret, no cache and no trace of the machine that built it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

import pytest
from docker.models.images import Image

from hermitcrab.box import mask
from hermitcrab.build import compare, image
from hermitcrab.build.engine import Engine
from hermitcrab.matrix import Combo, Matrix
from tests.image import scan
from tests.image.conftest import Start

HOST_CAS: Final = Path("/usr/share/ca-certificates")  # those of packages: no trace of this machine
CHUNK: Final = 1 << 20


@pytest.fixture(scope="module")
def built(engine: Engine, combo: Combo) -> Image:
    """The image itself."""
    found = engine.image(image.tag(combo))
    assert found is not None
    return found


@pytest.mark.timeout(300)
def test_root_filesystem(create_once: Start, combo: Combo, matrix: Matrix) -> None:
    """Every file, that of a container which never started."""
    exported: Any = create_once(combo).export(chunk_size=CHUNK)  # docker's stubs say str
    findings = scan.scan(compare.stream(exported), epoch=matrix.epoch, foreign=_foreign())
    assert not findings, f"{len(findings)} findings, the first: {findings[:20]}"


@pytest.mark.timeout(300)
def test_no_layer_hides_a_file(engine: Engine, combo: Combo) -> None:
    """A file that a later layer removes or replaces is still in the image, below the scanned surface."""
    assert scan.hidden(compare.stream(engine.save(image.tag(combo)))) == []


def test_environment_and_history(built: Image) -> None:
    """Neither the settings nor the steps name a proxy or spell out a token."""
    environment: list[str] = built.attrs["Config"]["Env"]
    text = "\n".join([*environment, *(row["CreatedBy"] for row in built.history())])
    assert not re.search(r"(?i)\b\w+_proxy\b", text)
    assert not mask.holds_token(text)
    assert not [what for what, sample in _foreign().items() if sample.decode() in text]


def test_times(built: Image, matrix: Matrix) -> None:
    """The image and its steps bear the epoch of the matrix, not the day of the build."""
    times: set[Any] = {row["Created"] for row in built.history()}
    assert times == {matrix.epoch}


def _foreign() -> dict[str, bytes]:
    """What only this machine has: its extra CAs, its proxies, the password of its index."""
    ca = next((os.environ[name] for name in image.CA_SETTINGS if os.environ.get(name)), image.CA_SYSTEM)
    bundle = Path(ca).read_bytes() if Path(ca).is_file() else b""
    packaged = b"\n".join(path.read_bytes() for path in sorted(HOST_CAS.rglob("*.crt")))
    extra = scan.certificates_of(bundle, packaged) if packaged else ()
    found = {f"CA {number} of this machine": sample for number, sample in enumerate(extra, 1)}
    settings = (*image.PROXIES, *map(str.lower, image.PROXIES), *image.INDEX_SETTINGS)
    for name in settings:
        value = os.environ.get(name, "")
        if "://" in value and (name not in image.INDEX_SETTINGS or "@" in value):
            found[f"{name} of this machine"] = value.encode()
    return found
