"""What differs between two images, or two root filesystems: the first files, and in what."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from hermitcrab.build.engine import Engine

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SHOWN: Final = 10  # files named; the rest is counted
BUFFER: Final = 1 << 20

Entry = tuple[int, int, int, int, int, str]  # mode, uid, gid, mtime, size, digest of the content or link target
FIELDS: Final = ("mode", "owner", "group", "mtime", "size", "content")


def images(engine: Engine, one: str, two: str) -> list[str]:
    """Name the first differing files of two images, layer by layer; else the config fields that differ."""
    first, second = (_attributes(engine, tag) for tag in (one, two))
    pairs = zip(first["RootFS"]["Layers"], second["RootFS"]["Layers"], strict=False)
    apart = [(a, b) for a, b in pairs if a != b]
    if not apart:
        return [f"config field {key}" for key in first if key != "Id" and first[key] != second.get(key)]
    old = _layers(engine, one, {a for a, _ in apart})
    new = _layers(engine, two, {b for _, b in apart})
    lines = [line for a, b in apart for line in _differences(old[a], new[b])]
    return lines or [f"layer {a} and {b}" for a, b in apart]  # an engine that keeps layers packed hides their files


def files(one: Path, two: Path) -> list[str]:
    """Name the first differing files of two tar files."""
    with one.open("rb") as first, two.open("rb") as second:
        return list(_differences(_entries(first), _entries(second)))


def stream(chunks: Iterator[bytes]) -> io.BufferedReader:
    """Chunks as a file that can be read forwards."""
    return io.BufferedReader(_Chunks(chunks), BUFFER)


def _attributes(engine: Engine, tag: str) -> dict[str, Any]:
    image = engine.image(tag)
    assert image is not None, tag  # both were just built
    attributes: dict[str, Any] = image.attrs
    volatile = ("RepoTags", "RepoDigests", "Metadata", "GraphDriver", "Parent")
    return {key: value for key, value in attributes.items() if key not in volatile}


def _layers(engine: Engine, tag: str, wanted: set[str]) -> dict[str, dict[str, Entry]]:
    """The entries of some layers, read as the engine streams the image; layers are kept by their digest."""
    found = {}
    with tarfile.open(fileobj=stream(engine.save(tag)), mode="r|") as image:
        for member in image:
            digest = f"sha256:{member.name.rpartition('/')[2]}"
            content = image.extractfile(member) if digest in wanted else None
            if content is not None:
                found[digest] = _entries(content)
    return {digest: found.get(digest, {}) for digest in wanted}


def _entries(file: IO[bytes]) -> dict[str, Entry]:
    entries = {}
    with tarfile.open(fileobj=file, mode="r|") as layer:
        for member in layer:
            content = layer.extractfile(member) if member.isreg() else None
            digest = hashlib.file_digest(content, "sha256").hexdigest() if content else member.linkname  # type: ignore[arg-type]
            entries[member.name] = (
                member.mode, member.uid, member.gid, int(member.mtime), member.size, digest,
            )  # fmt: skip
    return entries


def _differences(old: dict[str, Entry], new: dict[str, Entry]) -> Iterator[str]:
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    for name in names[:SHOWN]:
        if name not in old or name not in new:
            yield f"{name} (only in the {'second' if name in new else 'first'})"
        else:
            parts = [field for field, a, b in zip(FIELDS, old[name], new[name], strict=True) if a != b]
            yield f"{name} ({', '.join(parts)})"
    if len(names) > SHOWN:
        yield f"and {len(names) - SHOWN} more"


class _Chunks(io.RawIOBase):
    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        while not self._rest and (chunk := next(self._chunks, None)) is not None:
            self._rest = memoryview(chunk)
        target = memoryview(buffer)
        count = min(len(target), len(self._rest))
        target[:count], self._rest = self._rest[:count], self._rest[count:]
        return count
