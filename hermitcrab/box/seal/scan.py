"""Walks the system disk once and says what on it belongs to which row.

It reads directories and small files and changes nothing. It stays on one file system: what is
mounted elsewhere is in no saved image. It follows no symbolic link while it walks; where a place of
the tables is reached only through a link, what lies there is asked about, never taken.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Iterable, NamedTuple

from hermitcrab.box.seal import places, waste
from hermitcrab.box.seal.edits import EDITS, secret_names
from hermitcrab.box.seal.places import Anchors, Names, Place
from hermitcrab.box.seal.rows import SECRETS, Row, paths

SMALL = 1 << 20  # what a secret is looked for in
# Where files belong to packages: sized, but not searched for secrets and data.
SYSTEM = frozenset(
    paths(
        "/usr /lib /lib32 /lib64 /libx32 /bin /sbin /boot /snap /nix",
        "/var/lib/docker /var/lib/containerd /var/lib/dpkg /etc/ssl/certs",
    )
)
# A folder that holds one of the marks is a Python environment; these are what is Python's own in it.
_ENVIRONMENT_MARKS = frozenset(("pyvenv.cfg", "conda-meta"))
_ENVIRONMENT_FOLDERS = frozenset(paths("bin conda-meta condabin include lib lib64 libexec pkgs share ssl"))
_PACKAGES = re.compile(r"(site|dist)-packages|node_modules|python\d(\.\d+)?t?")


class Item(NamedTuple):
    """One file or folder that a row names, and what would be gained without it."""

    row: Row
    path: str
    bytes: int
    files: int
    asked: bool  # stays unless included by name
    note: str = ""


class Scan(NamedTuple):
    """All that was found, the use of the disk, and what could not be looked at."""

    items: tuple[Item, ...]
    used: int
    unread: tuple[tuple[str, str], ...]  # path and reason


class _Fit(NamedTuple):
    """That a row means a path: what is to be said, and what an edit of it gains."""

    note: str = ""
    gain: int = 0


class _Count:
    """What adds up for one item while the walk goes on."""

    def __init__(self, row: Row, path: str, note: str, *, asked: bool) -> None:
        self.row, self.path, self.note, self.asked = row, path, note, asked
        self.bytes = self.files = 0


class _Walk:
    """The state of one walk."""

    def __init__(self, place: Place, anchors: Anchors, names: Names) -> None:
        self.place, self.anchors, self.names = place, anchors, names
        self.counts: list[_Count] = []
        self.unread: list[tuple[str, str]] = []
        self.used = 0
        self.links: dict[int, list[_Count | None]] = {}  # the names of an inode that has several


def scan(place: Place, rows: Iterable[Row] = waste.ROWS) -> Scan:
    """Walk the disk; every path goes to the first row that fits it."""
    rows = tuple(rows)
    walk = _Walk(place, places.anchors(place, rows), places.Names(rows))
    todo: list[tuple[str, _Count | None, bool]] = [("", None, False)]
    while todo:
        folder, owner, calm = todo.pop()
        todo += _visit(walk, folder, owner, calm)
    # An empty folder is no waste: what was in it may just have been cleaned.
    items = (_item(count) for count in walk.counts if count.files)
    found = tuple(sorted((item for item in items if item.bytes >= item.row.at_least), key=lambda item: item.path))
    return Scan(found, walk.used, tuple(walk.unread))


def _visit(walk: _Walk, folder: str, owner: _Count | None, calm: bool) -> list[tuple[str, _Count | None, bool]]:
    """Look at one folder and return the folders in it; calm is where only the particular rows count."""
    try:
        with os.scandir(walk.place.real(folder)) as listed:
            entries = list(listed)
    except OSError as error:
        walk.unread.append((folder or "/", error.strerror or str(error)))
        return []
    environment = not _ENVIRONMENT_MARKS.isdisjoint(entry.name for entry in entries)
    if environment:
        owner = _environment(walk, folder, owner)
    inside = []
    for entry in entries:
        path = f"{folder}/{entry.name}"
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError as error:
            walk.unread.append((path, error.strerror or str(error)))
            continue
        if walk.place.is_beyond(path, status):
            continue
        mine = _owner(walk, path, status, owner, calm)
        _add(walk, mine, status)
        if stat.S_ISDIR(status.st_mode):
            own = environment and entry.name in _ENVIRONMENT_FOLDERS
            calmer = own or path in SYSTEM or bool(_PACKAGES.fullmatch(entry.name))
            inside.append((path, mine, calm or calmer))
    return inside


def _owner(walk: _Walk, path: str, status: os.stat_result, owner: _Count | None, calm: bool) -> _Count | None:
    """Return what the path counts for: a row of its own, that of its folder, or nothing."""
    for row, linked in walk.anchors.get(path, ()):
        fit = _fits(walk, row, path, status)
        if fit:
            return _open(walk, row, path, fit, asked=row.ask or bool(linked), linked=linked)
    if calm or (owner is not None and not owner.asked):
        return owner
    for row in walk.names.rows(path, folder=stat.S_ISDIR(status.st_mode)):
        # Data within data is no second question, unless the folder alone may be too small for one.
        if owner is not None and row.kind not in SECRETS and (row.at_least or not owner.row.at_least):
            continue
        fit = _fits(walk, row, path, status)
        if fit:
            return _open(walk, row, path, fit, asked=row.ask)
    return owner


def _fits(walk: _Walk, row: Row, path: str, status: os.stat_result) -> _Fit | None:
    """Say whether a row means this path, and what is to be noted about it."""
    regular = stat.S_ISREG(status.st_mode)
    if row.at_least and regular and _disk_use(status) < row.at_least:
        return None
    if not row.holds and row.clean not in EDITS:
        empty = row.clean == "truncate" and regular and status.st_size == 0
        return None if empty else _Fit(_hard_links(row, status))
    if not regular or status.st_size == 0:
        return None
    try:
        return _fits_content(row, walk.place.read(path, SMALL), status)
    except OSError as error:
        walk.unread.append((path, error.strerror or str(error)))
        return None


def _fits_content(row: Row, data: bytes, status: os.stat_result) -> _Fit | None:
    if row.holds and not row.holds(data):
        return None
    edited = EDITS[row.clean](data) if row.clean in EDITS else data
    if row.clean in EDITS and edited == data:
        return None
    names = secret_names(data) if row.clean == "values" else ()
    said = ", ".join(f"line {line}: {name}=***" for line, name in names)
    return _Fit(said or _hard_links(row, status), len(data) - len(edited))


def _hard_links(row: Row, status: os.stat_result) -> str:
    linked = row.kind in SECRETS and stat.S_ISREG(status.st_mode) and status.st_nlink > 1
    return "has another name (hard link), which keeps it" if linked else ""


def _open(walk: _Walk, row: Row, path: str, fit: _Fit, *, asked: bool, linked: str = "") -> _Count:
    count = _Count(row, path, "; ".join(filter(None, (linked, fit.note))), asked=asked)
    count.bytes = fit.gain
    walk.counts.append(count)
    return count


def _environment(walk: _Walk, folder: str, owner: _Count | None) -> _Count | None:
    """Keep an environment out of the waste around it; uv's own are made again when they are missed."""
    if owner is None or owner.asked or owner.row.id == "uv":
        return owner
    return _open(walk, waste.ENVIRONMENT, folder, _Fit(), asked=True)


def _add(walk: _Walk, count: _Count | None, status: os.stat_result) -> None:
    """Count a path: bytes that other names share are free only when all of these names go."""
    folder, gain = stat.S_ISDIR(status.st_mode), _disk_use(status)
    names: list[_Count | None] = [count]
    if not folder and status.st_nlink > 1:
        names = walk.links.setdefault(status.st_ino, [])
        names.append(count)
    walk.used += gain if len(names) == 1 else 0
    if count is None:
        return
    if count.row.clean != "delete" and (folder or count.row.clean != "truncate"):
        gain = 0  # what an edit gains is known already, and a name gains nothing
    if folder or (len(names) == status.st_nlink and None not in names):
        count.bytes += gain
    if not folder:
        _add_file(count, status)


def _add_file(count: _Count, status: os.stat_result) -> None:
    # A socket or a pipe holds no bytes and may be a running program's only door: it stays.
    if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
        count.files += 1 if status.st_size or count.row.clean != "truncate" else 0


def _disk_use(status: os.stat_result) -> int:
    # Small files may lie inside their inode and own no block.
    return status.st_blocks * 512 or min(status.st_size, 4096)


def _item(count: _Count) -> Item:
    return Item(count.row, count.path, count.bytes, count.files, count.asked, count.note)
