"""The supervisor's own options, and the plan that comes of them."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import time
from pathlib import Path
from typing import Sequence

from hermitcrab.box import files
from hermitcrab.errors import UserError
from hermitcrab.train import policy, resume, startat, words
from hermitcrab.train.gate import countdown
from hermitcrab.train.places import Run
from hermitcrab.train.supervisor import Plan

GRACE = 120.0


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part the options from the command: at the first ``--``. By hand, so that no word of the command changes."""
    given = list(arguments)
    if "--" in given:
        at = given.index("--")
        return given[:at], given[at + 1 :]
    # Without it the options are all there is, or the user forgot it: argparse names the first word it does not know.
    return given, []


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the supervisor."""
    add = parser.add_argument
    add("--name", default="", help="of the run; without it, the script's and a short hash of the command")
    add("--runs", default="runs", metavar="DIR", help="where runs are kept (runs)")
    add("--again", action="store_true", help="train a finished run anew; what it had is set aside")
    add("--foreground", action="store_true", help="stay here, even at a terminal")
    add("--no-tmux", action="store_true", help="at a terminal: show the run here instead of in tmux")
    add("--start-at", type=startat.parse, metavar="23:00", help="wait for the cheap hours")
    add("--resume", default=resume.AUTO, metavar="auto|none|PATH", help="what to go on from (auto)")
    add("--ckpt-dir", default="", metavar="DIR", help="where the command keeps its checkpoints (CKPT_DIR)")
    add("--preset", choices=sorted(resume.PRESETS), default="", help="how a known program is told to resume")
    add("--resume-args", default="", metavar="'--resume {ckpt}'", help="appended once a verified checkpoint is there")
    add("--max-restarts", type=_count, default=policy.RESTARTS, metavar="N", help="without a new checkpoint (4)")
    add("--on-oom", action="append", default=[], metavar="'BATCH=16 …'", help="variables for another try; repeatable")
    add("--done-file", default="", metavar="PATH", help="without this file, exit status 0 is no success")
    add("--stop-grace", type=countdown.parse, default=GRACE, metavar="2m", help="time to save after SIGTERM")


def plan_of(options: argparse.Namespace, argv: Sequence[str], run: Run) -> Plan:
    """Make the plan; raises UserError where an option makes no sense."""
    identity = _identity(run)
    return Plan(
        argv=tuple(argv),
        places=tuple(resume.folders(options.ckpt_dir or os.environ.get("CKPT_DIR", ""), options.preset, argv, run)),
        identity=identity,
        words=tuple(resume.template(options.resume_args, options.preset)),
        preset=options.preset,
        resume=_resume(options.resume),
        grace=options.stop_grace,
        restarts=0 if options.smoke else options.max_restarts,
        alternatives=tuple(_variables(text) for text in options.on_oom),
        done_file=Path(options.done_file).absolute() if options.done_file else None,
        start_at=startat.next_time(options.start_at, time.time()) if options.start_at else None,
        piped=words.pipe_hides_status(argv),
    )


def _identity(run: Run) -> str:
    """Return RUN_ID: another one for a run that was begun anew, so that its checkpoints are its own."""
    known = files.read_json(run.state).get("identity")
    if isinstance(known, str) and known:
        return known
    before = len([path for path in run.folder.iterdir() if re.fullmatch(r"before-\d+", path.name)])
    return run.name if not before else f"{run.name}-{before + 1}"


def _resume(text: str) -> str:
    if text in {resume.AUTO, resume.NONE}:
        return text
    if not Path(text).exists():
        raise UserError(f"--resume {text}: there is no such checkpoint; valid are auto, none and a path", code=2)
    return str(Path(text).absolute())


def _variables(text: str) -> dict[str, str]:
    try:
        pairs = [word.partition("=") for word in shlex.split(text)]
    except ValueError as error:
        raise UserError(f"--on-oom {text!r}: {error}", code=2) from error
    if not pairs or not all(name.isidentifier() and equals for name, equals, _ in pairs):
        raise UserError(f"--on-oom {text!r}: valid are variables of the environment, as 'BATCH=16 ACCUM=4'", code=2)
    return {name: value for name, _, value in pairs}


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return int(text)
