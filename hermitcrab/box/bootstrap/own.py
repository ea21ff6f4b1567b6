"""A folder of hermitcrab's making: marked before it holds anything else, and until it holds nothing any more.

So a run that is cut off at any moment leaves what the next one knows for its own.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from hermitcrab.box import files
from hermitcrab.box.check.build import MANIFEST
from hermitcrab.errors import UserError

MARK = ".hermitcrab"


def refuse_foreign(folder: Path) -> None:
    """Never delete what somebody else made: UserError."""
    if not folder.exists() or any((folder / name).exists() for name in (MARK, MANIFEST)):
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise UserError(f"{folder} is there, and not of hermitcrab's making: move it away")


def claim(folder: Path) -> None:
    """Make a folder, or empty it, and leave the mark there; UserError when it is somebody else's."""
    refuse_foreign(folder)
    files.make_folder(folder)
    (folder / MARK).write_text("made by hermitcrab's bootstrap\n", encoding="ascii")
    # What says that it is whole goes first.
    for path in sorted(folder.iterdir(), key=lambda path: path.name != MANIFEST):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(str(path))
        elif path.name != MARK:
            path.unlink()


def remove(folder: Path) -> None:
    """Remove a folder with all that it holds; UserError when it is somebody else's."""
    if folder.exists():
        claim(folder)
        (folder / MARK).unlink()
        folder.rmdir()
