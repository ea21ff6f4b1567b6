"""From live state to a committed checkpoint: the copy, the write beside the training, the room, the old ones."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Callable

import torch

from hermitcrab.checkpoint import choice, retention, store
from hermitcrab.checkpoint.background import Background
from hermitcrab.checkpoint.pace import Clock
from hermitcrab.checkpoint.retention import Keep, Verified
from hermitcrab.checkpoint.snapshot import Snapshot, first_non_finite, size
from hermitcrab.errors import UserError

STATE = "state.pt"
RESERVE = 64 << 20  # bytes that stay free for logs
WEIGHTS = ("model", "ema")


class NonFiniteError(UserError):
    """The weights hold NaN or infinity: such a checkpoint would push out the good ones."""


class Saver:
    """Writes the checkpoints of one run, one at a time, and keeps the training alive when it cannot."""

    def __init__(self, folder: Path, *, clock: Clock, keep: Keep, asynchronous: bool, allow_non_finite: bool) -> None:
        self.folder, self.clock, self.keep = folder, clock, keep
        self.asynchronous, self.allow_non_finite = asynchronous, allow_non_finite
        self.saved: int | None = None
        self.failure: OSError | None = None
        self.background = Background()
        self._verified = Verified()
        self._snapshot = Snapshot()

    def save(self, state: dict[str, Any], manifest: dict[str, Any], step: int, *, rehearsal: bool = False) -> None:
        """Copy the state and write it beside the training, or at once where memory is short."""
        self.background.wait()
        self.background.raise_error()
        began = time.monotonic()
        self.clock.begun()
        beside = self.asynchronous and self._snapshot.fits(state)
        if self.asynchronous and not beside:
            say("WARNING: too little memory for a copy of the state: saving while the training waits")
        copy = self._snapshot.take(state) if beside else state
        stalled = time.monotonic() - began

        def work() -> None:
            started = time.monotonic()
            write = self._rehearse if rehearsal else self._commit
            if self._attempt(write, copy, manifest, step):
                self.clock.ended(stalled + time.monotonic() - started)
                if rehearsal:
                    say(self._fits(size(copy)))

        if beside:
            self.background.start(work)
        else:
            work()

    def _attempt(self, write: Callable[..., None], state: Any, manifest: dict[str, Any], step: int) -> bool:
        try:
            self._want_room(size(state))
            write(state, manifest, step)
        except OSError as error:
            self.failure, self.clock.failed = error, True
            say(
                f"WARNING: step {step} is NOT saved: {error.strerror or error}. Older checkpoints are kept, "
                f"training goes on, saving is tried again. Free: {_gb(_free(self.folder))} in {self.folder}"
            )
            return False
        self.failure = None
        return True

    def _rehearse(self, state: Any, manifest: dict[str, Any], step: int) -> None:
        shutil.rmtree(store.write(self.folder, step, manifest, self._files(state)))

    def _commit(self, state: Any, manifest: dict[str, Any], step: int) -> None:
        found = "" if self.allow_non_finite else _non_finite(state)
        if found:
            raise NonFiniteError(
                f"step {step} is not saved: {found} holds NaN or infinity. The last good checkpoint is of step "
                f"{self.saved}; look at learning rate and loss scale, or pass allow_non_finite=True"
            )
        path = store.commit(self.folder, step, manifest, self._files(state))
        self._verified.trust(path)
        self.saved = step
        choice.committed(self.folder)
        say(f"saved step {step}")
        self._prune(manifest.get("run"))

    def _prune(self, run: str | None) -> None:
        try:
            for path in retention.surplus(self.folder, run, self.keep, self._verified):
                store.remove(path)
        except OSError as error:  # the new one is safe; an old one more is no reason to stop
            say(f"WARNING: old checkpoints stay: {error}")

    def _files(self, state: Any) -> dict[str, store.Write]:
        return {STATE: lambda file: torch.save(state, file)}

    def _want_room(self, needed: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if _free(self.folder) < needed + RESERVE:
            raise OSError(errno.ENOSPC, f"a checkpoint takes {_gb(needed)}: no space left for it")

    def _fits(self, needed: int) -> str:
        holds = max(0, _free(self.folder) - RESERVE) // max(needed, 1)
        wanted = max(self.keep.newest, retention.LEAST) + 1  # the new one is there before the oldest goes
        there = len(store.found(self.folder))
        warning = "" if holds + there >= wanted else "WARNING: "
        every = f"; one every {self.clock.interval:.0f} s" if self.clock.interval else ""
        return (
            f"{warning}one checkpoint is {_gb(needed)} and takes {self.clock.cost:.1f} s{every}; "
            f"the disk holds {holds} more, {wanted} are needed, {there} are there"
        )


def load(path: Path) -> Any:
    """Return the state of a checkpoint that was verified; raises BadError when torch cannot read it all the same."""
    try:
        return torch.load(path / STATE, map_location="cpu", weights_only=True)
    except Exception as error:
        raise store.BadError(f"{STATE} does not load: {str(error).splitlines()[0]}") from error


def say(message: str) -> None:
    """Tell the user, on stderr: a library must not rely on logging having been set up."""
    print(f"hermitcrab: {message}", file=sys.stderr, flush=True)


def _non_finite(state: dict[str, Any]) -> str:
    return next((found for name in WEIGHTS for found in [first_non_finite(state.get(name), name)] if found), "")


def _free(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e7 else f"{count / 1e6:.2f} MB"
