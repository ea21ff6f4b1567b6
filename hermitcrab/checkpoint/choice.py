"""Which checkpoint to go on from: the newest good one that does not kill the program."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Callable, List, NamedTuple

from hermitcrab.checkpoint import store
from hermitcrab.checkpoint.store import Found, Manifest
from hermitcrab.errors import UserError

DEADLY = 2  # starts from one checkpoint that ended before the next one
RESUMED = "resumed.json"
Say = Callable[[str], None]
Load = Callable[[Path], Any]
Find = Callable[[Path], List[Found]]


class Chosen(NamedTuple):
    """A checkpoint that was read to its last byte, and its state."""

    path: Path
    manifest: Manifest
    state: Any


def choose(folder: Path, run: str | None, load: Load, say: Say, find: Find = store.found) -> Chosen | None:
    """Return the newest good checkpoint, None on a first run; raises NoGoodCheckpointError if there are only bad ones.

    Bad ones are set aside with the reason once a good one is found. With nothing good all stay in place,
    so that the next start stops as well: it must never begin at 0 over the ruins.
    """
    sweep(folder, say)
    bad: list[tuple[Path, str]] = []
    chosen = _newest(folder, find(folder), lambda item: _read(item, run, load, bad), bad, say)
    if chosen is None and (bad or _any_aside(folder)):
        reasons = "; ".join(f"{path.name}: {reason}" for path, reason in bad) or f"see {folder / 'bad'}"
        message = f"no checkpoint in {folder} is good ({reasons}); to begin anew on purpose: resume(fresh=True)"
        say(message)
        raise store.NoGoodCheckpointError(message)
    for path, reason in bad:
        set_aside(path, reason, say)
    if chosen:
        _count(folder, chosen.path)
    return chosen


def exactly(folder: Path, step: int, run: str | None, load: Load) -> Chosen:
    """Return one step's checkpoint and no other; raises UserError with the reason."""
    for item in store.found(folder):
        if item.step == step:
            try:
                manifest = store.verify(item.path)
                if run in {None, manifest.get("run")}:
                    return Chosen(item.path, manifest, load(item.path))
            except store.BadError as error:
                raise UserError(f"{item.path}: {error}") from error
    there = ", ".join(str(item.step) for item in store.found(folder)) or "none"
    raise UserError(f"no checkpoint of step {step} in {folder}; there are {there}", code=2)


def at(path: Path, folder: Path, load: Load) -> Chosen:
    """Return the checkpoint of a path and no other; raises UserError with the reason."""
    try:
        chosen = Chosen(path, store.verify(path), load(path))
    except store.BadError as error:
        raise UserError(f"{path}: {error}") from error
    if path.parent == folder:
        _count(folder, path)
    return chosen


def committed(folder: Path) -> None:
    """Note that the program got on: what it was resumed from is not deadly."""
    with contextlib.suppress(OSError):
        os.unlink(folder / RESUMED)


def sweep(folder: Path, say: Say) -> None:
    """Remove what writers of this machine left that are dead, and say so."""
    gone, left = store.sweep(folder)
    if gone:
        say(f"removed what ended programs left unfinished: {len(gone)} checkpoints or files")
    if left:
        say(f"left alone: {', '.join(path.name for path in left)}: of a living program or another machine")


def set_aside(path: Path, reason: str, say: Say) -> None:
    """Set a checkpoint aside and say so; where the disk forbids it, only say so."""
    try:
        store.set_aside(path, reason)
    except OSError as error:
        reason += f" (and cannot be moved: {error.strerror})"
    say(f"WARNING: {path.name} is not used: {reason}")


def leave_behind(folder: Path, run: str, step: int, say: Say) -> None:
    """Set aside what a run did after a step to which it went back: being newer, it would be kept and chosen instead."""
    for item in store.found(folder):
        if item.step > step and (_cheap(item.path) or {}).get("run") == run:
            set_aside(item.path, f"the run went back to step {step} and on from there", say)


def runs(folder: Path) -> list[str]:
    """Name the runs that have checkpoints here."""
    names = {str(manifest.get("run")) for item in store.found(folder) for manifest in [_cheap(item.path)] if manifest}
    return sorted(names)


def _newest(
    folder: Path, items: list[Found], read: Callable[[Found], Chosen | None], bad: list[tuple[Path, str]], say: Say
) -> Chosen | None:
    deadly: Chosen | None = None
    for item in items:
        chosen = read(item)
        if chosen and _is_deadly(folder, item.path):
            deadly = chosen
        elif chosen:
            if deadly:
                bad.append((deadly.path, f"it is sound, but the program died {DEADLY} times after resuming from it"))
            return chosen
    if deadly:
        say(f"WARNING: the program died {DEADLY} times after {deadly.path.name}, but there is no older checkpoint")
    return deadly


def _read(item: Found, run: str | None, load: Load, bad: list[tuple[Path, str]]) -> Chosen | None:
    try:
        if run is not None and store.read_manifest(item.path).get("run") != run:
            return None
        manifest = store.verify(item.path)
        return Chosen(item.path, manifest, load(item.path))
    except store.BadError as error:
        bad.append((item.path, str(error)))
        return None


def _any_aside(folder: Path) -> bool:
    return (folder / "bad").is_dir() and any(path.is_dir() for path in (folder / "bad").iterdir())


def _is_deadly(folder: Path, path: Path) -> bool:
    told = _resumed(folder)
    return told.get("name") == path.name and told.get("times", 0) >= DEADLY


def _count(folder: Path, path: Path) -> None:
    told = _resumed(folder)
    times = told.get("times", 0) + 1 if told.get("name") == path.name else 1
    with contextlib.suppress(OSError):  # a full disk must not keep a run from going on
        store.replace(folder / RESUMED, json.dumps({"name": path.name, "times": times}) + "\n")


def _resumed(folder: Path) -> dict[str, Any]:
    try:
        told = json.loads((folder / RESUMED).read_text())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) and isinstance(told.get("times"), int) else {}


def _cheap(path: Path) -> Manifest | None:
    try:
        return store.read_manifest(path)
    except store.BadError:
        return None
