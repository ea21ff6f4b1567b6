"""`crab train [OPTIONS] -- COMMAND …`: a run that outlives its terminal, its crashes, and ends by its gate."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
import traceback
from contextlib import redirect_stdout, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Callable, Sequence

from hermitcrab.box import files
from hermitcrab.box.mask import mask_words
from hermitcrab.errors import UserError
from hermitcrab.train import (
    aside,
    detach,
    example,
    gate,
    owner,
    places,
    process,
    resume,
    startat,
    supervisor,
    view,
    watch,
    words,
)
from hermitcrab.train.inbox import Inbox
from hermitcrab.train.journal import Journal, now
from hermitcrab.train.options import add_options, plan_of, split
from hermitcrab.train.places import Run
from hermitcrab.train.pump import Copy, Log
from hermitcrab.train.supervisor import Outcome, Plan, Supervisor
from hermitcrab.train.watch import cost

FORMAT = 1
CUT_OFF = 7200.0  # seconds within which a closing that was killed is still to be done
STILL_BILLING = 69  # EX_UNAVAILABLE: the training is done, and the box that was to be stopped is not


def main(arguments: Sequence[str]) -> int:
    """Train; returns the status of the training, or of the view onto it."""
    options, argv = _read(arguments)
    run = _open(options, argv)
    ended = _cut_off(run) if run.done.exists() and not options.again else None
    if run.done.exists() and not options.again and not ended:
        return _finished(run)
    descriptor = owner.lock(run)
    if not ended:
        aside.make_room(run, remove=bool(options.smoke), keep=options.again or options.resume == resume.NONE)
    plan = plan_of(options, argv, run)
    process.become_subreaper()
    owner.take_over(run, plan.grace, lambda text: print(f"crab: {text}", flush=True))
    for warning in words.warnings(argv):
        print(f"crab: WARNING: {warning}", file=sys.stderr, flush=True)
    armed = gate.preflight(options, run, os.environ)
    if ended and armed is None:
        return _finished(run)
    journal = Journal(run) if ended else _journal(run, plan)
    _register(run)
    if options.foreground or not detach.is_terminal():
        detach.stay()
        return supervise(options, plan, journal, armed, Copy(1), ended=ended)
    if detach.detach(run.folder / "supervisor.log"):
        os._exit(_never_raise(lambda: supervise(options, plan, journal, armed, None, ended=ended)))
    os.close(descriptor)
    return view.open_view(run, tmux=not options.no_tmux)


def supervise(
    options: argparse.Namespace,
    plan: Plan,
    journal: Journal,
    armed: Any,
    copy: Copy | None,
    *,
    ended: Outcome | None = None,
) -> int:
    """Be the supervisor of a run, from before its first attempt to after its gate; of an ended one, of its gate."""
    run = journal.run
    inbox, log = Inbox(), Log(run.log)
    inbox.install()
    journal.update(**supervisor.start_time(), state="closing" if ended else "waiting")
    watcher = watch.Watch(options, run)
    boss = Supervisor(plan, journal, inbox, watcher, log=log, copy=copy)
    arm = partial(gate.arm, armed, run, journal, os.environ)
    outcome = _train(boss, arm) if ended is None else ended
    if ended:
        boss.say(f"crab: {run.name} has finished, and its closing was cut off: that is done now")
        with suppress(UserError):  # what is left takes minutes; it needs no limit to be done
            arm()
    watcher.close()
    boss.say(f"crab: {outcome.verdict}: {_first(outcome.reason)}{_spent(journal)}")
    inbox.closing = True
    _write_report(boss, run)  # before the results are copied, and once more with what follows
    status = outcome.status if _close(boss, armed, outcome) else outcome.status or STILL_BILLING
    journal.update(state="ended", pid=None, exit=status)
    _write_report(boss, run)
    if copy:
        copy.close()
    return status


def _close(boss: Supervisor, armed: Any, outcome: Outcome) -> bool:
    """Let the gate do its work; False when the box was to be stopped, and was not."""
    inbox, told = boss.inbox, "the box stays up, and bills on"
    try:
        return gate.close(
            armed,
            boss.run,
            boss.journal,
            outcome,
            os.environ,
            say=lambda text: boss.say(f"crab: {text}"),
            given_up=lambda: inbox.given_up,
        )
    except KeyboardInterrupt:
        boss.say(f"crab: the closing was interrupted: {told}")
        return True
    except Exception:  # noqa: BLE001 - as in _train
        boss.say(*traceback.format_exc().splitlines(), f"crab: a fault of crab's own: {told}")
        return False


def _train(boss: Supervisor, arm: Callable[[], None]) -> Outcome:
    """Train; a fault of crab's own is the run's failure, and the gate still decides over the box."""
    try:
        return boss.train(arm)
    except UserError as error:
        outcome = Outcome("failed", "usage", str(error), (), error.code)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not keep the box from being stopped
        boss.say(*traceback.format_exc().splitlines())
        outcome = Outcome("failed", "crash", f"a fault of crab's own: {error!r}", (), 1)
    return boss.end(outcome)


def _write_report(boss: Supervisor, run: Run) -> None:
    try:
        from hermitcrab.train import report

        with redirect_stdout(StringIO()):
            report.main([str(run.folder)])
    except Exception as error:  # noqa: BLE001 - the run is over and its status known
        boss.say(f"crab: no report: {error!r}")


def _read(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options and the command; without a command, the bundled example's."""
    given, argv = split(arguments)
    options = _options(given)
    if not argv:
        argv = example.command(options, _parser().get_default, marked="--" in arguments)
        options.name = options.name or example.NAME
        print(f"crab: {example.TOLD}", flush=True)
    words.check(argv)
    return options, argv


