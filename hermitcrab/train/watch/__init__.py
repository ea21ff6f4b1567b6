"""What `crab train` keeps an eye on while a command runs: progress, numbers, the cards, the box, the bill.

The supervisor has one Watch for a run: `begin` at each start of the command, `line` for each line of its output
(and for each piece that ends in a carriage return: a progress bar may never end a line), `tick` about once a
second, `sample` every ten seconds, `close` at the end. Not one of them waits for anything.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections import deque
from pathlib import Path
from typing import Any, Callable, Mapping

from hermitcrab.box import files
from hermitcrab.box.disks import size
from hermitcrab.status import Status
from hermitcrab.train.places import Run
from hermitcrab.train.watch import cost, gpu, idle, nan, patterns, preemption, progress, smoke
from hermitcrab.train.watch.finding import Finding
from hermitcrab.train.watch.health import Health
from hermitcrab.train.watch.patterns import Reading
from hermitcrab.train.watch.usage import Box

__all__ = ["EVERY", "Finding", "Watch", "add_options"]

EVERY = 10.0  # seconds between two samples
LINES = 50  # that are read in a second: a flood of output must not cost the training its CPU
RAM_FULL = 0.92
DISK_LEAST = 2 * 2**30


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all parts."""
    for part in (progress, nan, smoke, cost):
        part.add_options(parser)


