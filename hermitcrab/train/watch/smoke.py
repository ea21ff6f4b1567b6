"""`--smoke 200`: so many steps on whatever is there, and a verdict on loading, loss and memory.

Test small before renting big: what breaks in 200 steps breaks on eight cards as well, and there it costs more.
"""

from __future__ import annotations

import argparse
from statistics import mean, median
from typing import Any, NamedTuple, Sequence

from hermitcrab.box.disks import size
from hermitcrab.train.watch.cost import money
from hermitcrab.train.watch.finding import Finding
from hermitcrab.train.watch.progress import Steps, span

FULL = 0.92  # of a memory: the next longer batch does not fit
ROOM = 0.5
FEW = 8  # losses that show a direction


class Facts(NamedTuple):
    """What the steps have shown; None is unknown."""

    steps: int
    rate: float | None = None
    first: float | None = None  # seconds to the first step
    total: int | None = None
    losses: Sequence[float] = ()
    util: float | None = None
    cause: str = ""  # why the card waits, and what helps
    gpu: float | None = None  # the most of its memory, as a share
    gpu_total: int | None = None
    ram: float | None = None
    ram_limit: int | None = None
    price: float | None = None
    currency: str = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the short run."""
    text = "run N steps, stop, and say whether loading, loss and memory are in order"
    parser.add_argument("--smoke", type=_steps, metavar="N", help=text)


def verdict(facts: Facts, wanted: int) -> Finding:
    """Put the lines together; the run is over with it."""
    lines = [_done(facts, wanted), _loading(facts), _loss(facts.losses), *_memory(facts), *_bill(facts)]
    bad = sum(line.startswith("BAD") for line in lines)
    words = "in order" if not bad and facts.steps >= wanted else "not in order"
    text = f"smoke: {words} after {facts.steps} steps\n" + "\n".join(f"  {line}" for line in lines if line)
    return Finding("smoke-done", fatal=True, text=text, advice=tuple([facts.cause] * bool(facts.cause)))


def _done(facts: Facts, wanted: int) -> str:
    if facts.steps == 0:
        return "BAD   steps: none was seen; its output has none that are known here (use Checkpointer or STATUS_FILE)"
    speed = f", {facts.rate:.3g} steps/s" if facts.rate else ""
    start = f"; the first after {span(facts.first)}" if facts.first is not None else ""
    return f"{'ok ' if facts.steps >= wanted else 'BAD'}   steps: {facts.steps} of {wanted}{speed}{start}"


def _loading(facts: Facts) -> str:
    if facts.util is None:
        return "?     loading: no GPU utilisation was measured"
    if facts.cause:
        return f"slow  loading: the GPU works {facts.util:.0f} % of the time; {facts.cause}"
    return f"ok    loading: the GPU works {facts.util:.0f} % of the time"


def _loss(losses: Sequence[float]) -> str:
    if not losses:
        return "?     loss: none was seen"
    if len(losses) < FEW:
        return f"ok    loss: {losses[0]:.4g} to {losses[-1]:.4g}, too few to judge"
    part = max(1, len(losses) // 4)
    before, after = mean(losses[:part]), mean(losses[-part:])
    if max(losses) == min(losses):
        return f"BAD   loss: {losses[0]:.4g} and never another: nothing is learned, or it is not the loss"
    grows = after > before + 0.5 * abs(before)
    return f"{'BAD' if grows else 'ok '}   loss: {before:.4g} to {after:.4g}" + ", it grows" * grows


def _memory(facts: Facts) -> list[str]:
    lines = []
    if facts.gpu is not None:
        said = f"GPU memory: at most {100 * facts.gpu:.0f} % of {size(facts.gpu_total)}"
        tip = "; a larger batch may be faster" if facts.gpu < ROOM else ""
        lines.append(f"tight {said}" if facts.gpu > FULL else f"ok    {said}{tip}")
    if facts.ram is not None:
        said = f"memory: at most {100 * facts.ram:.0f} % of {size(facts.ram_limit)}"
        lines.append(f"tight {said}; fewer workers" if facts.ram > FULL else f"ok    {said}")
    return lines


def _bill(facts: Facts) -> list[str]:
    if not facts.total or not facts.rate:
        return []
    seconds = facts.total / facts.rate
    cost = f", {money(facts.price * seconds / 3600, facts.currency)}" if facts.price is not None else ""
    return [f"      all {facts.total} steps would take {span(seconds)} here{cost}"]


class Seen:
    """Collects what the verdict needs."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.utils: list[float] = []
        self.gpu = self.ram = 0.0

    def loss(self, value: float | None) -> None:
        """Take the loss of a new step."""
        if value is not None and len(self.losses) < 100_000:
            self.losses.append(value)

    def sample(self, sample: dict[str, Any]) -> None:
        """Take a measurement."""
        if sample.get("gpu_util") is not None:
            self.utils.append(sample["gpu_util"])
        self.gpu = max(self.gpu, _share(sample.get("gpu_memory"), sample.get("gpu_memory_total")))
        self.ram = max(self.ram, _share(sample.get("ram"), sample.get("ram_limit")))

    def facts(self, steps: Steps, rate: float | None, sample: dict[str, Any], **more: Any) -> Facts:
        """Put it together."""
        return Facts(
            steps=steps.done,
            rate=rate,
            total=steps.total,
            losses=self.losses,
            util=median(self.utils) if self.utils else None,
            gpu=self.gpu or None,
            gpu_total=sample.get("gpu_memory_total"),
            ram=self.ram or None,
            ram_limit=sample.get("ram_limit"),
            **more,
        )


def _share(part: Any, whole: Any) -> float:
    return part / whole if part is not None and whole else 0.0


def _steps(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of steps, as 200")
    return int(text)
