"""Where a start goes on: as the caller says, else as the supervisor's variables say.

CKPT_DIR is the folder, RESUME is ``auto``, ``none`` or the path of one checkpoint, RUN_ID names the run.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import NamedTuple

from hermitcrab.checkpoint import choice, ranks
from hermitcrab.checkpoint.choice import Chosen, Load
from hermitcrab.checkpoint.saver import load, say
from hermitcrab.errors import UserError

FOLDER, RESUME, RUN = "CKPT_DIR", "RESUME", "RUN_ID"


class Wanted(NamedTuple):
    """What to go on from; nothing means the newest good one."""

    step: int | None = None
    fresh: bool = False
    path: Path | None = None


def folder(given: str | os.PathLike[str] | None) -> Path:
    """The folder of the run; absolute, since the loop may change the working directory."""
    named = given or os.environ.get(FOLDER)
    if not named:
        raise UserError(f"give Checkpointer a folder, or set {FOLDER}", code=2)
    return Path(named).absolute()


def wanted(step: int | None, *, fresh: bool) -> Wanted:
    """What the arguments ask for; without any, what RESUME does."""
    said = os.environ.get(RESUME, "auto")
    if step is not None or fresh or said in {"", "auto"}:
        return Wanted(step, fresh)
    return Wanted(fresh=True) if said == "none" else Wanted(path=Path(said).absolute())


def choose(place: Path, run: str | None, want: Wanted, load: Load = load) -> Chosen | None:
    """Rank 0 chooses and reads all of it; the others load what it names."""
    mine: list[Chosen | None] = [None]

    def first() -> Chosen | None:
        mine[0] = _choose(place, run, want, load)
        return mine[0] and mine[0]._replace(state=None)

    told = ranks.from_first(first)
    return mine[0] if ranks.rank() == 0 or told is None else told


def run_id(place: Path, run: str | None, want: Wanted, chosen: Chosen | None) -> str:
    """The name of the run: that of its checkpoint, the given one, or a new one."""
    if chosen is not None:
        return str(chosen.manifest.get("run"))
    named = run or os.environ.get(RUN)
    return named if named and not (want.fresh and named in choice.runs(place)) else uuid.uuid4().hex[:12]


def _choose(place: Path, run: str | None, want: Wanted, load: Load) -> Chosen | None:
    if want.path:
        return choice.at(want.path, place, load)
    if want.fresh:
        choice.sweep(place, say)
        return None
    run = _only_run(place, run)
    return choice.choose(place, run, load, say) if want.step is None else choice.exactly(place, want.step, run, load)


def _only_run(place: Path, run: str | None) -> str | None:
    there = choice.runs(place)
    run = run or (os.environ.get(RUN) if os.environ.get(RUN) in there else None)
    if run is None and len(there) > 1:
        raise UserError(
            f"{place} holds checkpoints of {len(there)} runs; choose with Checkpointer(…, run=…): " + ", ".join(there),
            code=2,
        )
    return run
