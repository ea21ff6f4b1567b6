"""How a checkpoint comes to be: written beside its place, summed, then it appears by rename.

Standard library only. The steps are apart, so that several ranks can write into one checkpoint:
`begin` a folder, put files in it, `seal` it with the manifest, `publish` it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path
from typing import Mapping

from hermitcrab.checkpoint import store, tee, writers
from hermitcrab.checkpoint.store import Manifest
from hermitcrab.checkpoint.tee import Sum, Write

NO_RENAME = {errno.ENOSYS, errno.ENOTSUP, errno.EXDEV}


def commit(folder: Path, step: int, manifest: Manifest, files: Mapping[str, Write]) -> Path:
    """Write a checkpoint and let it appear; whatever fails on the way, the others stay as they are."""
    return publish(folder, step, manifest, write(folder, step, manifest, files))


def write(folder: Path, step: int, manifest: Manifest, files: Mapping[str, Write]) -> Path:
    """Write all of a checkpoint into a temporary folder beside its place: data first, manifest last."""
    temporary = begin(folder, step)
    try:
        sums = {name: tee.write(temporary / name, work) for name, work in files.items()}
        seal(temporary, step, manifest, sums)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return temporary


def begin(folder: Path, step: int) -> Path:
    """Make the temporary folder; its name tells the writer."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / writers.temporary_name(f"step_{step:08d}")
    shutil.rmtree(temporary, ignore_errors=True)
    os.mkdir(temporary)
    return temporary


def seal(temporary: Path, step: int, manifest: Manifest, sums: Mapping[str, Sum]) -> None:
    """Write the manifest, once all files are on the disk, and put their names on the disk."""
    text = store.dumps({**manifest, "format": store.FORMAT, "step": step, "files": dict(sums)})
    tee.write(temporary / store.MANIFEST, lambda file: file.write(text.encode()))
    for inner in {(temporary / name).parent for name in [*sums, store.MANIFEST]}:
        tee.sync_folder(inner)


def publish(folder: Path, step: int, manifest: Manifest, temporary: Path) -> Path:
    """Give a sealed folder its name. A good one of the same step and run stays, and is returned."""
    try:
        target = _place(folder, step, manifest)
        if not target.exists():
            _rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    tee.sync_folder(folder)
    with contextlib.suppress(OSError):  # a hint only
        store.replace(folder / "latest", target.name + "\n")
    return target


def sums_of(folder: Path) -> dict[str, Sum]:
    """Sum the files that another program wrote into a folder, once they are on the disk."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / store.MANIFEST)
    return {path.relative_to(folder).as_posix(): sum_of(path) for path in paths}


def sum_of(path: Path) -> Sum:
    """Put a file on the disk, then read it back."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return tee.measure(path)


def _rename(temporary: Path, target: Path) -> None:
    """Rename; on a mount that cannot, copy, the manifest last: without it a copy is no checkpoint."""
    try:
        os.rename(temporary, target)
    except OSError as error:
        if error.errno not in NO_RENAME:
            raise
        os.mkdir(target)
        names = sorted(path.relative_to(temporary) for path in temporary.rglob("*") if path.is_file())
        for name in sorted(names, key=lambda name: name.name == store.MANIFEST):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(temporary / name, target / name)
            sum_of(target / name)


def _place(folder: Path, step: int, manifest: Manifest) -> Path:
    """The name to take: the plain one, unless another run has it. A bad checkpoint there is set aside."""
    plain = folder / f"step_{step:08d}"
    for path in (plain, folder / f"{plain.name}-{manifest.get('run', 'x')}"):
        if not path.exists():
            return path
        try:
            if store.verify(path).get("run") == manifest.get("run"):
                return path
        except store.BadError as error:
            store.set_aside(path, str(error))
            return path
    return plain.with_name(f"{plain.name}-{os.getpid()}")  # a run's id stolen by another run's: never lose this one
