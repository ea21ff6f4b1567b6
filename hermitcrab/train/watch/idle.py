"""Is the card paid for and not used? Told with the likeliest cause, and never a reason to end a run.

Low utilisation is no hang: killers that took it for one hit jobs that were downloading their data.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Callable, NamedTuple

from hermitcrab.train.watch.finding import Finding
from hermitcrab.train.watch.progress import span
from hermitcrab.train.watch.usage import Cpu

LOW = 70.0  # per cent, median
WINDOW = 600.0
LEAST = 300.0  # of the window must have been measured
AGAIN = 3600.0


class Facts(NamedTuple):
    """What is known beside the utilisation; rates are per second of the window."""

    util: float
    cpus: float | None  # that may be used
    tree: float | None = None  # CPUs in use by the training
    busiest: float | None = None  # by its busiest process
    throttled: float | None = None  # share of the time
    received: float | None = None  # bytes per second
    waiting: float | None = None  # share of the time
    memory: float | None = None  # share of the card's
    stepping: bool = True


class Cause(NamedTuple):
    """Why a card may wait: when it holds, what is said and what helps."""

    holds: Callable[[Facts], bool]
    text: Callable[[Facts], str]
    advice: str


def _above(value: float | None, least: float) -> bool:
    return value is not None and value >= least


def _all_cpus(facts: Facts) -> bool:
    return facts.cpus is not None and _above(facts.tree, 0.85 * facts.cpus)


# The first that holds is told: the surest first.
CAUSES = (
    Cause(
        lambda facts: not facts.stepping and _above(facts.received, 1e6),
        lambda facts: f"no steps yet, and {(facts.received or 0) / 1e6:.0f} MB/s come in: it waits for a download",
        "download without a card first (AutoDL: 无卡模式), to a disk that stays; a mirror: HF_ENDPOINT",
    ),
    Cause(
        lambda facts: _above(facts.throttled, 0.1),
        lambda facts: (
            f"the box's CPU quota ({facts.cpus or 0:g} CPUs) stops it {100 * (facts.throttled or 0):.0f} % of the time"
        ),
        "num_workers within the quota, OMP_NUM_THREADS=1, data decoded beforehand; or a box with more CPUs",
    ),
    Cause(
        _all_cpus,
        lambda facts: (
            f"the data loader: {facts.tree or 0:.1f} of {facts.cpus or 0:g} CPUs are busy, and the card waits for them"
        ),
        "decode and resize once and store the result, augment on the card, or take a box with more CPUs for each card",
    ),
    Cause(
        lambda facts: _above(facts.waiting, 0.3),
        lambda facts: f"the disk: {100 * (facts.waiting or 0):.0f} % of the time somebody waits for it",
        "copy the data to the local disk first; a few large files (tar, LMDB) instead of many small ones",
    ),
    Cause(
        lambda facts: not facts.stepping,
        lambda _: "no steps yet: it loads, downloads or compiles",
        "what can be prepared without a card is cheaper on a box without one",
    ),
    Cause(
        lambda facts: _above(facts.busiest, 0.9) and _above((facts.cpus or 0) - (facts.tree or 0), 1.0),
        lambda facts: (
            f"one process is bound by one CPU, while {(facts.cpus or 0) - (facts.tree or 0):.0f} more are free"
        ),
        "num_workers=4 or more, pin_memory=True; if there are workers already: a larger batch, torch.compile",
    ),
    Cause(
        lambda facts: facts.memory is not None and facts.memory < 0.5,
        lambda facts: f"small batches: {100 * (facts.memory or 0):.0f} % of the card's memory is used",
        "a larger batch (with the learning rate scaled), or a smaller card for less money",
    ),
)
UNKNOWN = Cause(
    lambda _: True,
    lambda _: "the cause is not to be seen from outside",
    "profile a few steps: torch.profiler, or py-spy dump --pid of the training",
)


class Idle:
    """Collects utilisation and tells when its median stays low."""

    def __init__(self, cpus: float | None) -> None:
        self.cpus = cpus
        self._utils: deque[tuple[float, float]] = deque()
        self._readings: deque[Cpu] = deque()
        self._told: float | None = None

    def see(self, now: float, util: float | None, reading: Cpu) -> None:
        """Take what was measured now."""
        self._readings.append(reading)
        if util is not None:
            self._utils.append((now, util))
        while self._utils and now - self._utils[0][0] > WINDOW:
            self._utils.popleft()
        while now - self._readings[0].time > WINDOW:
            self._readings.popleft()

    def judge(self, now: float, *, stepping: bool, memory: float | None) -> Finding | None:
        """Tell of a card that waits, at most once an hour."""
        if not self._utils or self._utils[-1][0] - self._utils[0][0] < LEAST:
            return None
        found = self.facts(stepping=stepping, memory=memory)
        if found.util >= LOW or (self._told is not None and now - self._told < AGAIN):
            return None
        self._told = now
        cause = cause_of(found)
        window = span(self._utils[-1][0] - self._utils[0][0])
        text = f"the GPU works {found.util:.0f} % of the time (median of {window}): {cause.text(found)}"
        return Finding("low-utilisation", fatal=False, text=text, advice=(cause.advice,))

    def explain(self, *, memory: float | None) -> str:
        """Say why the card waits, whatever the time; nothing when it works."""
        if not self._utils or len(self._readings) < 2:
            return ""
        found = self.facts(stepping=True, memory=memory)
        cause = cause_of(found)
        return "" if found.util >= LOW else f"{cause.text(found)}: {cause.advice}"

    def facts(self, *, stepping: bool, memory: float | None) -> Facts:
        """Put together what is known of the window."""
        first, last = self._readings[0], self._readings[-1]
        seconds = last.time - first.time

        def rate(name: str) -> float | None:
            before, after = getattr(first, name), getattr(last, name)
            # A counter that went back belongs to other processes than before.
            known = before is not None and after is not None and seconds > 0 and after >= before
            return (after - before) / seconds if known else None

        util = median(value for _, value in self._utils)
        rates = {name: rate(name) for name in ("tree", "busiest", "throttled", "received", "waiting")}
        return Facts(util, self.cpus, memory=memory, stepping=stepping, **rates)


def cause_of(facts: Facts) -> Cause:
    """Return the first cause of the table that holds."""
    return next((cause for cause in CAUSES if cause.holds(facts)), UNKNOWN)
