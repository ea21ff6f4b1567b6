"""`crab poweroff`: shows what a power-off of this box is and costs, does it when told so, and ends deadlines."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Callable, Iterator, Mapping, Sequence

from hermitcrab.box import files
from hermitcrab.box.power import armed, fire, preflight
from hermitcrab.box.power.stops import STOPS, Stop
from hermitcrab.errors import UserError
from hermitcrab.train import places, process
from hermitcrab.train.gate import countdown, deadline
from hermitcrab.train.gate.busy import Busy
from hermitcrab.train.places import Run

NOBODY = Run(Path("/nonexistent"))


def main(
    arguments: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    *,
    root: Path = Path("/"),
    stops: Mapping[str, Stop] = STOPS,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Show it; stop the box only with --yes."""
    options = _parser().parse_args(arguments)
    if options.disarm:
        return _disarm(environ, root)
    view = preflight.examine(environ, root, stops=stops, terminate=options.allow_terminate)
    for name, text in (*preflight.lines(view), *_state(environ, root)):
        print(f"{name:<15}{text}")
    if options.dry_run or not options.yes:
        if view.plan and not options.dry_run:
            print("nothing was done: `crab poweroff --yes` does it")
        return 0 if view.plan else 1
    if view.plan is None:
        raise UserError(view.refused)
    running = _running(environ)
    if running and not options.now:
        raise UserError(f"{running[0].name} is running: `crab stop {running[0].name}` first, or add --now")
    if not options.now:
        print(f"powers off in {countdown.say(options.grace)}; Ctrl-C keeps the box up", flush=True)
        countdown.run(options.grace, _holders(environ), _say, sleep=sleep)
    return 0 if fire.fire(view.plan, _say, sleep=sleep) else 1


def _disarm(environ: Mapping[str, str], root: Path) -> int:
    """End the deadlines of this box; one of a run that goes on is part of it."""
    found, running = armed.armed(root), {run.name for run in _running(environ)}
    for name in (one.run for one in found if one.run in running):
        raise UserError(f"{name} is running: `crab stop {name}` first; `crab hold {name}` keeps the box up")
    records = {guard.pid: guard for guard in deadline.guards(environ)}
    for one in found:
        try:
            os.kill(one.pid, signal.SIGKILL)
        except OSError as error:
            raise UserError(f"{armed.text(one)} cannot be ended: {files.because(error)}") from None
        if one.pid in records:
            deadline.disarm(records[one.pid])  # its record goes, too
        print(f"disarmed: {armed.text(one)}; nothing limits the bill of this box any more")
    if not found:
        print("no deadline is armed on this box")
    return 0


def _state(environ: Mapping[str, str], root: Path) -> Iterator[tuple[str, str]]:
    """Yield what is armed on this box, what runs, and who would stop a countdown."""
    guards = deadline.guards(environ)
    for one in armed.armed(root):
        if one.pid not in {guard.pid for guard in guards}:
            yield "armed", f"{armed.text(one)}: when is not known, its record is gone or another user's"
    for guard in guards:
        left = countdown.say(max(0.0, guard.at - deadline.clock()))
        held = ", held" if os.path.lexists(Run(Path(guard.run)).hold) else ""
        yield "armed", f"deadline of {guard.run}: {guard.why}, in {left} (process {guard.pid}{held})"
    for run in _running(environ):
        state = files.read_json(run.state)
        policy = state.get("poweroff") if isinstance(state.get("poweroff"), dict) else {}
        yield "running", f"{run.name}" + (f", power-off: {policy['policy']}" if policy and "policy" in policy else "")
    for reason in _holders(environ)():
        yield "would wait", reason


def _running(environ: Mapping[str, str]) -> list[Run]:
    found = []
    for run in places.known(environ):
        state = files.read_json(run.state)
        if state.get("state") != "ended" and process.lives(state.get("pid"), state.get("started")):
            found.append(run)
    return found


def _holders(environ: Mapping[str, str]) -> Callable[[], list[str]]:
    """Whoever works here; and a hold of any run."""
    busy = Busy(NOBODY, tmux=False, environ=environ)  # whoever asks may sit in tmux himself

    def holders() -> list[str]:
        held = [f"{run.name} is held" for run in places.known(environ) if os.path.lexists(run.hold)]
        return [*held, *busy()]

    return holders


def _say(text: str) -> None:
    print(f"crab: {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="crab poweroff",
        description="Show how this box is powered off, what that ends and what is billed on. Without --yes, no more.",
    )
    add = parser.add_argument
    add("--dry-run", action="store_true", help="only show it; exit 1 when this box cannot be stopped from inside")
    add("--yes", action="store_true", help="power off after a countdown that a hold or a running copy stops")
    add("--now", action="store_true", help="with --yes: no countdown, and though a run goes on")
    add("--grace", type=countdown.parse, default=60.0, metavar="1m", help="the countdown")
    add("--disarm", action="store_true", help="end the deadlines that ended runs have left armed, and do no more")
    add("--allow-terminate", action="store_true", help="where there is no stop (Lambda): destroy the instance")
    return parser
