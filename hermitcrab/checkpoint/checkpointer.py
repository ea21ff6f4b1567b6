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
import operator
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, ContextManager

from hermitcrab.checkpoint import choice, loading, metrics, parts, probe, ranks, record, rng, sharded, start, telling
from hermitcrab.checkpoint.manifests import Describer
from hermitcrab.checkpoint.pace import OVERHEAD, Clock, Pace
from hermitcrab.checkpoint.phases import Phases
from hermitcrab.checkpoint.retention import LEAST, Keep
from hermitcrab.checkpoint.sampler import ResumableSampler
from hermitcrab.checkpoint.saver import Saver, say
from hermitcrab.checkpoint.signals import Signals
from hermitcrab.errors import UserError

TERMINATED = 128 + 15  # how a shell tells that SIGTERM ended a program


class Checkpointer:
    """Saves a training's parts and brings them back; every other keyword is a part by its own name.

    Without a ``folder`` it is that of CKPT_DIR, which `crab train` sets. Saves by cost (at most ``overhead`` of
    the time), or ``every_steps``, or ``every_minutes``. Keeps the ``keep`` newest, every ``keep_every``-th step,
    and the ``best`` by a metric given to ``step`` (``"loss"``: the lowest; ``"+accuracy"``: the highest).
    ``total`` is how many steps there will be, for who watches.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        every_steps: int | None = None,
        every_minutes: float | None = None,
        overhead: float = OVERHEAD,
        keep: int = LEAST,
        keep_every: int = 0,
        best: str = "",
        total: int | None = None,
        run: str | None = None,
        asynchronous: bool = True,
        rehearse: bool = True,
        allow_non_finite: bool = False,
        **named: Any,
    ) -> None:
        self.folder = start.folder(folder)
        self._parts = {name: part for name, part in named.items() if part is not None}
        parts.check(self._parts)
        self._sampler = named.get("sampler")
        if keep < LEAST or (every_steps is not None and every_steps < 1) or not 0 < overhead <= 1:
            raise UserError("valid are keep >= 2, every_steps >= 1 and 0 < overhead <= 1", code=2)
        self._run, self._rehearse, self._total = run, rehearse, total
        self._signals = Signals()
        self._phases = Phases()
        self._saver = Saver(
            self.folder,
            clock=Clock(Pace(every_steps, every_minutes, overhead)),
            keep=Keep(keep, keep_every, best),
            asynchronous=asynchronous,
            allow_non_finite=allow_non_finite,
            committed=self._committed,
        )
        self._describer = Describer(_announce)
        self._metrics: dict[str, Any] = {}
        self._done: int | None = None
        self._next = 0  # the least step that may be done now
        self._sharded = self._resumed = self._closed = False

    @property
    def saved(self) -> int | None:
        """The step of the newest checkpoint that is safe on disk."""
        return self._saver.saved

    def resume(self, *, step: int | None = None, fresh: bool = False) -> int:
        """Load the newest good checkpoint, or that of ``step`` alone; returns the next step to do.

        ``fresh`` begins a new run at 0 and leaves what is there. Without either, RESUME decides, which
        `crab train` sets. Call it once all parts are made.
        """
        if self._resumed:
            raise UserError("resume() was called before, and once is enough", code=2)
        if ranks.rank() == 0:
            self._phases.teller = telling.from_environment()
        self._phases.teller.tell(phase="loading", folder=str(self.folder), total=self._total)
        want = start.wanted(step, fresh=fresh)
        here = ranks.from_first(lambda: {**record.environment(), "filesystem": probe.probe(self.folder)})
        here = self._describer.environment = {**here, "world_size": ranks.world()}
        chosen = start.choose(self.folder, self._run, want)
        self._run = ranks.from_first(lambda: start.run_id(self.folder, self._run, want, chosen))
        self._sharded = sharded.is_sharded(self._parts)
        for doubt in probe.doubts(here["filesystem"]):
            _announce(doubt)
        if chosen is not None:
            notes = self._describer.notes = ranks.all_succeed(
                lambda: loading.apply(chosen, self._parts, here, is_sharded=self._sharded)
            )
            self._saver.saved = self._saver.resumed = int(chosen.manifest["step"])
            self._next = self._saver.saved + 1
            _announce(f"resumed from {chosen.path.name}" + "".join(f"; {note}" for note in notes))
            self._committed(self._saver.saved, chosen.path)
        elif isinstance(self._sampler, ResumableSampler):
            self._sampler.placed()  # a program that is wrong is wrong at its first start, too
        self._begin()
        return self._next

    def step(self, step: int, *, loss: Any = None, batches: int = 1, **more: Any) -> None:
        """Say that a step is done; saves if it is time to.

        ``batches`` tells how many were taken for it, where the loop iterates over the loader itself; ``more`` are
        metrics: one number each, which is read at a save only, so that no card need be waited for.
        Raises what went wrong in the last save, a full disk excepted. Ends the program after SIGTERM.
        """
        self._check()
        step = operator.index(step)
        if step < self._next:
            raise UserError(f"step {step} is done, the next is {self._next}: begin at what resume() returned", code=2)
        self._metrics = {name: metrics.held(name, value) for name, value in {"loss": loss, **more}.items()}
        first, self._done, self._next = self._done is None, step, step + 1
        self._phases.drawn = None
        self._phases.teller.step(step, self._metrics["loss"], self._metrics.get("grad_norm"))
        if isinstance(self._sampler, ResumableSampler) and not self._sampler.counts_itself:
            self._sampler.advance(batches)
        self._turn(ranks.rank() == 0 and self._is_due(step), rehearse=first and self._rehearse)

    def poll(self) -> None:
        """Heed SIGTERM and SIGUSR2 between steps: call it now and then in a long evaluation, on all ranks."""
        self._check()
        self._turn(due=False)

    def phase(self, name: str) -> ContextManager[None]:
        """Tell who watches that this is no step, as "evaluating", and may take its time.

        What it draws at random is given back at its end, if it held no step.
        """
        return self._phases.enter(name, lambda: (self._done, self._resumed))

    def save(self) -> None:
        """Save the last step now, and return when it is safe; raises if it cannot be."""
        if self._done is None:
            raise UserError("there is nothing to save before the first step()", code=2)
        self._save()
        self.wait()
        reason = self._unsafe()
        if reason:
            raise UserError(reason) from self._saver.failure

    def wait(self) -> None:
        """Return when no save is under way; raises what went wrong in it, a full disk excepted."""
        with self._phases.waiting("saving"):
            self._saver.background.wait()
        self._saver.background.raise_error()

    def close(self) -> None:
        """Save the last step if it is not, wait for it, and raise if it is not safe.

        While an exception is on its way it only waits: the state may be in the middle of a step.
        """
        self._close(finished=True)

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
            self._drain(kind)

    def _check(self) -> None:
        if not self._resumed or self._closed:
            raise UserError("call resume() once before the first step(), and none after close()", code=2)
        self._saver.background.raise_error()

    def _turn(self, due: bool, *, rehearse: bool = False) -> None:
        """At the end of a step: save, rehearse, or end, as the clock, the signals and all ranks want."""
        due, asked, stop = ranks.any_of([due, self._signals.save, self._signals.stop])
        self._signals.save = self._signals.save and not asked
        if asked:
            self.wait()  # what is under way may be this very step
        if self._done is not None and (due or (asked and self._unsafe())):
            self._save()
        elif rehearse:
            self._save(rehearsal=True)
        if asked:
            self.wait()
        if stop:
            self._close(finished=False)
            raise SystemExit(TERMINATED)

    def _close(self, *, finished: bool) -> None:
        if self._closed:
            return
        failing = sys.exc_info()[0] is not None
        try:
            with self._phases.waiting("saving"):
                self._saver.background.wait()
            if not failing:
                self._saver.background.raise_error()
                if self._unsafe():
                    self.save()
                if ranks.rank() == 0 and self._resumed:
                    choice.committed(self.folder)
                self._phases.teller.tell(finished=finished)
        finally:
            self._end()

    def _is_due(self, step: int) -> bool:
        if self._saver.clock.pace.every_steps is None and self._saver.background.busy:
            return False  # one in flight; by time the next one may as well begin a step later
        return self._saver.clock.is_due(step)

    def _save(self, *, rehearsal: bool = False) -> None:
        step = self._done
        assert step is not None
        states = ranks.gather(self._phases.drawn or rng.capture())
        told = {name: metrics.number(value) for name, value in self._metrics.items()}
        if rehearsal or self._is_finite(step, told["loss"]):
            manifest = {**self._describer.describe(self._parts, told), "run": self._run}
            self._phases.teller.tell(exact=manifest["exact"])
            with self._phases.waiting("saving"):
                self._write(states, manifest, step, rehearsal=rehearsal)

    def _write(self, states: list[rng.State], manifest: dict[str, Any], step: int, *, rehearsal: bool) -> None:
        if self._sharded:
            spread, rest = sharded.split(self._parts)
            state = {**parts.collect(rest), "rng": states}
            self._saver.save_together(sharded.state_of(spread), state, manifest, step, rehearsal=rehearsal)
        elif ranks.rank() == 0:
            state = {**parts.collect(self._parts), "rng": states}
            self._saver.save(state, manifest, step, rehearsal=rehearsal)

    def _is_finite(self, step: int, loss: float | None) -> bool:
        fine = self._saver.allow_non_finite or loss is None or math.isfinite(loss)
        if not fine:
            _announce(f"WARNING: step {step} is not saved: its loss is {loss}")
        return ranks.from_first(lambda: fine)

    def _unsafe(self) -> str:
        """Why the last step is not on the disk, as rank 0 knows it; empty when it is, or when there is none."""

        def reason() -> str:
            saved, failure = self._saver.saved, self._saver.failure
            if self._done in {None, saved}:
                return ""
            if failure is not None:
                return f"the last save failed: {failure}; the newest checkpoint is of step {saved}"
            return f"step {self._done} is not saved: its loss is not finite; the newest checkpoint is of step {saved}"

        return ranks.from_first(reason)

    def _begin(self) -> None:
        self._signals.install()
        atexit.register(self._drain)
        self._saver.clock.begun()
        self._resumed = True
        self._phases.teller.tell(phase="", signals=self._signals.caught)

    def _drain(self, kind: Any = None) -> None:
        """Wait for what is under way: all that is right at an exception, or at an end without close()."""
        self._saver.background.wait()
        if (kind or getattr(sys, "last_type", None)) is KeyboardInterrupt and ranks.rank() == 0:
            choice.committed(self.folder)  # it did not die of its checkpoint
        self._end()

    def _end(self) -> None:
        self._closed = True
        self._signals.restore()
        self._phases.teller.close(phase="", signals=())
        atexit.unregister(self._drain)

    def _committed(self, step: int, path: Path) -> None:
        self._phases.teller.tell(committed=step, checkpoint=str(path))


def _announce(message: str) -> None:
    """Say it, on one rank."""
    if ranks.rank() == 0:
        say(message)
