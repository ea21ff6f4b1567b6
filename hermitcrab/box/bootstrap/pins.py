"""What may be installed: the rows of the matrix with their locks, as the bootstrap script brings them along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

PAYLOAD = Path(__file__).parents[3]  # where the script unpacked itself; a checkout has no pins there
PINS = "pins.json"


class Row(NamedTuple):
    """One combo, with a lock for each Python that has one."""

    id: str
    cuda: str
    torch: str
    driver: str
    arch: tuple[int, ...]
    ptx: tuple[int, ...]
    disk_gb: float
    reason: str  # why it is not current; "" for a current one
    locks: Mapping[str, tuple[str, ...]]  # "3.11" to the lines of its lock; none where it cannot be installed here
    wanted: Mapping[str, Any]  # what the image's manifest says of it


class Tool(NamedTuple):
    """A wheel that installs wheels."""

    version: str
    sha256: str


class Pins(NamedTuple):
    """Everything of the matrix that a box needs."""

    rows: tuple[Row, ...]
    packages: tuple[str, ...]
    uv: Tool


def load(payload: Path = PAYLOAD) -> Pins:
    """Read the pins; they were made by `invoke render`, so their form is not doubted."""
    return read(json.loads((payload / PINS).read_text(encoding="utf-8")))


def read(found: Mapping[str, Any]) -> Pins:
    """Read them; a lock is a list of numbers of lines, since most locks share most lines."""
    rows = tuple(_row(row, found["lines"]) for row in found["combos"])
    return Pins(rows, tuple(found["packages"]), Tool(**found["uv"]))


def lock(row: Row, python: str) -> bytes:
    """Return the lock of a row for a Python, as it is at home."""
    return "".join(f"{line}\n" for line in row.locks[python]).encode("ascii")


def locked(lock: bytes) -> dict[str, str]:
    """Return the versions of a lock."""
    lines = lock.decode("ascii").splitlines()
    pins = (line.split(" ")[0].partition("==") for line in lines if line and not line.startswith("#"))
    return {name: version for name, _, version in pins}


def numbers(version: str) -> tuple[int, ...]:
    """Read a dotted version, so that 2.10 follows 2.9."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _row(row: Mapping[str, Any], lines: Sequence[str]) -> Row:
    of = row["wanted"]
    arch, ptx = (tuple(int(sm) for sm in of[key]) for key in ("arch", "ptx"))
    locks = {python: tuple(lines[number] for number in numbers) for python, numbers in row["locks"].items()}
    return Row(of["combo"], of["cuda"], of["torch"], of["driver"], arch, ptx, row["disk_gb"], row["reason"], locks, of)
