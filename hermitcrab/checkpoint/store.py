"""The folder of a run: checkpoints that appear by rename, and what is found, checked and removed there.

Standard library only, so that `crab ckpt` looks at a folder without torch::

    runs/exp1/step_00001200/state.pt, manifest.json     a checkpoint; nothing half-written has such a name
    runs/exp1/bad/step_00001100/, step_00001100.txt     one that failed, set aside with the reason
    runs/exp1/.tmp_step_00001300.HOST.BOOT.PID.START/   being written; swept when its writer is dead
    runs/exp1/latest                                    the newest one's name: a hint, never trusted
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Mapping, NamedTuple

from hermitcrab.checkpoint import writers
from hermitcrab.errors import UserError

FORMAT = 1
NO_GOOD_CHECKPOINT = 65  # exit status: checkpoints are there, and none of them loads (EX_DATAERR)
NAME = re.compile(r"step_(\d{8,})(?:-\w+)?")
MANIFEST = "manifest.json"
CHUNK = 1 << 22
Manifest = Dict[str, Any]
Write = Callable[[BinaryIO], Any]


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


class Tee:
    """A binary file that keeps the size and the checksum of what passes through."""

    def __init__(self, file: Any) -> None:
        self.file, self.size, self.crc32 = file, 0, 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Pass the bytes on; torch hands over views of any element size."""
        view = memoryview(data).cast("B")
        self.crc32 = zlib.crc32(view, self.crc32)
        self.size += len(view)
        try:
            for start in range(0, len(view), CHUNK):
                self.file.write(view[start : start + CHUNK])
        except OSError as error:
            self.error = error
            raise
        return len(view)

    def flush(self) -> None:
        """Pass it on; torch calls this."""
        self.file.flush()


def commit(folder: Path, step: int, manifest: Manifest, files: Mapping[str, Write]) -> Path:
    """Write a checkpoint and let it appear; whatever fails on the way, the others stay as they are."""
    temporary = write(folder, step, manifest, files)
    try:
        target = _place(folder, step, manifest)
        if target.exists():  # the same step of the same run is there, and good
            shutil.rmtree(temporary)
            return target
        os.rename(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync_folder(folder)
    replace(folder / "latest", target.name + "\n")
    return target


def write(folder: Path, step: int, manifest: Manifest, files: Mapping[str, Write]) -> Path:
    """Write all of a checkpoint into a temporary folder beside its place: data first, manifest last."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / writers.temporary_name(f"step_{step:08d}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        os.mkdir(temporary)
        sums = {name: _write_file(temporary / name, work) for name, work in files.items()}
        text = dumps({**manifest, "format": FORMAT, "step": step, "files": sums})
        _write_file(temporary / MANIFEST, lambda file: file.write(text.encode()))
        _sync_folder(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return temporary


def verify(path: Path) -> Manifest:
    """Return the manifest of a checkpoint whose every byte is as it was written; raises BadError with the reason."""
    manifest = read_manifest(path)
    for name, told in manifest["files"].items():
        try:
            size, crc32 = _measure(path / name)
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
    _sync_folder(path.parent)
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
        shutil.rmtree(path, ignore_errors=True)
        gone.append(path)
    return gone, left


def replace(path: Path, text: str) -> None:
    """Write a small file in one go: the old text or the new, never a part."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    _write_file(temporary, lambda file: file.write(text.encode()), mode="wb")
    os.replace(temporary, path)


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


def _place(folder: Path, step: int, manifest: Manifest) -> Path:
    """The name to take: the plain one, unless another run has it. A bad checkpoint there is set aside."""
    plain = folder / f"step_{step:08d}"
    for path in (plain, folder / f"{plain.name}-{manifest.get('run', 'x')}"):
        if not path.exists():
            return path
        try:
            if verify(path).get("run") == manifest.get("run"):
                return path
        except BadError as error:
            set_aside(path, str(error))
            return path
    return plain.with_name(f"{plain.name}-{os.getpid()}")  # a run's id stolen by another run's: never lose this one


def _checksum(manifest: Manifest) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())


def _write_file(path: Path, work: Write, *, mode: str = "xb") -> dict[str, int]:
    with open(path, mode) as file:
        tee: Any = Tee(file)
        try:
            work(tee)
        except Exception:
            if tee.error:  # torch tells of "unexpected pos 704 vs 598" instead of a full disk
                raise tee.error from None
            raise
        file.flush()
        os.fsync(file.fileno())
    return {"size": tee.size, "crc32": tee.crc32}


def _measure(path: Path) -> tuple[int, int]:
    size = crc32 = 0
    buffer = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        count = file.readinto(buffer)
        while count:
            crc32, size = zlib.crc32(buffer[:count], crc32), size + count
            count = file.readinto(buffer)
    return size, crc32


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
