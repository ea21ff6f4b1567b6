"""`crab logs`: what a run has printed."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Sequence

from hermitcrab.errors import UserError
from hermitcrab.train import owner, places
from hermitcrab.train.pump import KEPT
from hermitcrab.train.view import POLL, Follow


def main(arguments: Sequence[str]) -> int:
    """Print a run's log, with ``-f`` as it grows."""
    options = _parser().parse_args(arguments)
    run = places.find(options.run)
    if not run.log.exists():
        raise UserError(f"{run.name} has printed nothing yet")
    try:
        if options.lines is None and not options.follow:
            _all(run.log)
        else:
            _last(run, 20 if options.lines is None else options.lines, follow=options.follow)
        sys.stdout.flush()
    except (BrokenPipeError, KeyboardInterrupt):
        # As `crab logs | head` means it; the interpreter would complain once more at its end.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _all(path: Path) -> None:
    for number in range(KEPT, -1, -1):
        older = Path(f"{path}.{number}") if number else path
        if older.exists():
            with open(older, "rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer)


def _last(run: places.Run, count: int, *, follow: bool) -> None:
    log = Follow(run.log, count)
    going = True
    while going:
        going = follow and owner.is_locked(run)
        for line in log.lines():
            sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        if going:
            time.sleep(POLL)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="crab logs", description="Print what a run has printed.")
    parser.add_argument("run", nargs="?", default="", metavar="RUN", help="name or folder; the newest without it")
    parser.add_argument("-f", "--follow", action="store_true", help="and what comes, until the run ends")
    parser.add_argument("-n", "--lines", type=int, help="the last N lines only")
    return parser
