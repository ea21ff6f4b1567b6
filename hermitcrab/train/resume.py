"""How an attempt is told to go on: variables for any program, and words at the end of the command for known ones.

``Checkpointer`` chooses and verifies by itself. For other programs the newest checkpoint that verifies is looked
for here: its path is in RESUME, and in the words of ``--resume-args`` or of a preset.
"""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Iterable, Iterator, Mapping, NamedTuple, Sequence

from hermitcrab.checkpoint import ckpt, foreign, store
from hermitcrab.errors import UserError
from hermitcrab.status import VARIABLE
from hermitcrab.train.places import Run
from hermitcrab.train.process import MARK

AUTO, NONE = "auto", "none"
# torchrun reads its options from PET_…, and so does accelerate, which starts torchrun's agent: without SIGHUP
# among its signals it outlives a lost connection, and its workers get as long to save as the supervisor gives.
TORCHRUN = {"PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGQUIT"}
PYTHON = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}


class Preset(NamedTuple):
    """How a known program resumes: its words, where its checkpoints are, and what makes one whole."""

    words: str
    folder: str  # the option that names their folder
    otherwise: str = ""  # the folder without that option
    last: str = ""  # a file that is written last: without it a checkpoint is cut


PRESETS = {
    "hf": Preset("--resume_from_checkpoint {ckpt}", "--output_dir", "trainer_output", "trainer_state.json"),
    "lightning": Preset("--ckpt_path {ckpt}", "--trainer.default_root_dir", "lightning_logs"),
    "ultralytics": Preset("resume=True model={ckpt}", "project", "runs"),
    "nanogpt": Preset("--init_from=resume", "--out_dir", "out"),
}
DEPTH = 5  # lightning_logs/version_0/checkpoints/*.ckpt, runs/detect/train/weights/last.pt


class Mark(NamedTuple):
    """The newest checkpoint that is there; another mark later means that the run got on."""

    path: Path
    step: int | None
    time: int


def environment(
    run: Run, *, folder: Path, identity: str, attempt: int, resume: str, grace: float, base: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of an attempt; what a user has set for torchrun and Python stays."""
    environ = {**TORCHRUN, "PET_SHUTDOWN_TIMEOUT": str(max(1, int(grace))), **PYTHON, **base}
    environ.update(
        {
            "CKPT_DIR": str(folder),
            "RESUME": resume,
            "RUN_ID": identity,
            "ATTEMPT": str(attempt),
            VARIABLE: str(run.status),
            MARK: str(run.folder),
        }
    )
    return environ


def template(words: str, preset: str) -> list[str]:
    """Return the words to append, with {ckpt}, {folder} and {step} in them."""
    if words and preset:
        raise UserError("--resume-args and --preset: give one of them", code=2)
    try:
        return shlex.split(words or (PRESETS[preset].words if preset else ""))
    except ValueError as error:
        raise UserError(f"--resume-args {words!r}: {error}", code=2) from error


def command(argv: Sequence[str], words: Sequence[str], mark: Mark | None) -> list[str]:
    """Return the command of an attempt: with the words only when there is a checkpoint to go on from."""
    if mark is None:
        return list(argv)
    values = {"{ckpt}": str(mark.path), "{folder}": str(mark.path.parent), "{step}": str(mark.step)}
    added = []
    for word in words:
        for name, value in values.items():
            word = word.replace(name, value)  # noqa: PLW2901 - one word, filled in step by step
        added.append(word)
    return [*argv, *added]


def folders(given: str, preset: str, argv: Sequence[str], run: Run) -> list[Path]:
    """Return where checkpoints of this command may be, the likeliest first."""
    if given:
        return [Path(given).absolute()]
    chosen = PRESETS.get(preset)
    named = [Path(option(argv, chosen.folder) or chosen.otherwise).absolute()] if chosen else []
    return [*named, run.checkpoints]


def option(argv: Sequence[str], name: str) -> str:
    """Return the value of an option in a command: ``--name VALUE`` or ``--name=VALUE``; the last one counts."""
    found = ""
    for number, word in enumerate(argv):
        if word.startswith(f"{name}="):
            found = word[len(name) + 1 :]
        elif word == name and name.startswith("-") and number + 1 < len(argv):
            found = argv[number + 1]
    return found


def newest(places: Iterable[Path], preset: str = "") -> Mark | None:
    """Return the newest checkpoint by its looks."""
    return next(iter(_marks(places, preset)), None)


def verified(places: Iterable[Path], preset: str = "", passed_over: Iterable[str] = ()) -> Mark | None:
    """Return the newest checkpoint that was read to its last byte and is whole."""
    skipped = set(passed_over)
    return next(
        (mark for mark in _marks(places, preset) if str(mark.path) not in skipped and _is_good(mark.path)), None
    )


def got_on(before: Mark | None, after: Mark | None) -> bool:
    """Say whether a new checkpoint is there, and whole."""
    return after is not None and after != before and _is_good(after.path)


def is_own(mark: Mark) -> bool:
    """Say whether a checkpoint is one of `Checkpointer`'s, which chooses for itself."""
    return store.NAME.fullmatch(mark.path.name) is not None


def _marks(places: Iterable[Path], preset: str) -> list[Mark]:
    """All checkpoints; the highest step first, where there are none the latest, and `last.pt` before its series."""
    last = PRESETS[preset].last if preset else None
    found = {mark.path: mark for place in places for mark in _in(place, last, DEPTH)}
    return sorted(found.values(), key=lambda mark: (mark.path.stem == "last", mark.step or -1, mark.time), reverse=True)


def _in(folder: Path, last: str | None, depth: int) -> Iterator[Mark]:
    try:
        inside = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
        entries = ckpt.entries(folder)
    except OSError:
        return
    for entry in entries:
        # Without a file that is written last, a folder of checkpoints is none itself: "" is the path as it is.
        if last is None or (entry.path / last).is_file():
            yield from _mark(entry)
    taken = {entry.path for entry in entries} if last else set()
    for path in inside if last is not None and depth else ():
        if path not in taken:
            yield from _in(path, last, depth - 1)


def _mark(entry: ckpt.Entry) -> Iterator[Mark]:
    with suppress(OSError):  # pruned while we looked
        yield Mark(entry.path, entry.step, os.stat(entry.path).st_mtime_ns)


def _is_good(path: Path) -> bool:
    """Say whether nothing speaks against a checkpoint; torch's old format has no checksums to speak for it."""
    kind = ckpt.OWN if store.NAME.fullmatch(path.name) else ckpt.OTHER
    try:
        return ckpt.judge(ckpt.Entry(None, path, kind)).state != foreign.BAD
    except UserError:  # a newer format
        return True
