"""`python3 -m hermitcrab.box.bootstrap`, as the script calls it. Exit status: docs/bootstrap.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Sequence

from hermitcrab import __version__
from hermitcrab.box import mask
from hermitcrab.box.bootstrap import again, mirrors, network, pins, plan, settle, stamp, steps, summary, wheels
from hermitcrab.box.bootstrap.plan import Asked
from hermitcrab.box.bootstrap.run import Run, alone, places
from hermitcrab.box.bootstrap.steps import Wishes
from hermitcrab.errors import UserError

DONE, FAILED, PARTIAL, STOPPED = 0, 1, 3, 130


def main(arguments: Sequence[str]) -> int:
    """Do the whole run; a user's error is one line and a status."""
    options = _parser().parse_args(arguments)
    environ = network.trusting(os.environ, options.ca, Path(options.work))
    if options.turbo:
        environ = network.turbo(environ)
    root = os.geteuid() == 0
    run = Run(root, places(root=root), Path(options.work), environ, options.log, options.quiet, options.verbose)
    try:
        return uninstall(run, options) if options.uninstall else bootstrap(run, options)
    except UserError as error:
        run.note(f"failed: {error}")
        print(f"bootstrap: {mask.mask(str(error))}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("bootstrap: stopped; run it again to go on", file=sys.stderr)
        return STOPPED
    except Exception as error:  # noqa: BLE001 - a full disk, a box like no other: one line, the rest is in the log
        run.note(traceback.format_exc())
        print(f"bootstrap: {type(error).__name__}: {mask.mask(str(error))}; the log has more", file=sys.stderr)
        return FAILED


def bootstrap(run: Run, options: argparse.Namespace) -> int:
    """Plan, show the plan, carry it out, say what comes next."""
    begun = time.monotonic()
    known = pins.load()
    mirrors.check(options.mirror or mirrors.AUTO, mirrors.table())
    wheel = wheels.packed(pins.PAYLOAD, options.wheel_sha256)
    asked = Asked(options.cuda, options.torch, options.fresh, options.distro, options.release, options.has_apt)
    run.say(f"hermitcrab {__version__} bootstrap")
    wishes = Wishes(options.mirror or mirrors.AUTO, options.distro, options.release)
    reason = again.why_not(run, asked, known, wheel, options.script)
    run.note(f"to do: {reason}")
    if not reason:
        run.say(f"done before: nothing to change; stamp: {run.places.stamp}")
        return DONE
    decided = plan.make(run, asked, known)
    for line in plan.lines(decided, run, asked):
        run.say(line)
    if options.dry_run:
        run.say("this was a dry run: nothing was changed")
        return DONE
    with alone(run):
        python, facts = steps.carry_out(run, decided, known, wheel, wishes)
        verdict = steps.timed(run, "check", lambda: settle.check(run, python))
        seconds = round(time.monotonic() - begun, 1)
        facts.update(asked=list(asked[:3]), script=options.script, check=verdict.word, left_out=list(decided.left_out))
        result = stamp.FAILED if verdict.word == "fail" else stamp.PARTIAL if decided.left_out else stamp.DONE
        stamp.write(run.places.stamp, result, seconds=seconds, log=run.log, **facts)
    for line in summary.lines(run, decided, verdict, seconds):
        run.note(line)
        print(line, flush=True)
    return {stamp.FAILED: FAILED, stamp.PARTIAL: PARTIAL, stamp.DONE: DONE}[result]


def uninstall(run: Run, options: argparse.Namespace) -> int:
    """Take out what the stamp tells of; packages of the distribution stay, since others may use them now."""
    done = again.removal(run)
    for what, remove in done:
        run.say(f"{'would remove' if options.dry_run else 'removing'}: {what}")
        if not options.dry_run:
            remove()
    run.say("packages of the distribution stay" if done else "nothing to remove")
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bootstrap")
    for name in ("may", "distro", "release", "work", "log", "mirror", "cuda", "torch", "ca", "wheel-sha256", "script"):
        parser.add_argument(f"--{name}", default="")
    for name in ("has-apt", "fresh", "turbo", "dry-run", "uninstall", "quiet", "verbose"):
        parser.add_argument(f"--{name}", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
