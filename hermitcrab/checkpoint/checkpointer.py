"""A training that survives, by four lines in its loop.

::

ckpt = Checkpointer("runs/exp1", model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler)
for step in range(ckpt.resume(), total):
    ...
    ckpt.step(step, loss=loss)
ckpt.close()
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from hermitcrab.checkpoint import choice, parts, ranks, record, rng
from hermitcrab.checkpoint.choice import Chosen
from hermitcrab.checkpoint.pace import OVERHEAD, Clock, Pace
from hermitcrab.checkpoint.retention import LEAST, Keep
from hermitcrab.checkpoint.sampler import ResumableSampler
from hermitcrab.checkpoint.saver import Saver, load, say
from hermitcrab.checkpoint.signals import Signals
from hermitcrab.errors import UserError

TERMINATED = 128 + 15  # how a shell tells that SIGTERM ended a program


class Checkpointer:
    """Saves a training's parts and brings them back; every other keyword is a part by its own name.

    Saves by cost (at most ``overhead`` of the time), or ``every_steps``, or ``every_minutes``. Keeps the
    ``keep`` newest, every ``keep_every``-th step, and the ``best`` by a metric given to ``step``
    (``"loss"``: the lowest; ``"+accuracy"``: the highest).
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every_steps: int | None = None,
        every_minutes: float | None = None,
        overhead: float = OVERHEAD,
        keep: int = LEAST,
        keep_every: int = 0,
        best: str = "",
        run: str | None = None,
        asynchronous: bool = True,
        rehearse: bool = True,
        allow_non_finite: bool = False,
        **named: Any,
    ) -> None:
        self.folder = Path(folder).absolute()  # the loop may change the working directory
        self._parts = {name: part for name, part in named.items() if part is not None}
        parts.check(self._parts)
        if keep < LEAST or (every_steps is not None and every_steps < 1) or not 0 < overhead <= 1:
            raise UserError("valid are keep >= 2, every_steps >= 1 and 0 < overhead <= 1", code=2)
        self._run, self._rehearse = run, rehearse
        self._signals = Signals()
        self._saver = Saver(
            self.folder,
            clock=Clock(Pace(every_steps, every_minutes, overhead)),
            keep=Keep(keep, keep_every, best),
            asynchronous=asynchronous,
            allow_non_finite=allow_non_finite,
        )
        self._environment: dict[str, Any] = {}
        self._notes: list[str] = []
        self._metrics: dict[str, Any] = {}
        self._done: int | None = None
        self._unsaved = self._resumed = self._closed = False

    @property
    def saved(self) -> int | None:
        """The step of the newest checkpoint that is safe on disk."""
        return self._saver.saved

    def resume(self, *, step: int | None = None, fresh: bool = False) -> int:
        """Load the newest good checkpoint, or that of ``step`` alone; returns the next step to do.

        ``fresh`` begins a new run at 0 and leaves what is there. Call it once all parts are made.
        """
        self._environment = {**ranks.from_first(record.environment), "world_size": ranks.world()}
        chosen = None if fresh else self._choose(step)
        self._run = ranks.from_first(lambda: self._run_id(chosen, fresh=fresh))
        if chosen is not None:
            self._notes = ranks.all_succeed(lambda: self._apply(chosen))
            self._saver.saved = int(chosen.manifest["step"])
            self._say(f"resumed from {chosen.path.name}" + "".join(f"; {note}" for note in self._notes))
        self._signals.install()
        atexit.register(self._drain)
        self._saver.clock.begun()
        self._resumed = True
        return 0 if chosen is None else int(chosen.manifest["step"]) + 1

    def step(self, step: int, *, loss: Any = None, batches: int = 1, **metrics: Any) -> None:
        """Say that a step is done; saves if it is time to.

        ``batches`` tells how many were taken for it, where the loop iterates over the loader itself.
        Raises what went wrong in the last save, a full disk excepted. Ends the program after SIGTERM.
        """
        if not self._resumed or self._closed:
            raise UserError("call resume() once before the first step(), and none after close()", code=2)
        self._saver.background.raise_error()
        first, self._done, self._unsaved = self._done is None, step, True
        self._metrics = metrics if loss is None else {"loss": loss, **metrics}
        sampler = self._parts.get("sampler")
        if isinstance(sampler, ResumableSampler) and not sampler.counts_itself:
            sampler.advance(batches)
        due = ranks.rank() == 0 and self._is_due(step)
        due, asked, stop = ranks.any_of([due, self._signals.save, self._signals.stop])
        if due or asked:
            self._signals.save = False
            self._save()
        elif first and self._rehearse:
            self._save(rehearsal=True)
        if asked:
            self.wait()
        if stop:
            self.close()
            raise SystemExit(TERMINATED)

    def save(self) -> None:
        """Save the last step now, and return when it is safe; raises if it cannot be."""
        if self._done is None:
            raise UserError("there is nothing to save before the first step()", code=2)
        self._save()
        self.wait()
        self._raise_failure()

    def wait(self) -> None:
        """Return when no save is under way; raises what went wrong in it, a full disk excepted."""
        self._saver.background.wait()
        self._saver.background.raise_error()

    def close(self) -> None:
        """Save the last step if it is not, wait for it, and raise if it is not safe.

        While an exception is on its way it only waits: the state may be in the middle of a step.
        """
        if self._closed:
            return
        failing = sys.exc_info()[0] is not None
        try:
            if not failing and ranks.any_of([self._unsaved])[0]:
                self._save()
            self._saver.background.wait()
            if not failing:
                self._saver.background.raise_error()
                self._raise_failure()
                if ranks.rank() == 0 and self._resumed:
                    choice.committed(self.folder)
        finally:
            self._closed = True
            self._signals.restore()
            atexit.unregister(self._drain)

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._drain()

    def _is_due(self, step: int) -> bool:
        if self._saver.clock.pace.every_steps is None and self._saver.background.busy:
            return False  # one in flight; by time the next one may as well begin a step later
        return self._saver.clock.is_due(step)

    def _save(self, *, rehearsal: bool = False) -> None:
        step = self._done
        assert step is not None
        states = ranks.gather(rng.capture())
        if ranks.rank() == 0:
            metrics = {name: _number(value) for name, value in self._metrics.items()}
            loss = metrics.get("loss")
            if isinstance(loss, float) and not math.isfinite(loss) and not (rehearsal or self._saver.allow_non_finite):
                say(f"WARNING: step {step} is not saved: its loss is {loss}")
                return
            state = {**parts.collect(self._parts), "rng": states}
            self._saver.save(state, self._manifest(metrics), step, rehearsal=rehearsal)
        self._unsaved = rehearsal

    def _manifest(self, metrics: dict[str, Any]) -> dict[str, Any]:
        sampler = self._parts.get("sampler")
        position: dict[str, Any] = {"epoch": None, "samples": None, "batches": None}
        if isinstance(sampler, ResumableSampler):
            position = {"epoch": sampler.epoch, "samples": sampler.samples, "batches": sampler.batch}
        inexact = self._inexact()
        exactness = {"exact": not inexact, "inexact": inexact}
        told = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
        return {**self._environment, **position, **exactness, "metrics": told, "run": self._run, "time": time.time()}

    def _inexact(self) -> list[str]:
        reasons = list(self._notes)
        if "sampler" not in self._parts:
            reasons.append("no sampler was given: the position in the data is not saved")
        elif not isinstance(self._parts["sampler"], ResumableSampler):
            reasons.append("the position in the data is as good as the given sampler tells it")
        if torch.cuda.is_available() and not self._environment["deterministic"]:
            reasons.append("deterministic algorithms are off: on CUDA the same state may give other bits")
        return reasons

    def _choose(self, step: int | None) -> Chosen | None:
        """Rank 0 chooses and reads all of it; the others load what it names."""
        mine: list[Chosen | None] = [None]

        def first() -> Chosen | None:
            run = self._only_run()
            mine[0] = (
                choice.choose(self.folder, run, load, say)
                if step is None
                else choice.exactly(self.folder, step, run, load)
            )
            return mine[0] and mine[0]._replace(state=None)

        told = ranks.from_first(first)
        if ranks.rank() == 0 or told is None:
            return mine[0]
        return told

    def _only_run(self) -> str | None:
        there = choice.runs(self.folder)
        given = self._run or (os.environ.get("RUN_ID") if os.environ.get("RUN_ID") in there else None)
        if given is None and len(there) > 1:
            raise UserError(
                f"{self.folder} holds checkpoints of {len(there)} runs; choose with Checkpointer(…, run=…): "
                + ", ".join(there),
                code=2,
            )
        return given

    def _run_id(self, chosen: Chosen | None, *, fresh: bool) -> str:
        if chosen is not None:
            return str(chosen.manifest.get("run"))
        named = self._run or os.environ.get("RUN_ID")
        return named if named and not (fresh and named in choice.runs(self.folder)) else uuid.uuid4().hex[:12]

    def _apply(self, chosen: Chosen) -> list[str]:
        state = chosen.state if chosen.state is not None else load(chosen.path)
        notes = record.differences(chosen.manifest, self._environment) + parts.apply(self._parts, state)
        states = state["rng"]
        if len(states) != ranks.world():
            rng.restore(states[0])
            torch.manual_seed(int(torch.randint(2**62, ())) + ranks.rank())
            return [*notes, "the ranks' random states are new ones"]
        mine = states[ranks.rank()]
        sampler = self._parts.get("sampler")
        if isinstance(sampler, ResumableSampler) and sampler.batch:
            # In mid-epoch the loader's start draws once more than the first time: undo it.
            sampler.on_first_index = lambda: rng.restore(mine)
        return notes + rng.restore(mine)

    def _raise_failure(self) -> None:
        if self._saver.failure is not None:
            raise UserError(
                f"the last save failed: {self._saver.failure}; the newest checkpoint is of step {self.saved}"
            ) from self._saver.failure
        if self._unsaved:
            raise UserError(f"step {self._done} is not saved: its loss is not finite; the newest is step {self.saved}")

    def _drain(self) -> None:
        self._saver.background.wait()
        self._signals.restore()
        self._closed = True

    def _say(self, message: str) -> None:
        if ranks.rank() == 0:
            say(message)


def _number(value: Any) -> Any:
    """A metric as a number; only at a save, since reading a tensor makes the GPU wait."""
    return float(value) if isinstance(value, torch.Tensor) or hasattr(value, "item") else value
