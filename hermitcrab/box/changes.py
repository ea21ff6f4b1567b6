"""A change of a file, planned before it is made: to put a setting there, and to take it back.

What a file held before crab replaced it whole, and what crab created, is kept in a record that is written
before the file is. A block in a file of the user's needs none: its markers tell.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, Iterator, NamedTuple

from hermitcrab.box import blocks, files


class Item(NamedTuple):
    """What shall be in one file: all of it, or a block."""

    path: Path
    data: bytes
    what: str
    block: bool = False
    mode: int | None = None


class Change(NamedTuple):
    """One file to write, or to remove when ``new`` is None."""

    path: Path
    what: str
    old: bytes | None
    new: bytes | None
    block: bool = False
    mode: int | None = None


class LeftAloneError(Exception):
    """A file stays as it is; the message says which and why."""


def plan(item: Item) -> Change | None:
    """Return the change that an item needs, or None when all is there already."""
    old = _read(item.path)
    try:
        new = blocks.put(old or b"", item.data) if item.block else item.data
    except blocks.DamagedBlockError as error:
        raise LeftAloneError(f"{item.path} {error}") from None
    if old == new and _mode_fits(item):
        return None
    return _allowed(Change(item.path, item.what, old, new, item.block, item.mode))


def make(change: Change, record: Path) -> None:
    """Write one file, after the record of what undo will need."""
    known = read_record(record)
    folders = {str(folder) for place in (change.path, record) for folder in _missing(place.parent)}
    known["folders"] += sorted(folders - set(known["folders"]))
    path, created = str(change.path), change.old is None
    if path in known["files"] or created or not change.block:
        entry = known["files"].setdefault(path, {"old": _packed(change.old), "block": change.block})
        entry["new"] = _digest(change.new or b"")
    files.write(record, json.dumps(known, indent=1).encode() + b"\n", 0o600)
    files.write(change.path, change.new or b"", change.mode)


def plan_undo(path: Path, record: Any, *, own: bool) -> Change | None:
    """Return the change that gives a file back as it was; a file of crab's ``own`` goes in any case."""
    old = _read(path)
    new = None if old is None or own else _before(path, old, record["files"].get(str(path)))
    if new == old:
        return None
    return _allowed(Change(path, "removed" if new is None else "as it was", old, new))


def take_back(change: Change) -> None:
    """Write what a file held, or remove what crab made."""
    if change.new is None:
        os.unlink(os.path.realpath(change.path))  # a link stays one
    else:
        files.write(change.path, change.new)


def forget(record: Path) -> None:
    """Remove the record, and the folders that crab made as far as they are empty."""
    folders = [*read_record(record)["folders"], str(record.parent)]
    if record.exists():
        record.unlink()
    for folder in sorted(set(folders), key=len, reverse=True):
        try:
            os.rmdir(folder)
        except OSError:  # not empty, or gone
            continue


def read_record(record: Path) -> Any:
    """Return the record; an empty one when there is none, or none that can be read."""
    try:
        known = json.loads(record.read_bytes())
        return {"files": dict(known["files"]), "folders": list(known["folders"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"files": {}, "folders": []}


def _before(path: Path, now: bytes, entry: dict[str, Any] | None) -> bytes | None:
    """Return what a file held before crab came; None when there was none."""
    if entry and not entry["block"]:
        if _digest(now) != entry["new"]:
            raise LeftAloneError(f"{path} was changed since: left as it is")
        return None if entry["old"] is None else base64.b64decode(entry["old"])
    try:
        rest = blocks.take(now)
    except blocks.DamagedBlockError as error:
        raise LeftAloneError(f"{path} {error}") from None
    return None if entry and not rest and entry["old"] is None else rest


def _allowed(change: Change) -> Change:
    reason = files.why_not(change.path)
    if reason:
        raise LeftAloneError(f"{change.path} {reason}: left as it is")
    return change


def _read(path: Path) -> bytes | None:
    try:
        return files.read(path)
    except OSError as error:
        raise LeftAloneError(f"{path} cannot be read ({error.strerror}): left as it is") from None


def _mode_fits(item: Item) -> bool:
    return item.mode is None or stat.S_IMODE(item.path.stat().st_mode) == item.mode


def _missing(folder: Path) -> Iterator[Path]:
    """Yield the folders that do not exist yet, the deepest first."""
    while not folder.exists():
        yield folder
        folder = folder.parent


def _packed(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
