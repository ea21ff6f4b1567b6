"""Takes away what a scan found, and nothing else.

Between the scan and the deletion anyone may put a symbolic link in the way. So every folder is
opened from the root down, name by name, following none, and what is in it is removed by its name in
that open folder. Each step can be killed: the next run finds what is left.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import Callable, Collection, Iterator

from hermitcrab.box.seal.edits import EDITS
from hermitcrab.box.seal.places import Place
from hermitcrab.box.seal.scan import Item

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def clean_item(place: Place, item: Item, spared: Collection[str]) -> list[str]:
    """Clean one item but for the spared paths in it; return what went wrong, a line each."""
    if item.row.clean in EDITS:
        return list(_edit(place, item.path, EDITS[item.row.clean]))
    return list(_each(place, item.path, spared, _truncate if item.row.clean == "truncate" else _remove))


_Act = Callable[[int, str, os.stat_result], None]


def _each(place: Place, path: str, spared: Collection[str], act: _Act) -> Iterator[str]:
    """Act on everything in a tree, the deepest first, and at last on its top."""
    tree, failures = _folders(place, path, spared)
    yield from failures
    for folder in reversed(tree):
        yield from _in(place, folder, None, spared, act)
    parent, name = path.rsplit("/", 1)
    yield from _in(place, parent, [name], spared, act)


def _folders(place: Place, path: str, spared: Collection[str]) -> tuple[list[str], list[str]]:
    """List the folders of a tree from the top, as far as it lies on this disk."""
    found, failures, todo = [], [], [path]
    while todo:
        folder = todo.pop()
        try:
            status = os.lstat(place.real(folder))
            if not stat.S_ISDIR(status.st_mode) or folder in spared or place.is_beyond(folder, status):
                continue
            found.append(folder)
            todo += [f"{folder}/{name}" for name in os.listdir(place.real(folder))]
        except FileNotFoundError:
            continue
        except OSError as error:
            failures.append(_failure(folder, error))
    return found, failures


def _in(place: Place, folder: str, names: list[str] | None, spared: Collection[str], act: _Act) -> Iterator[str]:
    """Act on what is in one folder: the named, or all."""
    try:
        with _opened(place, folder) as handle:
            for name in os.listdir(handle) if names is None else names:
                path = f"{folder}/{name}"
                if path not in spared and path not in place.beyond:
                    yield from _one(handle, name, path, act)
    except FileNotFoundError:
        return
    except OSError as error:
        yield _failure(folder or "/", error)


def _one(handle: int, name: str, path: str, act: _Act) -> Iterator[str]:
    try:
        act(handle, name, os.stat(name, dir_fd=handle, follow_symlinks=False))
    except FileNotFoundError:
        return
    except OSError as error:
        yield _failure(path, error)


def _remove(handle: int, name: str, status: os.stat_result) -> None:
    """Remove a file, a link or a folder; a folder with something spared in it stays."""
    with _writable(handle):
        if stat.S_ISDIR(status.st_mode):
            _remove_folder(handle, name)
        # A socket, a pipe or a device holds nothing and may be in use.
        elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            os.unlink(name, dir_fd=handle)


def _remove_folder(handle: int, name: str) -> None:
    try:
        os.rmdir(name, dir_fd=handle)
    except OSError as error:
        # What is spared, a socket, or what another program made just now.
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise


def _truncate(handle: int, name: str, status: os.stat_result) -> None:
    """Empty a file that a program may have open; but not what has another name elsewhere."""
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return
    file = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
    try:
        shared = os.fstat(file).st_nlink > 1
        if not shared:
            os.ftruncate(file, 0)
    finally:
        os.close(file)
    if shared:
        _remove(handle, name, status)


def _edit(place: Place, path: str, edit: Callable[[bytes], bytes]) -> Iterator[str]:
    """Replace a file by what is left of it, whole at every moment; owner and mode stay."""
    folder, name = path.rsplit("/", 1)
    try:
        with _opened(place, folder) as handle:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
            with os.fdopen(file, "rb") as old:
                status, data = os.fstat(old.fileno()), old.read()
            _replace(handle, name, edit(data), status)
    except FileNotFoundError:
        return
    except OSError as error:
        yield _failure(path, error)


def _replace(handle: int, name: str, data: bytes, status: os.stat_result) -> None:
    # One name for every try, so that a killed run leaves nothing that the next does not use.
    new = f".{name}.crab-seal"
    with suppress(FileNotFoundError):
        os.unlink(new, dir_fd=handle)
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=handle)
    with os.fdopen(file, "wb") as target:
        target.write(data)
        target.flush()
        if os.geteuid() == 0:
            os.fchown(target.fileno(), status.st_uid, status.st_gid)
        os.fchmod(target.fileno(), stat.S_IMODE(status.st_mode))
        os.fsync(target.fileno())
    os.replace(new, name, src_dir_fd=handle, dst_dir_fd=handle)


@contextmanager
def _opened(place: Place, folder: str) -> Iterator[int]:
    """Open a folder from the root down without following a link; it must lie on the system disk."""
    handle = os.open(place.real(""), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in folder.split("/")[1:]:
            deeper = os.open(name, _FOLDER, dir_fd=handle)
            os.close(handle)
            handle = deeper
        if os.fstat(handle).st_dev != place.device:
            raise OSError("is on another disk")
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _writable(handle: int) -> Iterator[None]:
    """Let the owner of a read-only folder remove what is in it."""
    status = os.fstat(handle)
    if not status.st_mode & stat.S_IWUSR and status.st_uid == os.geteuid():
        os.fchmod(handle, stat.S_IMODE(status.st_mode) | stat.S_IRWXU)
    yield


def _failure(path: str, error: OSError) -> str:
    return f"{path}: {error.strerror or error}"
