"""Checkpoints of other programs: are they whole? Nothing is ever unpickled here, and no torch is needed.

A ``.pt`` of torch is a zip with a checksum per record, which torch itself does not look at. A
``.safetensors`` tells its size in its header, and has no checksum.
"""

from __future__ import annotations

import json
import pickletools
import re
import struct
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

TORCH = (".pt", ".pth", ".ckpt", ".bin")
SAFETENSORS = ".safetensors"
MAX_HEADER = 100 << 20  # the format's own limit
GOOD, BAD, UNKNOWN = "good", "bad", "unknown"


class Verdict(NamedTuple):
    """What can be said about a checkpoint without trusting it."""

    state: str
    reason: str = ""


def is_foreign(path: Path) -> bool:
    """Say whether this is a checkpoint of another program: a file, or a folder of such files."""
    if path.is_dir():
        return not path.name.startswith(".") and any(map(_is_file, path.iterdir()))
    return _is_file(path)


def number(path: Path) -> int | None:
    """The step in a name: its last number."""
    numbers = re.findall(r"\d+", path.stem if path.suffix else path.name)
    return int(numbers[-1]) if numbers else None


def series(path: Path) -> str:
    """What a name is without its step: only such checkpoints are older or newer than each other."""
    head, _, tail = path.name.rpartition(str(number(path)))
    return f"{head.rstrip('0')}N{tail}"


def check(path: Path) -> Verdict:
    """Look at every byte that has a checksum, and at every size that is told."""
    try:
        if path.is_dir():
            return _check_folder(path)
        return _check_safetensors(path) if path.suffix == SAFETENSORS else _check_torch(path)
    except OSError as error:
        return Verdict(BAD, f"cannot be read: {error.strerror or error}")


def header(path: Path) -> dict[str, Any]:
    """Return the header of a safetensors file: a tensor's dtype, shape and place by its name."""
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else MAX_HEADER + 1
        text = file.read(length) if length <= MAX_HEADER else b""
    told = json.loads(text) if len(text) == length else None
    if not isinstance(told, dict):
        raise ValueError("its header is cut off, or none")
    return told


def globals_of(path: Path) -> list[str]:
    """Name what a .pt would import when unpickled; read from its opcodes, without running them."""
    names: set[str] = set()
    with zipfile.ZipFile(path) as archive:
        inner = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        strings: list[str] = []
        for code, argument, _ in pickletools.genops(archive.read(inner[0]) if inner else b"."):
            if code.name == "GLOBAL":
                names.add(str(argument).replace(" ", "."))
            elif code.name == "STACK_GLOBAL":
                names.add(".".join(strings[-2:]))
            elif isinstance(argument, str):
                strings.append(argument)
    return sorted(names)


def _is_file(path: Path) -> bool:
    return path.suffix in {*TORCH, SAFETENSORS} and path.is_file()


def _check_torch(path: Path) -> Verdict:
    with path.open("rb") as file:
        start = file.read(2)
    if not start:
        return Verdict(BAD, "it is empty")
    if start[:1] == b"\x80":
        return Verdict(UNKNOWN, "torch's old format has no checksums")
    try:
        with zipfile.ZipFile(path) as archive:
            if not any(record.CRC for record in archive.infolist()):
                return Verdict(UNKNOWN, "it was written with checksums switched off")
            damaged = _damaged(archive)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError) as error:
        return Verdict(BAD, f"it is cut off or no file of torch's: {error}")
    return Verdict(BAD, f"damaged: {', '.join(damaged[:3])}") if damaged else Verdict(GOOD)


def _damaged(archive: zipfile.ZipFile) -> list[str]:
    damaged = []
    for record in archive.infolist():
        try:
            with archive.open(record) as file:
                while file.read(1 << 22):
                    pass
        except (zipfile.BadZipFile, EOFError):
            damaged.append(record.filename)
    return damaged


def _check_safetensors(path: Path) -> Verdict:
    try:
        told = header(path)
        ends = [entry["data_offsets"][1] for name, entry in told.items() if name != "__metadata__"]
        with path.open("rb") as file:
            wanted = 8 + struct.unpack("<Q", file.read(8))[0] + max(ends, default=0)
    except (ValueError, KeyError, TypeError, IndexError, struct.error) as error:
        return Verdict(BAD, f"no safetensors: {error}")
    size = path.stat().st_size
    if size != wanted:
        return Verdict(BAD, f"it has {size} bytes instead of {wanted}")
    return Verdict(GOOD, "by its size; the format has no checksum")


def _check_folder(path: Path) -> Verdict:
    """A folder is as good as the worst of its files, and all that its index names must be there."""
    verdicts = [(item.name, check(item)) for item in sorted(path.iterdir()) if _is_file(item)]
    missing = sorted(_indexed(path) - {name for name, _ in verdicts})
    verdicts += [(name, Verdict(BAD, "it is missing")) for name in missing]
    for state in (BAD, UNKNOWN):
        said = [f"{name}: {verdict.reason}" for name, verdict in verdicts if verdict.state == state]
        if said:
            return Verdict(state, "; ".join(said))
    return Verdict(GOOD, "; ".join(sorted({verdict.reason for _, verdict in verdicts if verdict.reason})))


def _indexed(path: Path) -> set[str]:
    names: set[str] = set()
    for index in path.glob("*.index.json"):
        try:
            names |= set(json.loads(index.read_bytes())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError):
            names.add(f"the files of {index.name}")
    return names
