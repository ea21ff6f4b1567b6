"""`crab train [OPTIONS] -- COMMAND …`: a run that outlives its terminal, its crashes, and ends by its gate."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import traceback
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Callable, Sequence

from hermitcrab.box import files
from hermitcrab.box.mask import mask_words
from hermitcrab.errors import UserError
from hermitcrab.train import detach, gate, owner, places, process, resume, startat, supervisor, view, watch, words
from hermitcrab.train.inbox import Inbox
from hermitcrab.train.journal import Journal, now
from hermitcrab.train.options import add_options, plan_of, split
from hermitcrab.train.places import Run
from hermitcrab.train.pump import Copy, Log
from hermitcrab.train.supervisor import Outcome, Plan, Supervisor

FORMAT = 1


def main(arguments: Sequence[str]) -> int:
    """Train; returns the status of the training, or of the view onto it."""
    given, argv = split(arguments)
    options = _options(given)
    words.check(argv)
    run = _open(options, argv)
    if run.done.exists() and not options.again:
        print(f"crab: {run.name} has already finished ({_first_line(run.done)}); --again trains it anew")
        return 0
    descriptor = owner.lock(run)
    if options.smoke:
        _clear(run)
    elif options.again or options.resume == resume.NONE:
        _begin_anew(run)
    plan = plan_of(options, argv, run)
    process.become_subreaper()
    owner.take_over(run, plan.grace, lambda text: print(f"crab: {text}", flush=True))
    for warning in words.warnings(argv):
        print(f"crab: WARNING: {warning}", file=sys.stderr, flush=True)
    armed = gate.preflight(options, run, os.environ)
    journal = _journal(run, plan)
    places.register(run)
    if options.foreground or not detach.is_terminal():
        detach.stay()
        return supervise(options, plan, journal, armed, Copy(1))
    if detach.detach(run.folder / "supervisor.log"):
        os._exit(_never_raise(lambda: supervise(options, plan, journal, armed, None)))
    os.close(descriptor)
    return view.open_view(run, tmux=not options.no_tmux)


def supervise(options: argparse.Namespace, plan: Plan, journal: Journal, armed: Any, copy: Copy | None) -> int:
    """Be the supervisor of a run, from before its first attempt to after its gate."""
    run = journal.run
    inbox, log = Inbox(), Log(run.log)
    inbox.install()
    journal.update(**supervisor.start_time(), state="waiting")
    watcher = watch.Watch(options, run)
    boss = Supervisor(plan, journal, inbox, watcher, log=log, copy=copy)
    outcome = _train(boss, lambda: gate.arm(armed, run, journal, os.environ))
    watcher.close()
    boss.say(f"crab: {outcome.verdict}: {_first(outcome.reason)}")
    inbox.closing = True
    _write_report(boss, run)  # before the results are copied, and once more with what follows
    try:
        gate.close(
            armed,
            run,
            journal,
            outcome,
            os.environ,
            say=lambda text: boss.say(f"crab: {text}"),
            given_up=lambda: inbox.given_up,
        )
    except KeyboardInterrupt:
        boss.say("crab: the closing was interrupted: the box stays up, and bills on")
    except Exception:  # noqa: BLE001 - as in _train
        boss.say(*traceback.format_exc().splitlines(), "crab: a fault of crab's own: the box stays up, and bills on")
    journal.update(state="ended", pid=None)
    _write_report(boss, run)
    if copy:
        copy.close()
    return outcome.status


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


def _begin_anew(run: Run) -> None:
    """Set aside what an earlier training of this name has left: nothing is deleted, and nothing is mixed up."""
    aside = next(path for path in map(run.folder.joinpath, _numbered()) if not path.exists())
    left = [path for path in run.folder.iterdir() if path.name != "lock" and not path.name.startswith("before-")]
    if left:
        aside.mkdir()
    for path in left:
        os.rename(path, aside / path.name)


def _clear(run: Run) -> None:
    """Remove what an earlier short run of this name has left: it was for nothing but its verdict."""
    for path in run.folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()


def _numbered() -> list[str]:
    return [f"before-{number}" for number in range(1, 10_000)]


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
        grace=plan.grace,
    )
    return journal


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
