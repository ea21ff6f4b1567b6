"""The folder of a run: checkpoints that appear by rename, and what is found, checked and removed there.

Standard library only, so that `crab ckpt` looks at a folder without torch::

    runs/exp1/step_00001200/state.pt, manifest.json     a checkpoint; nothing half-written has such a name
    runs/exp1/bad/step_00001100/, step_00001100.txt     one that failed, set aside with the reason
    runs/exp1/.tmp_step_00001300.HOST.BOOT.PID.START/   being written; swept when its writer is dead
    runs/exp1/latest                                    the newest one's name: a hint, never trusted
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import zlib
from pathlib import Path
from typing import Any, Dict, NamedTuple

from hermitcrab.checkpoint import tee, writers
from hermitcrab.errors import UserError

FORMAT = 1
NO_GOOD_CHECKPOINT = 65  # exit status: checkpoints are there, and none of them loads (EX_DATAERR)
NAME = re.compile(r"step_(\d{8,})(?:-\w+)?")
MANIFEST = "manifest.json"
Manifest = Dict[str, Any]


class BadError(Exception):
    """Why a directory is no checkpoint."""


class NoGoodCheckpointError(UserError, SystemExit):  # type: ignore[misc] # both call it `code`, and mean the same
    """Checkpoints are there and none loads; uncaught, it ends the program with an exit status of its own."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=NO_GOOD_CHECKPOINT)


class Found(NamedTuple):
    """A directory with a checkpoint's name; only ``verify`` says whether it is one."""

    step: int
    path: Path


def verify(path: Path) -> Manifest:
    """Return the manifest of a checkpoint whose every byte is as it was written; raises BadError with the reason."""
    manifest = read_manifest(path)
    for name, told in manifest["files"].items():
        try:
            size, crc32 = tee.measure(path / name).values()
        except OSError as error:
            raise BadError(f"{name}: {error.strerror or error}") from error
        if size != told["size"]:
            raise BadError(f"{name} has {size} bytes instead of {told['size']}")
        if crc32 != told["crc32"]:
            raise BadError(f"{name} has changed: checksum {crc32:08x} instead of {told['crc32']:08x}")
    return manifest


def read_manifest(path: Path) -> Manifest:
    """Return a checkpoint's manifest without looking at its data; raises BadError with the reason."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        crc32 = manifest.pop("crc32")
        step, sums, kind = manifest["step"], manifest["files"], manifest["format"]
    except OSError as error:
        raise BadError(f"{MANIFEST}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadError(f"{MANIFEST} is none: {error!r}") from error
    if _checksum(manifest) != crc32:
        raise BadError(f"{MANIFEST} has changed: its checksum does not fit")
    if kind > FORMAT:
        raise UserError(f"{path} has format {kind}, this hermitcrab reads {FORMAT}: update hermitcrab")
    named = NAME.fullmatch(path.name)
    if not sums or (named and int(named[1]) != step):
        raise BadError(f"{MANIFEST} belongs to step {step} and names {len(sums)} files")
    return dict(manifest)


def found(folder: Path) -> list[Found]:
    """List what has a checkpoint's name, the newest step first."""
    if not folder.is_dir():
        return []
    named = ((NAME.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir())
    return sorted((Found(int(match[1]), path) for match, path in named if match), reverse=True)


def set_aside(path: Path, reason: str) -> Path:
    """Move a checkpoint out of the way and keep the reason beside it; nothing is deleted."""
    bad = path.parent / "bad"
    bad.mkdir(exist_ok=True)
    names = [path.name, *(f"{path.name}.{number}" for number in range(1, 1000))]
    target = next(bad / name for name in names if not (bad / name).exists())
    os.rename(path, target)
    replace(bad / f"{target.name}.txt", reason + "\n")
    tee.sync_folder(path.parent)
    return target


def remove(path: Path) -> None:
    """Delete a checkpoint: it loses its name at once, whenever its files go."""
    dying = path.with_name(f".del_{path.name}")
    shutil.rmtree(dying, ignore_errors=True)
    os.rename(path, dying)
    shutil.rmtree(dying, ignore_errors=True)


def sweep(folder: Path) -> tuple[list[Path], list[Path]]:
    """Remove what dead writers of this machine left; returns what is gone, and what others left or write."""
    gone, left = [], []
    for path in sorted(folder.glob(".tmp_*")) + sorted(folder.glob(".del_*")):
        if path.name.startswith(".tmp_") and not writers.is_dead(path.name):
            left.append(path)
            continue
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            gone.append(path)
    return gone, left


def replace(path: Path, text: str) -> None:
    """Write a small file in one go: the old text or the new, never a part."""
    temporary = path.with_name(writers.temporary_name(path.name))
    try:
        tee.write(temporary, lambda file: file.write(text.encode()), mode="wb")
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def dumps(manifest: Manifest) -> str:
    """Spell a manifest, its own checksum included."""
    return json.dumps({**manifest, "crc32": _checksum(manifest)}, indent=1, sort_keys=True) + "\n"


def reason_of(path: Path) -> str | None:
    """Say why a directory is no good checkpoint; None when it is one."""
    try:
        verify(path)
    except BadError as error:
        return str(error)
    return None


def _checksum(manifest: Manifest) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())
