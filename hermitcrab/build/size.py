"""What an image weighs: layers, packages, compressed sizes, and the verdict on its budget."""

from __future__ import annotations

import json
import tarfile
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import zstandard

from hermitcrab.box import files
from hermitcrab.build import compare, image
from hermitcrab.build.engine import Engine, failures
from hermitcrab.matrix import Combo

CACHE: Final = Path(__file__).resolve().parents[2] / ".cache" / "sizes.json"
MANIFEST: Final = "/etc/hermitcrab/manifest.json"
BLOCK: Final = 8 << 20
WAITING: Final = 16  # blocks in memory that still wait for gzip
GZIP_LEVEL: Final = 6  # what a registry push uses
ZSTD_LEVEL: Final = 3
# The layer without a file, as WORKDIR leaves one; the history does not tell it from no layer at all.
EMPTY: Final = "sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer: what made it, its bytes on disk, and compressed when measured."""

    made_by: str
    disk: int
    gzip: int | None = None
    zstd: int | None = None


@dataclass(frozen=True, kw_only=True)
class Package:
    """A wheel or system package of an image, with the bytes it takes."""

    name: str
    version: str
    kind: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One budget: decimal GB found and allowed."""

    what: str
    found: float
    allowed: float

    @property
    def kept(self) -> bool:
        """Whether the image is within it."""
        return self.found <= self.allowed


def layers(engine: Engine, tag: str) -> list[Layer]:
    """The layers that hold files, lowest first, with compressed sizes where they were measured."""
    found = image.built(engine, tag)
    with failures("reading how the image was made"):
        made = [(row["CreatedBy"], row["Size"]) for row in reversed(found.history()) if row["Size"]]
    measured = _measured()
    ids = [digest for digest in found.attrs["RootFS"]["Layers"] if digest != EMPTY]
    return [
        Layer(made_by=command, disk=size, **measured.get(digest, {}))
        for (command, size), digest in zip(made, ids, strict=True)
    ]


def packages(engine: Engine, tag: str) -> list[Package]:
    """Every package of the image, the largest first, from the manifest it carries."""
    manifest = json.loads(engine.read_file(tag, MANIFEST))
    return sorted((Package(**row) for row in manifest["packages"]), key=lambda package: -package.bytes)


def verdicts(combo: Combo, found: list[Layer]) -> list[Verdict]:
    """Each budget of the row whose size is known."""
    sizes: dict[str, list[int | None]] = {
        "disk": [layer.disk for layer in found],
        "gzip": [layer.gzip for layer in found],
        "zstd": [layer.zstd for layer in found],
    }
    allowed = {"disk": combo.disk_gb, "gzip": combo.gzip_gb, "zstd": combo.zstd_gb}
    return [
        Verdict(what=what, found=sum(size or 0 for size in each) / 1e9, allowed=allowed[what])
        for what, each in sizes.items()
        if None not in each
    ]


def measure(engine: Engine, tag: str) -> None:
    """Compress every layer that was not measured yet, and keep the figures by layer digest."""
    found = image.built(engine, tag)
    missing = set(found.attrs["RootFS"]["Layers"]) - _measured().keys() - {EMPTY}
    if not missing:
        return
    with tarfile.open(fileobj=compare.stream(engine.save(tag)), mode="r|") as archive:
        for member in archive:
            digest = f"sha256:{member.name.rpartition('/')[2]}"
            content = archive.extractfile(member) if digest in missing else None
            if content is not None:
                _keep(digest, _compressed(content))


def _compressed(content: IO[bytes]) -> dict[str, int]:
    """The bytes gzip and zstd make of a stream.

    gzip, by far the slower, packs blocks side by side: what that adds is a ten-thousandth.
    """
    zstd = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compressobj()
    sizes = {"gzip": 0, "zstd": 0}
    packing: deque[Future[int]] = deque()
    with ThreadPoolExecutor() as pool:
        while block := content.read(BLOCK):
            packing.append(pool.submit(_gzipped, block))
            sizes["zstd"] += len(zstd.compress(block))
            while len(packing) > WAITING:
                sizes["gzip"] += packing.popleft().result()
        sizes["gzip"] += sum(each.result() for each in packing)
    sizes["zstd"] += len(zstd.flush())
    return sizes


def _gzipped(block: bytes) -> int:
    return len(zlib.compress(block, GZIP_LEVEL))


def _measured() -> dict[str, dict[str, int]]:
    try:
        kept: dict[str, dict[str, int]] = json.loads(CACHE.read_text())
    except (OSError, ValueError):
        return {}
    return kept


def _keep(digest: str, sizes: dict[str, int]) -> None:
    files.write(CACHE, json.dumps({**_measured(), digest: sizes}, indent=1).encode())
