"""`crab stop`: end a run. It may save; it is not started again."""

from __future__ import annotations

import argparse
import os
import signal
import time
from typing import Sequence

from hermitcrab.box import files
from hermitcrab.errors import UserError
from hermitcrab.train import owner, places, process
from hermitcrab.train.places import Run

MORE = 30.0  # seconds beyond the grace
POLL = 0.2


def main(arguments: Sequence[str]) -> int:
    """Stop a run and wait until its training is gone."""
    options = _parser().parse_args(arguments)
    run = places.find(options.run)
    state = files.read_json(run.state)
    pid, started = state.get("pid"), state.get("started")
    if not isinstance(pid, int) or not process.lives(pid, started):
        return _stop_orphans(run, state, now=options.now)
    if state.get("state") == "closing":
        print(f"{run.name} has ended and is being closed; crab hold {run.name} keeps the box up")
        return 0
    os.kill(pid, signal.SIGQUIT if options.now else signal.SIGTERM)
    grace = _grace(state)
    print(f"{run.name}: {'ends at once' if options.now else f'may save, for {grace:.0f} s at most'}", flush=True)
    limit = time.monotonic() + (0.0 if options.now else grace) + MORE
    while process.lives(pid, started) and files.read_json(run.state).get("state") not in {"closing", "ended"}:
        if time.monotonic() > limit:
            raise UserError(f"{run.name} is still there; crab stop --now {run.name}, or look at {run.log}")
        time.sleep(POLL)
    state = files.read_json(run.state)
    saved = state.get("committed")
    print(f"{run.name}: {state.get('verdict')}: {state.get('reason')}" + (f"; step {saved} is saved" if saved else ""))
    return 0


def _stop_orphans(run: Run, state: dict[str, object], *, now: bool) -> int:
    """End a training whose supervisor was killed."""
    if not process.marked(run.folder):
        print(f"{run.name} is not running")
        return 0
    print(f"{run.name} has no supervisor any more; its training is ended", flush=True)
    left = owner.stop_orphans(run, _grace(state), now=now)
    if left:
        raise UserError(f"processes that the kernel holds: {', '.join(str(one.pid) for one in left)}; reboot the box")
    return 0


def _grace(state: dict[str, object]) -> float:
    grace = state.get("grace")
    return float(grace) if isinstance(grace, (int, float)) else 120.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="crab stop", description="End a run; it may save, and is not started again.")
    parser.add_argument("run", nargs="?", default="", metavar="RUN", help="name or folder; the newest without it")
    parser.add_argument("--now", action="store_true", help="without time to save")
    return parser
