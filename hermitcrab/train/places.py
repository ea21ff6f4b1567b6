"""Where a run keeps its things, and how runs are found again.

A run is a folder: ``runs/<name>/`` with ``run.json`` (what it is and how it stands), ``events.jsonl`` (what
happened), ``samples.jsonl`` (what was measured), ``status.json`` (what the training says), ``log.txt`` (what it
printed), ``checkpoints/``, ``done`` (it is finished) or ``failed`` (it is not, and was given up), ``hold`` (do not
power off) and ``attached/<pid>``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Mapping, Sequence

from hermitcrab.box.home import home
from hermitcrab.errors import UserError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Run:
    """The folder of one run, and the names in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name
        self.state = folder / "run.json"
        self.events = folder / "events.jsonl"
        self.samples = folder / "samples.jsonl"
        self.status = folder / "status.json"
        self.log = folder / "log.txt"
        self.checkpoints = folder / "checkpoints"
        self.done = folder / "done"
        self.failed = folder / "failed"
        self.hold = folder / "hold"
        self.attached = folder / "attached"
        self.lock = folder / "lock"
        self.report = folder / "report.html"


def default_name(argv: Sequence[str], folder: Path) -> str:
    """Name a run after its command, so that the same command in the same folder is the same run.

    A restarted container then goes on with the run it had, and trains no finished one again.
    """
    digest = hashlib.sha256(json.dumps([str(folder), *argv]).encode("utf-8", "surrogateescape")).hexdigest()[:6]
    script = next((Path(word).stem for word in argv if word.endswith(".py")), Path(argv[0]).name)
    return f"{re.sub('[^A-Za-z0-9._-]+', '-', script).strip('.-')[:40] or 'run'}-{digest}"


def open_run(runs: Path, name: str) -> Run:
    """Name the folder of a run that is to be; refuses a name that is none."""
    if not NAME.fullmatch(name):
        raise UserError(f"{name!r} is no name of a run: letters, digits, '.', '_' and '-', at most 64", code=2)
    return Run(runs.absolute() / name)


def register(run: Run, environ: Mapping[str, str] = os.environ) -> None:
    """Let `crab status` and the others find this run from any folder."""
    folder = index(environ)
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / hashlib.sha256(os.fsencode(run.folder)).hexdigest()[:16]
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(run.folder)
    os.replace(temporary, link)
    os.utime(link, follow_symlinks=False)


def index(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the runs of this user are known: links to their folders."""
    state = environ.get("XDG_STATE_HOME", "")
    base = Path(state) if os.path.isabs(state) else Path(home(environ)) / ".local/state"
    return base / "hermitcrab" / "runs"


def known(environ: Mapping[str, str] = os.environ) -> list[Run]:
    """All runs of this user whose folder is still there, the newest start first."""
    folder = index(environ)
    try:
        links = sorted(folder.iterdir(), key=lambda link: link.lstat().st_mtime, reverse=True)
    except OSError:
        return []
    return [Run(Path(os.readlink(link))) for link in links if link.is_symlink() and (link / "run.json").is_file()]


def find(word: str, environ: Mapping[str, str] = os.environ) -> Run:
    """Find a run by name or folder; without a word, the newest one."""
    runs = known(environ)
    if word and (Path(word) / "run.json").is_file():
        return Run(Path(word).absolute())
    for run in runs:
        if not word or run.name == word:
            return run
    names = ", ".join(run.name for run in runs[:5]) or "none yet: start one with `crab train -- COMMAND`"
    raise UserError(f"no run {word!r}; known are {names}" if word else f"no run here; known are {names}", code=2)
