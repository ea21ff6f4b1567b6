"""What may be installed: the rows of the matrix with their locks, as the bootstrap script brings them along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Mapping, NamedTuple

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
    locks: Mapping[str, str]  # "3.11" to the name of a file; none where it cannot be installed here
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
    found = json.loads((payload / PINS).read_text(encoding="utf-8"))
    rows = tuple(_row(row) for row in found["combos"])
    return Pins(rows, tuple(found["packages"]), Tool(**found["uv"]))


def lock(row: Row, python: str, payload: Path = PAYLOAD) -> Path:
    """Return the lock of a row for a Python."""
    return payload / "locks" / row.locks[python]


def locked(path: Path) -> dict[str, str]:
    """Return the versions of a lock."""
    lines = path.read_text(encoding="ascii").splitlines()
    pins = (line.split(" ")[0].partition("==") for line in lines if line and not line.startswith("#"))
    return {name: version for name, _, version in pins}


def numbers(version: str) -> tuple[int, ...]:
    """Read a dotted version, so that 2.10 follows 2.9."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _row(row: Mapping[str, Any]) -> Row:
    arch, ptx = (tuple(int(sm) for sm in row["wanted"][key]) for key in ("arch", "ptx"))
    of = row["wanted"]
    return Row(
        of["combo"], of["cuda"], of["torch"], of["driver"], arch, ptx, row["disk_gb"], row["reason"], row["locks"], of
    )
