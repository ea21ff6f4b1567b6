"""Files as crab writes them: whole at every moment, through links, with the mode and owner they had."""

from __future__ import annotations

import ctypes
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any


def read(path: Path) -> bytes | None:
    """Return what a file holds, or None where there is none."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def why_not(path: Path) -> str:
    """Say why a file should not be written: its owner made it read-only, or it is no file; else nothing."""
    target = Path(os.path.realpath(path))
    if not target.exists():
        return "is a link that leads in a circle" if target.is_symlink() else ""
    if not target.is_file():
        return "is no file"
    # Root may write everything; an owner who took the right away still meant it.
    if not target.stat().st_mode & stat.S_IWUSR or not os.access(str(target), os.W_OK):
        return "is read-only"
    return ""


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; one that is missing, cut or of another kind is empty."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write(path: Path, data: bytes, mode: int | None = None, *, sync: bool = True) -> None:
    """Write a file; a link stays one, and without ``mode`` an old file keeps its own.

    Without ``sync`` it is quick, and may be gone after a power cut.
    """
    target = Path(os.path.realpath(path))
    make_folder(target.parent)
    old = target.stat() if target.exists() else None
    owner = old or target.parent.stat()
    kept = stat.S_IMODE(old.st_mode) if old else 0o644
    descriptor, temporary = tempfile.mkstemp(dir=str(target.parent), prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        _give(temporary, owner if old or os.geteuid() == 0 else None)
        os.chmod(temporary, kept if mode is None else mode)
        os.replace(temporary, str(target))
    except BaseException:
        os.unlink(temporary)
        raise


def make_folder(folder: Path) -> None:
    """Make a folder and those above it."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o755)
        _give(str(folder), folder.parent.stat() if os.geteuid() == 0 else None)


def sync(folder: Path) -> None:
    """Put what others wrote to the folder's disk there for good: until then a power cut would leave empty files."""
    handle = os.open(str(folder), os.O_RDONLY)
    try:
        if ctypes.CDLL(None).syncfs(handle):
            os.sync()
    except AttributeError:  # not every C library has it
        os.sync()
    finally:
        os.close(handle)


def because(error: OSError) -> str:
    """Return the reason of a failure in a few words."""
    return error.strerror or str(error)


def _give(path: str, owner: os.stat_result | None) -> None:
    """Give a file its old owner; a new one that root makes in a user's home is the user's (`sudo crab setup`)."""
    if owner and (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(path, owner.st_uid, owner.st_gid)
