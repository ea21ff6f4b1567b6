"""The cards' health while they work: errors, heat, and a card that is gone."""

from __future__ import annotations

from typing import Iterator

from hermitcrab.box.check.devices import THROTTLES
from hermitcrab.train.watch.finding import Finding
from hermitcrab.train.watch.gpu import XIDS, Gpu
from hermitcrab.train.watch.progress import Progress, span

STILL = 60.0  # without any step after a card was lost

GONE = (
    "only a reboot or another machine brings a card back",
    "what is on the disk is safe: the same command goes on from there",
)
HEAT = ("the machine's cooling or power is short: measure again, or take another",)
DAMAGE = ("results since then may be wrong: go back to a checkpoint before, on another machine",)


class Health:
    """Tells each trouble once in a run."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._told: set[str] = set()
        self._ecc: dict[int, int] = {}
        self._trouble_at: float | None = None

    def judge(self, now: float, progress: Progress) -> Iterator[Finding]:
        """Say whether a card was lost; that ends a run only once its steps stand still: it may use another card."""
        lost = self._gpu.lost()
        silent = not lost and self._gpu.silent(now)
        if not lost and not silent:
            self._trouble_at = None
            return
        self._trouble_at = now if self._trouble_at is None else self._trouble_at
        text = lost or f"the driver has not answered for {span(self._gpu.waited(now))}"
        # Silence alone is no proof: a busy driver may be slow, and a long step is no standstill.
        enough = progress.limit if silent else STILL
        if min(now - self._trouble_at, progress.quiet(now)) >= enough:
            yield Finding("gpu-lost", fatal=True, text=f"{text}; no step since", advice=GONE)
        else:
            yield from self._once("trouble", Finding("gpu-trouble", fatal=False, text=text, advice=GONE))

    def news(self) -> Iterator[Finding]:
        """Tell what the newest answer brought."""
        for number, xid in self._gpu.xids:
            text = f"GPU {number}: Xid {xid}, {XIDS.get(xid, 'most often a fault of the program: see the log')}"
            yield from self._once(f"xid {number} {xid}", Finding("xid", fatal=False, text=text))
        for card in self._gpu.cards:
            reasons = ", ".join(text for bit, text in THROTTLES.items() if (card.throttle or 0) & bit)
            if reasons:
                heat = "" if card.temperature is None else f", {card.temperature} °C"
                text = f"GPU {card.number} is slowed down: {reasons}{heat}"
                yield from self._once(f"heat {card.number}", Finding("throttled", fatal=False, text=text, advice=HEAT))
            new = (card.ecc or 0) - self._ecc.get(card.number, card.ecc or 0)
            if card.ecc is not None:
                self._ecc[card.number] = card.ecc
            if new > 0:
                text = f"GPU {card.number}: {new} new uncorrected memory errors"
                yield Finding("ecc", fatal=False, text=text, advice=DAMAGE)

    def _once(self, key: str, finding: Finding) -> Iterator[Finding]:
        if key not in self._told:
            self._told.add(key)
            yield finding