def _cut_off(run: Run) -> Outcome | None:
    """Return how a finished run ended, if whoever was closing it was killed before the end of that."""
    state = files.read_json(run.state)
    if state.get("state") != "closing" or state.get("fired") or owner.is_locked(run):
        return None
    if time.time() - run.state.stat().st_mtime > CUT_OFF:
        return None  # no restart of a container, but a person who came back to the box
    return Outcome("done", "done", str(state.get("reason") or "finished"), (), 0)


def _finished(run: Run) -> int:
    print(f"crab: {run.name} has already finished ({_first_line(run.done)}); --again trains it anew")
    return 0


def _register(run: Run) -> None:
    """Let the other commands find it; without a home that can be written to, they must be given its folder."""
    try:
        places.register(run)
    except OSError as error:
        told = f"crab status and the others need its folder, {run.folder}"
        print(f"crab: WARNING: {places.index()}: {files.because(error)}: {told}", file=sys.stderr, flush=True)


def _options(given: Sequence[str]) -> argparse.Namespace:
    options, unknown = _parser().parse_known_args(given)
    if unknown:
        what = (
            f"unknown option {unknown[0]}; crab train --help lists them"
            if unknown[0].startswith("-")
            else (f"the command follows `--`: crab train [OPTIONS] -- {shlex.join(unknown)}")
        )
        raise UserError(what, code=2)
    return options


def _open(options: argparse.Namespace, argv: Sequence[str]) -> Run:
    name = options.name or places.default_name(argv, Path.cwd())
    # A short run is a run of its own: the real one must not go on from it.
    run = places.open_run(Path(options.runs), f"{name}-smoke" if options.smoke else name)
    try:
        files.make_folder(run.folder)
    except OSError as error:
        raise UserError(f"{run.folder}: {files.because(error)}; choose a place with --runs DIR") from error
    return run


def _journal(run: Run, plan: Plan) -> Journal:
    journal = Journal(run)
    created = journal.state.get("created") or now()
    journal.update(
        format=FORMAT,
        run=run.name,
        argv=mask_words(plan.argv),
        cwd=os.getcwd(),
        created=created,
        identity=plan.identity,
        **supervisor.start_time(),
        state="waiting",
        verdict="",
        failure="",
        reason="",
        advice=[],
        exit=None,
        fired=None,
        grace=plan.grace,
    )
    return journal


def _spent(journal: Journal) -> str:
    spent, currency = journal.state.get("spent"), str(journal.state.get("currency") or "")
    return f"; spent: {cost.money(spent, currency)}" if isinstance(spent, (int, float)) else ""


def _first_line(path: Path) -> str:
    return _first(path.read_text(encoding="utf-8", errors="replace")) or "done"


def _first(text: str) -> str:
    return text.partition("\n")[0]


def _never_raise(work: Any) -> int:
    """Run the detached supervisor; what it does not catch is told in supervisor.log."""
    try:
        return int(work())
    except BaseException:  # noqa: BLE001 - nobody is above it who could tell
        traceback.print_exc()
        sys.stderr.flush()
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="crab train",
        usage="crab train [OPTIONS] -- COMMAND …",
        description="Runs a training that survives the terminal, restarts with resume, and ends by its gate.",
        epilog=f"The same command in the same folder is the same run: start it again and it goes on. "
        f"Times: {startat.FORMAT}. More: docs/train.md",
        allow_abbrev=False,
    )
    add_options(parser)
    watch.add_options(parser)
    gate.add_options(parser)
    return parser
