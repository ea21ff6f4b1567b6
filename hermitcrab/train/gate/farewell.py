"""What a power-off leaves behind: one line for the next login. It arms nothing; the next run takes it away."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Iterator, Mapping

from hermitcrab.box import files
from hermitcrab.train import places
from hermitcrab.train.journal import now
from hermitcrab.train.places import Run

NAME = "poweroff"
# On RunPod the home is wiped by a stop and this is not; templates/home/profile.sh knows both places.
WORKSPACE = Path("/workspace/.hermitcrab-poweroff")


def leave(run: Run, why: str, results: str, environ: Mapping[str, str] = os.environ) -> None:
    """Write the line: when, why, and where the results are."""
    text = f"hermitcrab: powered off at {now()}: {why}; results: {results}"
    plain = "".join(character if character.isprintable() else "?" for character in text)
    for place in (*_places(environ), run.folder / NAME):
        with suppress(OSError):
            files.write(place, f"{plain}\n".encode("utf-8", "replace"))


def clear(environ: Mapping[str, str] = os.environ) -> None:
    """Take the line away: somebody is at work again, or nothing was powered off after all."""
    for place in _places(environ):
        with suppress(OSError):
            place.unlink()


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    yield places.index(environ).parent / NAME
    if os.path.ismount(WORKSPACE.parent):
        yield WORKSPACE
