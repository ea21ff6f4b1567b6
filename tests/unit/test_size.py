"""What an image weighs: measured once per layer, judged by its row."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from hermitcrab import matrix as matrices
from hermitcrab.build import size
from hermitcrab.build.engine import Engine
from hermitcrab.build.size import Layer, Package
from hermitcrab.errors import UserError

COMBO = replace(matrices.select(matrices.load(), "12.1"), disk_gb=5.1, gzip_gb=2.9, zstd_gb=2.4)
CONTENTS = (b"torch" * 100_000, b"rest" * 10)


def ident(data: bytes) -> str:
    """A layer's digest."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class FakeEngine:
    """One image of two layers, and the empty one that WORKDIR leaves."""

    def __init__(self) -> None:
        self.saved = 0
        self.manifest: dict[str, object] = {}

    def image(self, tag: str) -> SimpleNamespace | None:
        history = [
            {"CreatedBy": "WORKDIR /root", "Size": 0},
            {"CreatedBy": "COPY /layers/rest/ / # buildkit", "Size": 40},
            {"CreatedBy": "ENV A=b", "Size": 0},
            {"CreatedBy": "COPY /layers/torch/ / # buildkit", "Size": 500_000},
        ]
        layers = [*map(ident, CONTENTS), size.EMPTY]
        if tag == "lost":
            return None
        return SimpleNamespace(history=lambda: history, attrs={"RootFS": {"Layers": layers}})

    def save(self, _: str) -> Iterator[bytes]:
        self.saved += 1
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as made:
            for data in (*CONTENTS, b"a config"):
                info = tarfile.TarInfo(f"blobs/sha256/{hashlib.sha256(data).hexdigest()}")
                info.size = len(data)
                made.addfile(info, io.BytesIO(data))
        yield buffer.getvalue()

    def read_file(self, _: str, path: str) -> bytes:
        assert path == size.MANIFEST
        return json.dumps(self.manifest).encode()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Figures of the test's own."""
    monkeypatch.setattr(size, "CACHE", tmp_path / ".cache/sizes.json")
    return tmp_path / ".cache/sizes.json"


def test_layers_come_lowest_first() -> None:
    """Steps without files are no layers; nothing is measured before it is asked for."""
    assert size.layers(cast("Engine", FakeEngine()), "x") == [
        Layer(made_by="COPY /layers/torch/ / # buildkit", disk=500_000),
        Layer(made_by="COPY /layers/rest/ / # buildkit", disk=40),
    ]


def test_an_image_that_is_not_there_says_so() -> None:
    """How to build it."""
    with pytest.raises(UserError, match="no image lost here"):
        size.layers(cast("Engine", FakeEngine()), "lost")


def test_layers_are_measured_once(cache: Path) -> None:
    """By digest, so that a layer shared by two builds is compressed once."""
    engine = FakeEngine()

    for _ in range(2):
        size.measure(cast("Engine", engine), "x")

    assert engine.saved == 1
    assert json.loads(cache.read_text()).keys() == set(map(ident, CONTENTS))
    assert list(cache.parent.iterdir()) == [cache]
    torch, rest = size.layers(cast("Engine", engine), "x")
    assert torch.gzip == pytest.approx(len(gzip.compress(CONTENTS[0], 6)), rel=0.05)
    assert torch.zstd is not None and torch.zstd < 1000
    assert rest.gzip and rest.zstd


@pytest.mark.parametrize("text", ["", "{", "\0"])
def test_a_broken_cache_is_no_cache(text: str, cache: Path) -> None:
    """It is measured again."""
    cache.parent.mkdir()
    cache.write_text(text)
    engine = FakeEngine()

    size.measure(cast("Engine", engine), "x")
    assert engine.saved == 1


def test_packages_come_largest_first() -> None:
    """Wheels and system packages together, as the image's own manifest has them."""
    engine = FakeEngine()
    rows = [
        {"name": "git", "version": "1:2", "kind": "system", "bytes": 40},
        {"name": "torch", "version": "2", "kind": "wheel", "bytes": 900},
    ]
    engine.manifest = {"combo": "x", "packages": rows}

    assert size.packages(cast("Engine", engine), "x") == [Package(**row) for row in reversed(rows)]  # type: ignore[arg-type]


def test_budgets_are_decimal_and_exact() -> None:
    """At the budget is within it; a byte's worth more is not; what was not measured is not judged."""
    at = Layer(made_by="a", disk=5_100_000_000, gzip=2_900_000_000, zstd=2_400_000_000)
    over = replace(at, disk=5_100_000_001)

    assert [(each.what, each.kept) for each in size.verdicts(COMBO, [at])] == [
        ("disk", True),
        ("gzip", True),
        ("zstd", True),
    ]
    assert not size.verdicts(COMBO, [over])[0].kept
    half = replace(at, disk=2_550_000_000, gzip=None)
    assert [(each.what, each.found) for each in size.verdicts(COMBO, [half, half])] == [("disk", 5.1), ("zstd", 4.8)]
