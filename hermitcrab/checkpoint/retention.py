"""Which checkpoints stay: the newest good ones, the best one, every Nth; never fewer than two good ones.

Decided anew from what is on disk after every commit, never from memory: a list that a restart forgets
deletes the wrong ones, and one of another run is not ours to delete.
"""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import Any, Callable, NamedTuple, Tuple

from hermitcrab.checkpoint import store
from hermitcrab.checkpoint.store import Manifest
from hermitcrab.errors import UserError

LEAST = 2  # one may turn out to be bad
Stamp = Tuple[Tuple[str, int, int], ...]


class Keep(NamedTuple):
    """What stays. ``best`` names a metric of which the lowest is best, or the highest with a ``+`` before it."""

    newest: int = LEAST
    every: int = 0
    best: str = ""


class Verified:
    """Remembers which checkpoints were read and found good, as long as their files stay untouched."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Stamp, Manifest]] = {}

    def manifest(self, path: Path) -> Manifest | None:
        """Return the manifest of a good checkpoint, None of a bad one."""
        try:
            stamp = _stamp(path)
            if path not in self._known or self._known[path][0] != stamp:
                self._known[path] = (stamp, store.verify(path))
        except (store.BadError, OSError):
            return None
        return self._known[path][1]

    def trust(self, path: Path) -> None:
        """Take a checkpoint as good that was summed while this process wrote it."""
        with contextlib.suppress(store.BadError, OSError):  # then it is read when the question comes up
            self._known[path] = (_stamp(path), store.read_manifest(path))


def prune(folder: Path, run: str | None, keep: Keep, verified: Verified, say: Callable[[str], None]) -> None:
    """Remove what need not stay; where that fails, say so."""
    try:
        for path in surplus(folder, run, keep, verified):
            store.remove(path)
    except OSError as error:  # the new one is safe; an old one more is no reason to stop
        say(f"WARNING: old checkpoints stay: {error}")


def surplus(folder: Path, run: str | None, keep: Keep, verified: Verified) -> list[Path]:
    """List the good checkpoints of the run that need not stay; bad ones are not counted, nor listed."""
    of_run = [(item.path, _cheap(item.path)) for item in store.found(folder)]
    candidates = [path for path, manifest in of_run if manifest and (run is None or manifest.get("run") == run)]
    if len(candidates) <= max(keep.newest, LEAST):
        return []
    checked = [(path, verified.manifest(path)) for path in candidates]
    good = [(path, manifest) for path, manifest in checked if manifest]
    staying = {path for path, _ in good[: max(keep.newest, LEAST)]} | _best(good, keep.best)
    staying |= {path for path, manifest in good if keep.every and manifest["step"] % keep.every == 0}
    return [path for path, _ in good if path not in staying]


def _best(good: list[tuple[Path, Manifest]], metric: str) -> set[Path]:
    sign = -1 if metric.startswith("+") else 1
    name = metric.lstrip("+-")
    rated = [(sign * manifest["metrics"][name], path) for path, manifest in good if _has(manifest, name)]
    return {min(rated)[1]} if name and rated else set()


def _has(manifest: Manifest, name: str) -> bool:
    value: Any = manifest.get("metrics", {}).get(name)
    return isinstance(value, (int, float)) and not math.isnan(value)


def _cheap(path: Path) -> Manifest | None:
    try:
        return store.read_manifest(path)
    except (store.BadError, UserError):  # of a newer format: not ours to remove
        return None


def _stamp(path: Path) -> Stamp:
    entries = [(entry.name, entry.stat()) for entry in os.scandir(path)]
    return tuple(sorted((name, status.st_size, status.st_mtime_ns) for name, status in entries))