class Watch:
    """Watches one run through all its attempts."""

    def __init__(
        self,
        options: argparse.Namespace,
        run: Run,
        *,
        environ: Mapping[str, str] = os.environ,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
        poll: float = preemption.EVERY,
    ) -> None:
        self._options, self._run, self._clock = options, run, clock
        now = clock()
        before = files.read_json(run.state).get("spent")
        self._meter = cost.Meter(options.price, options.currency, now, before)
        self._box, self._gpu = Box(root), gpu.Gpu(environ, root)
        self._poller = preemption.poller(environ, root, every=poll)
        if self._poller:
            self._poller.start()
        self._health = Health(self._gpu)
        self._hangs = 0
        self._told: set[str] = set()
        self.begin(0)

    def begin(self, attempt: int, pid: int | None = None) -> None:
        """Begin to watch a new start of the command: nothing that was seen of an earlier one counts."""
        now = self._clock()
        options = self._options
        self._attempt, self._pid = attempt, pid
        self._progress = progress.Progress(
            now, hang_after=options.hang_after, first_step=options.first_step, hangs=self._hangs
        )
        self._steps, self._numbers = progress.Steps(), nan.Numbers(options.nan_after)
        self._idle, self._seen = idle.Idle(self._box.limits.cpus), smoke.Seen()
        self._readings: deque[Reading] = deque(maxlen=20 * LINES)
        self._second, self._in_second, self._flood = 0, 0, float("-inf")
        self._status, self._printed = Status(), None  # type: tuple[Status, float | None]
        self._loss: float | None = None
        self._grad_norm: float | None = None
        self._sampled: float | None = None
        self._last: dict[str, Any] = {}
        self._ended = False

    def line(self, text: str) -> None:
        """Take a line of output; called from the pump, so it must be quick."""
        now = self._clock()
        self._printed = now
        if patterns.hints(text) and self._may_read(now):
            reading = patterns.read(text)
            if reading:
                self._readings.append(reading)

    def tick(self, status: Status, now: float) -> list[Finding]:
        """Say what is new since the last tick; after a fatal finding nothing more of this attempt."""
        if self._ended:
            return []
        # A file that an earlier attempt left says nothing of this one.
        fresh = status.attempt is None or not self._attempt or status.attempt == self._attempt
        found = self._heard(now) + self._read_status(status if fresh else Status(), now)
        if self._gpu.poll():
            found += self._health.news()
        if self._sampled is None or now - self._sampled >= (1.0 if self._options.smoke else EVERY):
            found += self._measure(now)
        found += self._judge(now)
        self._ended = any(finding.fatal for finding in found)
        self._hangs += any(finding.kind == "hang" and finding.fatal for finding in found)
        return found

    def sample(self) -> dict[str, Any]:
        """Return the newest numbers, for samples.jsonl; what is unknown is None."""
        now = self._clock()
        return {**self._last, **self._position(now), "grad_norm": _plain(self._grad_norm), "spent": self.spent(now)}

    def state(self) -> dict[str, Any]:
        """Return what run.json says of the position and the bill."""
        now = self._clock()
        fields = {**self._position(now), "total": self._steps.total, "committed": self._status.committed}
        bill = {"price": self._meter.price, "currency": self._meter.currency, "spent": self.spent(now)}
        return {**fields, "checkpoint": self._status.checkpoint, **bill}

    def spent(self, now: float | None = None) -> float | None:
        """Return what the run has cost; None without a price."""
        spent = self._meter.spent(self._clock() if now is None else now)
        return None if spent is None else round(spent, 4)

    def lost(self) -> str:
        """Say which card was lost and how that is known; nothing while all are there, as far as is known."""
        return self._gpu.lost()

    def verdict(self) -> Finding | None:
        """Return the verdict of --smoke on what was seen, for a command that ended by itself; None without it."""
        now = self._clock()
        if not self._options.smoke:
            return None
        waits = self._idle.explain(memory=_share(self._last, "gpu_memory")) if self._seen.utils else ""
        facts = self._seen.facts(
            self._steps,
            self._steps.rate(now),
            self._last,
            first=self._progress.first,
            cause=waits,
            price=self._meter.price,
            currency=self._meter.currency,
        )
        return smoke.verdict(facts, self._options.smoke)

    def close(self) -> None:
        """End what was started to ask the cards and the cloud."""
        self._gpu.close()
        if self._poller:
            self._poller.close()

    def _heard(self, now: float) -> list[Finding]:
        """Take what the output told since the last tick; it is as old as that, and no more is known."""
        found: list[Finding] = []
        while self._readings:
            reading = self._readings.popleft()
            moves = [self._progress.saw(now, counter) for counter in reading.counters]
            if reading.step is not None:
                self._steps.see(now, reading.step, reading.total, reading.source, patterns.SOURCES)
            if any(moves) or not moves:
                found += self._take(reading.source or "output", reading.loss, reading.grad_norm, zero=reading.zero)
        return found[:1]

    def _may_read(self, now: float) -> bool:
        if int(now) != self._second:
            self._second, self._in_second = int(now), 0
        self._in_second += 1
        if self._in_second > LINES:
            self._flood = now
        return self._in_second <= LINES

    def _read_status(self, status: Status, now: float) -> list[Finding]:
        before, self._status = self._status, status
        self._progress.heartbeat(now, step=status.step, committed=status.committed, phase=status.phase)
        if status.step is None or status.step == before.step:
            return []
        self._steps.see(now, status.step, status.total, "status", patterns.SOURCES)
        return self._take("status", status.loss, status.grad_norm, zero=status.loss == 0)

    def _take(self, source: str, loss: float | None, grad_norm: float | None, *, zero: bool) -> list[Finding]:
        """Take the numbers of a new step."""
        self._loss = self._loss if loss is None else loss
        self._grad_norm = self._grad_norm if grad_norm is None else grad_norm
        self._seen.loss(_plain(loss))
        where = "" if self._steps.step is None else f"step {self._steps.step}"
        finding = self._numbers.see(source, loss, grad_norm, zero=zero, where=where)
        return [finding] if finding else []

    def _measure(self, now: float) -> list[Finding]:
        """Read the box and ask the cards, whose answer comes later; tell what runs short."""
        self._sampled = now
        ram, ram_limit = self._box.ram()
        self._last = {
            **gpu.figures(self._gpu.cards),
            "ram": ram,
            "ram_limit": ram_limit,
            "disk_free": self._box.disk_free(self._run.checkpoints.absolute()),
        }
        self._gpu.ask(now)
        self._idle.see(now, self._last["gpu_util"], self._box.cpu(self._pid, now))
        self._seen.sample(self._last)
        # A program that never tells its steps is thought to train, after a while.
        stepping = self._steps.step is not None or now - self._progress.started > progress.FIRST
        waits = self._idle.judge(now, stepping=stepping, memory=_share(self._last, "gpu_memory"))
        return [finding for finding in (waits, self._ram(), self._disk()) if finding]

    def _judge(self, now: float) -> list[Finding]:
        if self._options.smoke and self._steps.done >= self._options.smoke:
            return [finding for finding in (self.verdict(),) if finding]
        taken = self._poller.found if self._poller else None
        # The step may have stood in a line that was passed over; a status file is never.
        blind = self._steps.source != "status" and self._flood > self._progress.moved_at
        hung = self._progress.judge(now, finished=self._status.finished, blind=blind, output=self._printed)
        return [*([taken] if taken else []), *self._health.judge(now, self._progress), *([hung] if hung else [])]

    def _ram(self) -> Finding | None:
        share = _share(self._last, "ram")
        if share is None or share < RAM_FULL:
            return None
        text = (
            f"memory: {100 * share:.0f} % of {size(self._last['ram_limit'])} are in use; at the limit the kernel kills"
        )
        advice = (
            "fewer workers, smaller prefetch_factor, no pin_memory",
            "data that is read as needed, not all at once",
        )
        return self._once("ram", Finding("ram", fatal=False, text=text, advice=advice))

    def _disk(self) -> Finding | None:
        free = self._last.get("disk_free")
        if free is None or free >= DISK_LEAST:
            return None
        text = f"disk: {size(free)} are left where the checkpoints are"
        advice = ("make room now, or the next checkpoint fails: `crab ckpt prune`, `crab seal --dry-run` shows caches",)
        return self._once("disk", Finding("disk", fatal=False, text=text, advice=advice))

    def _once(self, key: str, finding: Finding) -> Finding | None:
        """Tell it once in a run."""
        if key in self._told:
            return None
        self._told.add(key)
        return finding

    def _position(self, now: float) -> dict[str, Any]:
        rate = self._steps.rate(now)
        return {"step": self._steps.step, "loss": _plain(self._loss), "rate": None if rate is None else round(rate, 4)}


def _plain(value: float | None) -> float | None:
    """JSON has no word for a NaN: it is told as unknown, and by an event."""
    return value if value is not None and math.isfinite(value) else None


def _share(sample: Mapping[str, Any], name: str) -> float | None:
    whole = sample.get(f"{name}_total" if name == "gpu_memory" else f"{name}_limit")
    return sample[name] / whole if whole and sample.get(name) is not None else None
