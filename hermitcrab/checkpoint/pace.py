"""When to save: by time, by steps, or as often as costs at most a few per cent of the training."""

from __future__ import annotations

import time
from typing import Callable, NamedTuple

OVERHEAD = 0.035  # CheckFreq's figure
LEAST_S = 10.0
RETRY_S = 60.0


class Pace(NamedTuple):
    """What the user asked for; nothing means by cost."""

    every_steps: int | None = None
    every_minutes: float | None = None
    overhead: float = OVERHEAD


class Clock:
    """Knows when the last save was and what it cost. Monotonic: wall clocks jump after a resume."""

    def __init__(self, pace: Pace, now: Callable[[], float] = time.monotonic) -> None:
        self.pace, self.now = pace, now
        self.cost = 0.0
        self.last = now()
        self.failed = False

    @property
    def interval(self) -> float | None:
        """Seconds between saves; None where only steps count."""
        if self.pace.every_minutes is not None:
            return self.pace.every_minutes * 60
        if self.pace.every_steps is not None:
            return None
        return max(LEAST_S, self.cost / self.pace.overhead)

    def is_due(self, step: int) -> bool:
        """Say whether a save is to begin after this step."""
        waited = self.now() - self.last
        if self.failed:  # the disk may have space again
            return waited >= min(RETRY_S, self.interval or RETRY_S)
        by_steps = self.pace.every_steps is not None and (step + 1) % self.pace.every_steps == 0
        return by_steps or (self.interval is not None and waited >= self.interval)

    def begun(self) -> None:
        """Count the time to the next save from here."""
        self.last = self.now()

    def ended(self, seconds: float) -> None:
        """Take the whole save as cost: what ran beside the training took its share of disk and memory."""
        self.cost, self.failed = seconds, False
