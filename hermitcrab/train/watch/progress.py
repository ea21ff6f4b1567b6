"""Does the training get on? Judged by its own steps and never by how busy the card is.

A hung all-reduce keeps every card at 100 %, and a waiting data loader keeps them at 0 %: neither says whether
steps are done. What moves is what counts: the status file's step, else a counter in the output.
"""

from __future__ import annotations

import argparse
import re
from collections import deque
from statistics import median

from hermitcrab.train.watch.finding import Finding
from hermitcrab.train.watch.patterns import Counter

LEAST = 600.0  # seconds without progress that are never a hang
FACTOR = 10  # times the median step
FIRST = 1800.0  # to the first step: then it is told
COMPLETE = 3600.0  # a counter at its total: what follows (an evaluation, an export) counts nothing
PROOF = 3  # moves of a counter in the output before its standing still proves anything
MOST_LABELS = 64
PATIENCE = 3  # a hang doubles the limit for the attempts after it, so often
STARVED = 60.0  # between two looks: the machine slept, not the training
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)?")
UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}

ADVICE = (
    "look at the stacks in the log: the line that all of them share is where it stands",
    "ranks: NCCL_DEBUG=INFO; NCCL_P2P_DISABLE=1 or NCCL_IB_DISABLE=1 where cards do not reach each other",
    "a data loader: try num_workers=0, or set its timeout=; too little /dev/shm hangs its workers",
    "if it was busy with something that counts no steps, give it more time: --hang-after 1h",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add when a run counts as hung."""
    text = "without progress so long it is hung (default: 10 x the median step, at least 10m); `never` only tells"
    parser.add_argument("--hang-after", type=limit, metavar="10m", help=text)
    text = "the first step may take so long; without this option a slow start is told (after 30m) and never ended"
    parser.add_argument("--first-step", type=duration, metavar="30m", help=text)


def duration(text: str) -> float:
    """Read seconds from 90s, 10m, 1.5h or 2d; a plain number is minutes."""
    found = DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * UNITS[found[2] or "m"] if found else 0.0
    if not 0 < seconds < 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: a number with s, m, h or d, as 10m")
    return seconds


def limit(text: str) -> float:
    """Read a duration, or `never`."""
    return float("inf") if text == "never" else duration(text)


def span(seconds: float) -> str:
    """Say a duration: 45 s, 12 min, 3 h 05 min."""
    if seconds < 120:
        return f"{seconds:.3g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


class Progress:
    """One attempt's progress; times are those of one monotonic clock."""

    def __init__(self, now: float, *, hang_after: float | None, first_step: float | None, hangs: int = 0) -> None:
        self.hang_after, self.first_step = hang_after, first_step
        self.patience = 2.0 ** min(hangs, PATIENCE)
        self.moved_at = self.started = now
        self.armed = False
        self.complete = False
        self.phase, self._since = "", now
        self.since_first = 0
        self.first: float | None = None
        self._before = self._last = now
        self._at_once = 0
        self._gaps: deque[float] = deque(maxlen=101)
        self._highest: dict[str, float] = {}
        self._looked = now
        self._told: set[str] = set()

    def heartbeat(self, now: float, *, step: int | None, committed: int | None, phase: str) -> None:
        """Take what the status file says: the best there is, so that two of its steps are proof enough."""
        for label, value in (("status step", step), ("status committed", committed)):
            if (
                value is not None
                and self.saw(now, Counter(label, float(value), None, strong=False))
                and "step" in label
            ):
                self._step(now)
                self.armed, self.complete = self.armed or self.since_first >= 2, False
        self._phase(now, phase)

    def saw(self, now: float, counter: Counter) -> bool:
        """Take a counter of the output; say whether it moved."""
        highest = self._highest.pop(counter.label, None)
        # Several processes may print one counter, so only a new height is a move, or a new round from below.
        moved = highest is None or counter.value > highest or counter.value < highest / 2
        self._highest[counter.label] = counter.value if moved or highest is None else highest
        while len(self._highest) > MOST_LABELS:
            del self._highest[next(iter(self._highest))]
        if moved:
            self._move(now)
            if counter.strong:
                self._step(now)
                self.armed = self.armed or self.since_first >= PROOF
                self.complete = bool(counter.total) and counter.value >= (counter.total or 0)
        return moved

    def quiet(self, now: float) -> float:
        """Return the seconds since anything moved."""
        return max(0.0, now - self.moved_at)

    @property
    def step_time(self) -> float | None:
        """The median seconds between two moves of the steps; None before there are two."""
        return median(self._gaps) if self._gaps else None

    @property
    def limit(self) -> float:
        """The seconds without progress that prove a hang."""
        if self.hang_after is not None:
            return self.hang_after * (1 if self.hang_after == float("inf") else self.patience)
        # Before some steps are known the first is the measure: a program that prints every half hour needs hours.
        usual = self.step_time if len(self._gaps) >= PROOF else max([self.first or 0.0, *self._gaps])
        found = max(LEAST, FACTOR * (usual or 0.0)) * self.patience
        return max(found, COMPLETE) if self.complete else found

    def judge(
        self, now: float, *, finished: bool = False, blind: bool = False, output: float | None = None
    ) -> Finding | None:
        """Say whether it hangs; what is not proven is only told, and once. ``blind``: not all output was read."""
        self._sleep(now)
        quiet = self.quiet(now)
        if self.phase and now - self._since >= COMPLETE:
            text = f"{self.phase} for {span(now - self._since)} now: it is left alone, for the program says so"
            return self._once(f"phase {self._since}", Finding("phase", fatal=False, text=text, advice=ADVICE[:1]))
        if self.first is None:
            return self._slow_start(now)
        if quiet < self.limit:
            return None
        text = self._evidence(quiet, now, output)
        if self.armed and not finished and not blind:
            return Finding("hang", fatal=True, text=text, advice=ADVICE)
        text += "; it is left alone: " + (
            "it said that it finished"
            if finished
            else "too much output to read"
            if blind
            else "its output proves no steps"
        )
        return self._once("quiet", Finding("quiet", fatal=False, text=text, advice=ADVICE[:1]))

    def _phase(self, now: float, phase: str) -> None:
        """Let no time pass while the program says that it is busy with something that is no step."""
        if phase:
            self._since = now if phase != self.phase else self._since
            self._move(now)
        self.phase = phase

    def _slow_start(self, now: float) -> Finding | None:
        waited = now - self.started
        text = f"no step seen {span(waited)} after the start"
        if self.first_step is not None and waited >= self.first_step * self.patience:
            return Finding(
                "hang", fatal=True, text=f"{text}; --first-step allows {span(self.first_step)}", advice=ADVICE
            )
        if self.first_step is None and waited >= FIRST:
            advice = (
                "a download or a compilation may take long: `crab logs` shows what it says",
                "if it does train, its output has no steps that are known here: use Checkpointer or write STATUS_FILE",
            )
            text += "; it is left alone"
            return self._once("slow-start", Finding("slow-start", fatal=False, text=text, advice=advice))
        return None

    def _evidence(self, quiet: float, now: float, output: float | None) -> str:
        step = self._highest.get("status step", self._highest.get("step"))
        last = "" if step is None else f" since step {step:.0f}"
        usual = self.step_time
        said = "" if output is None else f"; it last printed {span(max(0.0, now - output))} ago"
        return f"no progress for {span(quiet)}{last}" + (f"; steps took {span(usual)}" if usual else "") + said

    def _once(self, key: str, finding: Finding) -> Finding | None:
        if key in self._told:
            return None
        self._told.add(key)
        return finding

    def _move(self, now: float) -> None:
        self.moved_at = now
        self._told.discard("quiet")

    def _step(self, now: float) -> None:
        """Take a step. What was printed since the last look comes at once: such steps share the time."""
        if self.first is None:
            self.first = now - self.started
            self._before = self._last = now
        elif now > self._last:
            if self._last > self._before:
                self._gaps.append((self._last - self._before) / self._at_once)
            self._before, self._last, self._at_once = self._last, now, 0
        self._at_once += 1
        self.since_first += 1

    def _sleep(self, now: float) -> None:
        """Forgive the time in which nobody looked: the machine was suspended, and the training with it."""
        gap = now - self._looked
        self._looked = now
        if gap > STARVED:
            self.moved_at = min(now, self.moved_at + gap)
            self.started += gap


class Steps:
    """The step, the loss and the rate, from the best source that was seen."""

    WINDOW = 60.0

    def __init__(self) -> None:
        self.step: int | None = None
        self.total: int | None = None
        self.done = 0  # steps done since the first that was seen
        self.source = ""
        self._recent: deque[tuple[float, int]] = deque()

    def see(self, now: float, step: int, total: int | None, source: str, sources: tuple[str, ...]) -> None:
        """Take a step; one of a source less trusted than the one in use is ignored."""
        if self.source and sources.index(source) > sources.index(self.source):
            return
        if source != self.source:
            self.source, self.step, self.done = source, None, 0
            self._recent.clear()
        if self.step is not None and step != self.step:
            self.done += step - self.step if step > self.step else step if step < self.step / 2 else 0
        if self.step is None or step > self.step or step < self.step / 2:
            self.step = step
        self.total = total if total is not None else self.total
        if self._recent and self._recent[-1][0] == now:
            self._recent.pop()  # what came at once was done before, and counts from its last
        self._recent.append((now, self.done))
        # Always two to compare, however far apart.
        while len(self._recent) > 2 and now - self._recent[0][0] > self.WINDOW:
            self._recent.popleft()

    def rate(self, now: float) -> float | None:
        """Return steps per second over the last minute; None before there are two."""
        if len(self._recent) < 2:
            return None
        seconds = max(now, self._recent[-1][0]) - self._recent[0][0]
        return (self._recent[-1][1] - self._recent[0][1]) / seconds if seconds > 0 else None
