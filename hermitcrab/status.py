"""The status file: what a training tells its supervisor while it runs.

The supervisor names it in the variable STATUS_FILE; `Checkpointer` writes it, and any program may. It is
a JSON object, replaced as a whole; every field may be missing.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from hermitcrab.box.files import read_json
from hermitcrab.box.files import write as write_file

VARIABLE = "STATUS_FILE"


class Status(NamedTuple):
    """One state of a training."""

    step: int | None = None  # the newest step that is done
    total: int | None = None  # how many there will be, if the program knows
    loss: float | None = None  # NaN and infinities are written as the texts "nan", "inf", "-inf"
    grad_norm: float | None = None
    phase: str = ""  # "", or what it is busy with that is no step: "saving", "evaluating", "compiling" ...
    committed: int | None = None  # the step of the newest checkpoint that is safe on disk
    checkpoint: str = ""  # its path
    folder: str = ""  # where the checkpoints are
    exact: bool | None = None  # whether a resume continues bit for bit
    finished: bool = False  # the program reached its end, whatever its exit status says
    signals: tuple[str, ...] = ()  # those it handles, as "SIGTERM": no others may be sent to it
    pid: int | None = None  # who wrote this
    attempt: int | None = None  # ATTEMPT as the program found it: a stale file of an earlier one is told by it


def write(path: Path, status: Status) -> None:
    """Replace the status file; not synced, since it matters only while the machine is up."""
    fields = {name: _plain(value) for name, value in status._asdict().items()}
    write_file(path, (json.dumps(fields, sort_keys=True) + "\n").encode(), sync=False)


def read(path: Path) -> Status:
    """Read the status file; what is missing or of a wrong kind keeps its default."""
    found = read_json(path)
    return Status(**{name: _read(name, value) for name, value in found.items() if _fits(name, value)})


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


KINDS: dict[str, tuple[type, ...]] = {
    "step": (int,),
    "total": (int,),
    "loss": (int, float, str),
    "grad_norm": (int, float, str),
    "phase": (str,),
    "committed": (int,),
    "checkpoint": (str,),
    "folder": (str,),
    "exact": (bool,),
    "finished": (bool,),
    "signals": (list,),
    "pid": (int,),
    "attempt": (int,),
}
WORDS = {"nan", "inf", "-inf"}


def _fits(name: str, value: Any) -> bool:
    kinds = KINDS.get(name, ())
    if isinstance(value, bool) and bool not in kinds:
        return False
    return isinstance(value, kinds) and not (
        isinstance(value, str) and str in kinds and float in kinds and value not in WORDS
    )


def _read(name: str, value: Any) -> Any:
    if float in KINDS[name]:
        return float(value)
    return tuple(str(item) for item in value) if isinstance(value, list) else value
