"""What the file system of a folder can do, tried at the start: a checkpoint appears by a rename.

On mounts of object stores a rename may be missing, or be a copy that one can catch half-done. The manifest,
written last, still tells a whole checkpoint from a part of one; that it must is recorded and said.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any, Iterator

from hermitcrab.checkpoint import writers

MOUNTS = Path("/proc/self/mountinfo")
# Their rename of a folder copies object by object.
OBJECT_STORES = re.compile(r"s3|gcs|goofys|geesefs|rclone|ossfs|cosfs|obsfs|bosfs|tosfs|blobfuse", re.IGNORECASE)
TEXT = b"hermitcrab\n"


def probe(folder: Path, mounts: Path = MOUNTS) -> dict[str, Any]:
    """Describe a folder's file system: its kind, whether a rename works, and whether it is one step."""
    kind, renames = kind_of(folder, mounts), _renames(folder)
    return {"kind": kind, "rename": renames, "atomic": renames and not OBJECT_STORES.search(kind)}


def doubts(found: dict[str, Any]) -> Iterator[str]:
    """Say what the user should know of it."""
    if found["rename"] is False:
        yield f"WARNING: nothing can be renamed on this {found['kind']}: each checkpoint is written twice"
    elif found["rename"] and not found["atomic"]:
        yield f"on this {found['kind']} a rename is no single step: only the manifest tells a whole checkpoint"


def kind_of(folder: Path, mounts: Path = MOUNTS) -> str:
    """The kind of the file system that a folder lies on, and for FUSE what is mounted there."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return "unknown"
    place, longest, kind = os.path.realpath(folder), "", "unknown"
    for line in lines:
        before, _, after = line.partition(" - ")
        mount = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), before.split()[4])
        if f"{place}/".startswith(mount.rstrip("/") + "/") and len(mount) >= len(longest):
            name, source = after.split()[:2]
            longest, kind = mount, f"{name} of {source}" if name.startswith("fuse") else name
    return kind


def _renames(folder: Path) -> bool | None:
    """Rename a file over another and a folder, and look at the result; None where nothing can be written."""
    old = folder / writers.temporary_name("probe")
    new = old.with_name(f"{old.name}-renamed")
    try:
        os.makedirs(old)
        (old / "a").write_bytes(TEXT)
        (old / "b").write_bytes(b"")
    except OSError:
        shutil.rmtree(old, ignore_errors=True)
        return None
    try:
        os.replace(old / "a", old / "b")
        os.rename(old, new)
        return os.listdir(new) == ["b"] and (new / "b").read_bytes() == TEXT and not old.exists()
    except OSError:
        return False
    finally:
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(new, ignore_errors=True)
