"""What an earlier training of a run's name has left, when it must not be gone on from."""

from __future__ import annotations

import os
import shutil

from hermitcrab.train.places import Run


def make_room(run: Run, *, remove: bool, keep: bool) -> None:
    """Remove what a short run has left, which was for nothing but its verdict; or set a real one's aside."""
    if remove:
        _remove(run)
    elif keep:
        _set_aside(run)


def _set_aside(run: Run) -> None:
    """Nothing is deleted, and nothing is mixed up."""
    names = (f"before-{number}" for number in range(1, 10_000))
    aside = next(path for path in map(run.folder.joinpath, names) if not path.exists())
    left = [path for path in run.folder.iterdir() if path.name != "lock" and not path.name.startswith("before-")]
    if left:
        aside.mkdir()
    for path in left:
        os.rename(path, aside / path.name)


def _remove(run: Run) -> None:
    for path in run.folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()
