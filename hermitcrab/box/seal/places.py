"""Which paths of this box a row's patterns mean, and what of its root lies on the system disk."""

from __future__ import annotations

import os
import re
import stat
from fnmatch import translate
from pathlib import Path
from typing import Iterable, Iterator, Mapping, NamedTuple

from hermitcrab.box.disks import read_mounts
from hermitcrab.box.seal.rows import ANYWHERE, Row
from hermitcrab.box.session import pid1

# For each path the rows that may mean it, and through which link it was reached, if any.
Anchors = Mapping[str, "list[tuple[Row, str]]"]
# Never part of a saved image, mounted or not.
_KERNEL = ("/proc", "/sys", "/dev")
_MANY_LINKS = 20
# A link is waste itself, or the user's way to have a cache elsewhere; of any other kind, what it leads to counts.
_LINKS_TOO = ("temp", "list", "state")
_LINKS_STAY = ("cache", "log", "data")


class Place(NamedTuple):
    """A root filesystem; all paths in it are told from there, and begin with a slash."""

    root: str  # "" is the machine's own
    device: int
    beyond: frozenset[str]  # mount points, and what was said to be another disk
    homes: tuple[str, ...]
    variables: Mapping[str, str]

    def real(self, path: str) -> str:
        """Return the path for the system's calls."""
        return self.root + path or "/"

    def is_beyond(self, path: str, status: os.stat_result) -> bool:
        """Whether a path leads off the system disk."""
        # An overlay gives files, but never folders, the device of the layer they lie in.
        return path in self.beyond or (stat.S_ISDIR(status.st_mode) and status.st_dev != self.device)

    def read(self, path: str, most: int) -> bytes:
        """Read the beginning of a regular file."""
        handle = os.open(self.real(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            return file.read(most)


def find(root: Path, environ: Mapping[str, str], beyond: Iterable[str] = ()) -> Place:
    """Describe a root filesystem; beyond are further folders that are not on its disk."""
    mounts = {mount.path for mount in read_mounts(root)} - {"/"}
    top = str(root).rstrip("/")
    apart = frozenset((*_KERNEL, *mounts, *(path.rstrip("/") for path in beyond))) - {""}
    # What the platform gave to PID 1 need not have reached this shell.
    variables = {**pid1(root), **environ}
    return Place(top, os.stat(top or "/").st_dev, apart, tuple(_homes(root, environ)), variables)


def anchors(place: Place, rows: Iterable[Row]) -> Anchors:
    """Find what the rows' patterns mean, for all but those that begin anywhere."""
    found: dict[str, list[tuple[Row, str]]] = {}
    for row in rows:
        reached = [one for pattern in row.patterns for one in _places(place, row, pattern)]
        # What is also reached without a link is no matter of the link.
        for path, linked in sorted(reached, key=lambda one: bool(one[1])):
            found.setdefault(path, []).append((row, linked))
    return found


def matches(place: Place, pattern: str) -> bool:
    """Whether anything lies where the pattern says."""
    return any(_expand(place, "", pattern, _LINKS_TOO[0]))


class Names:
    """The patterns that may begin anywhere, compared with the last one or two names of a path."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._folders: list[tuple[Row, bool, re.Pattern[str]]] = []
        self._files: list[tuple[Row, bool, re.Pattern[str]]] = []
        for row in rows:
            for pattern in (text[len(ANYWHERE) :] for text in row.patterns if text.startswith(ANYWHERE)):
                kind, text = (self._folders, pattern[:-1]) if pattern.endswith("/") else (self._files, pattern)
                kind.append((row, "/" in text, _compile(text)))

    def rows(self, path: str, *, folder: bool) -> Iterator[Row]:
        """Yield the rows that mean a path."""
        name, pair = path.rsplit("/", 1)[-1], "/".join(path.rsplit("/", 2)[-2:])
        for row, two, pattern in self._folders if folder else self._files:
            if pattern.match(pair if two else name):
                yield row


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def _homes(root: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the folders of the people who use the box, root's first."""
    found = ["/root", environ.get("HOME", "")]
    try:
        lines = (root / "etc/passwd").read_text(errors="surrogateescape").splitlines()
    except OSError:
        lines = []
    users = (line.split(":") for line in lines)
    found += [user[5] for user in users if len(user) == 7 and _is_person(user[2])]
    found += [f"/home/{name}" for name in _names(str(root / "home"))]
    for home in dict.fromkeys(os.path.normpath(home) for home in found if home.startswith("/")):
        yield "" if home == "/" else home


def _is_person(uid: str) -> bool:
    return uid.isdigit() and (int(uid) == 0 or 1000 <= int(uid) < 65534)


def _places(place: Place, row: Row, pattern: str) -> Iterator[tuple[str, str]]:
    if pattern.startswith("~"):
        bases, rest = list(place.homes), pattern[1:]
    elif pattern.startswith("$"):
        name, slash, rest = pattern[1:].partition("/")
        bases, rest = _folder(place.variables.get(name, "")), slash + rest
    elif pattern.startswith(ANYWHERE):
        return
    else:
        bases, rest = [""], pattern
    for base in bases:
        for path, linked in _expand(place, base, rest, row.kind):
            # What a variable alone names may be anything: a folder is never taken for it.
            if rest or os.path.isfile(place.real(path)):
                yield path, linked


def _folder(value: str) -> list[str]:
    path = os.path.normpath(value) if value.startswith("/") else "/"
    return [] if path in {"/", "//"} else [path]


def _expand(place: Place, base: str, rest: str, kind: str) -> Iterator[tuple[str, str]]:
    """Yield each path that is there, and the link that it is reached through."""
    todo = [("", "", [part for part in f"{base}{rest}".split("/") if part], len(base.split("/")) - 1)]
    while todo:
        folder, linked, parts, literal = todo.pop()
        if not parts:
            yield folder, linked
            continue
        # A home's own name is no pattern, whatever signs are in it.
        pattern = parts[0] if literal <= 0 and re.search(r"[*?[]", parts[0]) else ""
        names = _matching(place.real(folder), pattern) if pattern else [parts[0]]
        for name in names:
            step = _step(place, f"{folder}/{name}", kind if len(parts) == 1 else "")
            if step:
                todo.append((step[0], linked or step[1], parts[1:], literal - 1))


def _step(place: Place, path: str, kind: str) -> tuple[str, str] | None:
    """Return the path itself, or where the link there leads on the same disk; kind is given for the last name."""
    try:
        status = os.lstat(place.real(path))
    except OSError:
        return None
    if place.is_beyond(path, status):
        return None
    if not stat.S_ISLNK(status.st_mode) or kind in _LINKS_TOO:
        return path, ""
    if kind in _LINKS_STAY:
        return None
    target = resolve(place, path)
    return (target, f"reached through the link {path}") if target else None


def resolve(place: Place, path: str) -> str | None:
    """Follow links inside the root; None when they lead off the system disk or nowhere."""
    done, todo, links = "", path.split("/")[1:], 0
    while todo:
        name = todo.pop(0)
        if name in {"", "."}:
            continue
        here = os.path.dirname(done).rstrip("/") if name == ".." else f"{done}/{name}"
        try:
            status = os.lstat(place.real(here))
            target = os.readlink(place.real(here)) if stat.S_ISLNK(status.st_mode) else None
        except OSError:
            return None
        links += target is not None
        if place.is_beyond(here, status) or links > _MANY_LINKS:
            return None
        if target is None:
            done = here
        else:
            done, todo = "" if target.startswith("/") else done, target.split("/") + todo
    return done or None


def _matching(folder: str, pattern: str) -> list[str]:
    wanted = _compile(pattern)
    return [name for name in _names(folder) if wanted.match(name)]


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
