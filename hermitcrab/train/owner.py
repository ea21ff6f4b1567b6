"""One run has one supervisor: a lock while it lives, and a rule for the training that a killed one left behind."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path
from typing import Callable, Iterator

from hermitcrab import status as statuses
from hermitcrab.box import files
from hermitcrab.errors import UserError
from hermitcrab.train import places, process
from hermitcrab.train.places import Run
from hermitcrab.train.process import Process, Tree


def lock(run: Run) -> int:
    """Become the run's supervisor; the lock is held as long as the descriptor is open, here or in a fork."""
    reason = ""
    for path in _places(run):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            reason = f"{path}: {files.because(error)}"
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise UserError(
                f"{run.name} is running: crab attach {run.name} shows it, crab stop {run.name} ends it"
            ) from None
        except OSError as error:
            os.close(descriptor)
            reason = f"{path}: {files.because(error)}"
            continue
        return descriptor
    raise UserError(f"the run cannot be locked: {reason}; choose another disk with --runs DIR")


def is_locked(run: Run) -> bool:
    """Say whether a supervisor of this run lives."""
    for path in _places(run):
        try:
            with open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            continue
    return False


def _places(run: Run) -> Iterator[Path]:
    """Where the lock is: with the run, or in the user's home, since not every network disk has locks."""
    yield run.lock
    digest = hashlib.sha256(os.fsencode(run.folder)).hexdigest()[:16]
    yield places.index().parent / "locks" / digest


def take_over(run: Run, grace: float, say: Callable[[str], None]) -> None:
    """End a training that lost its supervisor, if that loses nothing; else refuse, with the two ways out.

    Two trainings must never write to one run. One that said it saves on SIGTERM is asked to, and the run goes
    on from there. Any other may have hours of work that no checkpoint holds: only its owner can give that up.
    """
    left = process.marked(run.folder)
    if not left:
        return
    status = statuses.read(run.status)
    if "SIGTERM" not in status.signals or status.pid not in {one.pid for one in left}:
        names = ", ".join(f"{one.pid} {process.name(one)}" for one in left[:3])
        raise UserError(
            f"{run.name} lost its supervisor, and its training is still alive ({names}): wait for its end, "
            f"or crab stop {run.name}; then start again"
        )
    say(f"a training that lost its supervisor is alive ({len(left)} processes): it is asked to save, then goes on here")
    still = stop_orphans(run, grace)
    if still:
        raise UserError(f"processes of {run.name} cannot be ended: {', '.join(str(one.pid) for one in still)}")


def stop_orphans(run: Run, grace: float, *, now: bool = False) -> list[Process]:
    """End all that is alive of a run without a supervisor; returns what cannot be ended."""
    status = statuses.read(run.status)
    announcer = status.pid if "SIGTERM" in status.signals else None
    return process.stop(Orphans(run), announcer, grace, lambda: now)


class Orphans(Tree):
    """The processes of a run, found by their mark: nobody's children any more."""

    def __init__(self, run: Run) -> None:
        super().__init__(0, run.folder)

    def look(self) -> list[Process]:
        """Return the living ones, and what they started without the mark."""
        processes = process.table()
        pids = {one.pid for one in process.marked(self.folder)}
        pids |= process.below(pids, processes)
        return [processes[pid] for pid in sorted(pids & set(processes)) if processes[pid].state not in "ZX"]
