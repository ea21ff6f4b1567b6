"""What is to happen after a run, proven before it starts: the stop path, the copy, the message, the limit."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from hermitcrab.box import files
from hermitcrab.box.power import preflight as power
from hermitcrab.box.power.preflight import Plan
from hermitcrab.box.power.stops import STOPS, Stop
from hermitcrab.errors import UserError
from hermitcrab.train.gate import countdown, farewell, notify
from hermitcrab.train.gate import sync as copying
from hermitcrab.train.places import Run

POLICIES = ("never", "success", "finished", "always")
Say = Callable[[str], None]


class Armed(NamedTuple):
    """What is to happen when the run has ended; all of it was tried before the run began."""

    policy: str
    plan: Plan | None  # None: this box is not powered off
    stop: Stop | None
    grace: float
    limit: float | None  # seconds until the deadline
    limit_why: str
    target: copying.Target | None
    sync_time: float
    url: str
    ssh: bool
    results: tuple[Path, ...]
    root: Path = Path("/")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what happens after the run."""
    add = parser.add_argument
    add("--poweroff", choices=POLICIES, default="never", help="finished: success, or given up after retries (never)")
    add("--max-hours", type=_positive, metavar="H", help="power off after this long, whatever happens")
    add("--max-cost", type=_positive, metavar="MONEY", help="power off when the run has cost this; needs --price")
    add("--grace", type=countdown.parse, default=300.0, metavar="5m", help="countdown before a power-off")
    add(
        "--sync",
        default="",
        metavar="DEST",
        help="copy results there and compare: rclone's remote:path, host:path, DIR",
    )
    add("--sync-time", type=countdown.parse, default=1800.0, metavar="30m", help="how long to try that")
    add("--results", action="append", default=[], metavar="DIR", help="what else the command writes, to be kept too")
    add("--notify", default=os.environ.get("CRAB_NOTIFY", ""), metavar="URL", help="a webhook, or what apprise knows")
    add("--ssh-holds", action="store_true", help="open SSH sessions stop the countdown, too")
    add("--allow-terminate", action="store_true", help="where there is no stop (Lambda): destroy the instance")


def preflight(
    options: Any,
    run: Run,
    environ: Mapping[str, str] = os.environ,
    *,
    root: Path = Path("/"),
    stops: Mapping[str, Stop] = STOPS,
    say: Say | None = None,
) -> Armed | None:
    """Prove before step 0 that all this will work; raises UserError to refuse. None: there is nothing to do."""
    farewell.clear(environ)
    limit, why = _limit(options, run)
    powers = options.poweroff != "never" or limit is not None
    if not (powers or options.sync or options.notify):
        return None
    if options.notify:
        notify.check(options.notify)
    results = _results(options, run, environ)
    view = power.examine(environ, root, stops=stops, terminate=options.allow_terminate) if powers else None
    if view and view.plan is None:
        raise UserError(view.refused)
    target = copying.target(options.sync, environ) if options.sync else None
    _keeps(view.stop if view else None, results, target, limit, root)
    if target:
        copying.rehearse(target, run.name, environ)
    for name, text in power.lines(view) if view else ():
        (say or say_aloud)(f"{name:<14}{text}")
    return Armed(
        policy=options.poweroff,
        plan=view.plan if view else None,
        stop=view.stop if view else None,
        grace=options.grace,
        limit=limit,
        limit_why=why,
        target=target,
        sync_time=options.sync_time,
        url=options.notify,
        ssh=options.ssh_holds,
        results=results,
        root=root,
    )


def say_aloud(text: str) -> None:
    """Tell it where errors go."""
    print(f"crab: {text}", file=sys.stderr, flush=True)


def outside(path: Path, folders: Sequence[Path]) -> bool:
    """Say whether a path lies in none of some folders."""
    real = os.path.realpath(path)
    return not any(f"{real}/".startswith(f"{os.path.realpath(folder)}/") for folder in folders)


def _results(options: Any, run: Run, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders that matter: the run's own, and what lies outside of it."""
    found = [run.folder.absolute()]
    for given in (*options.results, getattr(options, "ckpt_dir", "") or environ.get("CKPT_DIR", "")):
        path = Path(given).absolute()
        if given and outside(path, found):
            found.append(path)
    return tuple(found)


def _limit(options: Any, run: Run) -> tuple[float | None, str]:
    """Return the seconds until the deadline, and what sets it."""
    limits = []
    if options.max_hours is not None:
        limits.append((options.max_hours * 3600, f"--max-hours {options.max_hours:g}"))
    if options.max_cost is not None:
        price = getattr(options, "price", None)
        if not price:
            raise UserError("--max-cost needs --price: what does this box cost per hour?", code=2)
        known = files.read_json(run.state).get("spent")
        spent = float(known) if isinstance(known, (int, float)) else 0.0
        # Never armed in the past: a box that was started again must not be stopped at once by an old account.
        if spent >= options.max_cost:
            raise UserError(f"{run.name} has cost {spent:.2f} already: raise --max-cost {options.max_cost:g}", code=2)
        limits.append(((options.max_cost - spent) / price * 3600, f"--max-cost {options.max_cost:g}"))
    return min(limits) if limits else (None, "")


def _keeps(
    stop: Stop | None, results: tuple[Path, ...], target: copying.Target | None, limit: float | None, root: Path
) -> None:
    """Refuse what would lose the results: no stop may be the end of them."""
    place = os.path.realpath(target.place) if target and target.local else ""
    for path in results:
        if place and f"{place}/".startswith(f"{os.path.realpath(path)}/"):
            raise UserError(f"--sync {place} lies in {path}, which is what is copied", code=2)
    if stop is None:
        return
    better = " or ".join(stop.keeps)
    if place and not power.keeps(stop, Path(place), root):
        raise UserError(f"--sync {place} is lost with this box: give a place off it, or one below {better}")
    lost = [path for path in results if not power.keeps(stop, path, root)]
    if lost and target is None:
        raise UserError(f"{lost[0]} is lost when the box stops: keep runs below {better}, or give --sync DEST")
    if lost and limit is not None:
        # It waits for no copy: what it stops must leave the results where they are.
        raise UserError(f"a deadline would destroy {lost[0]}, copied or not: keep runs below {better}")


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number
