"""From live state to a committed checkpoint: the copy, the write beside the training, the room, the old ones."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Callable, cast

import torch

from hermitcrab.checkpoint import archive, choice, commit, ranks, retention, sharded, store
from hermitcrab.checkpoint.background import Background
from hermitcrab.checkpoint.pace import Clock
from hermitcrab.checkpoint.retention import Keep, Verified
from hermitcrab.checkpoint.snapshot import Snapshot, first_non_finite, size
from hermitcrab.checkpoint.tee import Tee, Write
from hermitcrab.errors import UserError

STATE = "state.pt"
RESERVE = 64 << 20  # bytes that stay free for logs
WEIGHTS = ("model", "ema")


class NonFiniteError(UserError):
    """The weights hold NaN or infinity: such a checkpoint would push out the good ones."""


class Saver:
    """Writes the checkpoints of one run, one at a time, and keeps the training alive when it cannot."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock,
        keep: Keep,
        asynchronous: bool,
        allow_non_finite: bool,
        committed: Callable[[int, Path], object] = lambda *_: None,
    ) -> None:
        self.folder, self.clock, self.keep = folder, clock, keep
        self.asynchronous, self.allow_non_finite = asynchronous, allow_non_finite
        self.saved: int | None = None
        self.resumed: int | None = None  # the step that this run goes on from, until it has got on
        self.failure: OSError | None = None
        self.background = Background()
        self._on_commit = committed
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
            if self._attempt(lambda: write(copy, manifest, step), step):
                self._ended(stalled + time.monotonic() - started, size(copy), rehearsal=rehearsal)

        if beside:
            self.background.start(work)
        else:
            work()

    def save_together(
        self, spread: dict[str, Any], state: dict[str, Any], manifest: dict[str, Any], step: int, *, rehearsal: bool
    ) -> None:
        """Write sharded state on all ranks, while the training waits."""
        began = time.monotonic()
        self.clock.begun()

        def work() -> None:
            ranks.from_first(lambda: self._want_room(size(spread)))  # of all ranks together
            self._refuse_non_finite(ranks.first_of(_non_finite(spread)), step, rehearsal=rehearsal)
            if not rehearsal:
                ranks.from_first(lambda: self._leave_behind(manifest))
            finish = sharded.write(self.folder, step, manifest, self._files(state), spread)
            path = finish(rehearsal)
            if not rehearsal and ranks.rank() == 0:
                self._done(path, manifest, step)
            self.saved = self.saved if rehearsal else step

        if self._attempt(work, step):
            self._ended(time.monotonic() - began, size(spread), rehearsal=rehearsal)

    def _ended(self, seconds: float, needed: int, *, rehearsal: bool) -> None:
        self.clock.ended(seconds)
        if rehearsal and ranks.rank() == 0:
            with contextlib.suppress(OSError):
                say(self._fits(needed))

    def _attempt(self, work: Callable[[], None], step: int) -> bool:
        try:
            work()
        except OSError as error:
            self.failure, self.clock.failed = error, True
            if ranks.rank() == 0:
                say(
                    f"WARNING: step {step} is NOT saved: {error.strerror or error}. Older checkpoints are kept, "
                    f"training goes on, saving is tried again. Free: {_room(self.folder)} in {self.folder}"
                )
            return False
        self.failure = None
        return True

    def _rehearse(self, state: Any, manifest: dict[str, Any], step: int) -> None:
        self._want_room(size(state))
        shutil.rmtree(commit.write(self.folder, step, manifest, self._files(state)))

    def _commit(self, state: Any, manifest: dict[str, Any], step: int) -> None:
        self._want_room(size(state))
        self._refuse_non_finite(_non_finite(state), step)
        self._leave_behind(manifest)
        self._done(commit.commit(self.folder, step, manifest, self._files(state)), manifest, step)

    def _leave_behind(self, manifest: dict[str, Any]) -> None:
        """Make way for the first checkpoint since the resume."""
        if self.resumed is not None:
            choice.leave_behind(self.folder, str(manifest.get("run")), self.resumed, say)
        self.resumed = None

    def _done(self, path: Path, manifest: dict[str, Any], step: int) -> None:
        self._verified.trust(path)
        self.saved = step
        choice.committed(self.folder)
        say(f"saved step {step}")
        self._on_commit(step, path)
        retention.prune(self.folder, manifest.get("run"), self.keep, self._verified, say)

    def _refuse_non_finite(self, found: str, step: int, *, rehearsal: bool = False) -> None:
        if found and not self.allow_non_finite and not rehearsal:
            raise NonFiniteError(
                f"step {step} is not saved: {found} holds NaN or infinity. The last good checkpoint is of step "
                f"{self.saved}; look at learning rate and loss scale, or pass allow_non_finite=True"
            )

    def _files(self, state: Any) -> dict[str, Write]:
        return {STATE: lambda file: archive.save(state, cast(Tee, file))}

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
    with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
        print(f"hermitcrab: {message}", file=sys.stderr, flush=True)


def _non_finite(state: dict[str, Any]) -> str:
    return next((found for name in WEIGHTS for found in [first_non_finite(state.get(name), name)] if found), "")


def _free(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _room(folder: Path) -> str:
    try:
        status = os.statvfs(folder)
    except OSError as error:
        return f"unknown ({error.strerror})"
    return "not one more file" if status.f_files and not status.f_favail else _gb(_free(folder))


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e7 else f"{count / 1e6:.2f} MB"
