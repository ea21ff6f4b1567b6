"""The minutes before a power-off, in which a person or a running copy can stop it."""

from __future__ import annotations

import argparse
import re
import time
from typing import Callable, Sequence

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
POLL = 2.0


def parse(text: str) -> float:
    """Return seconds: ``90``, ``90s``, ``5m``, ``1.5h``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*(s|m|min|h|d)?", text.strip())
    if not found or float(found[1]) * UNITS[found[2] or ""] > 366 * 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: a number with s, m, h or d, as 5m")
    return float(found[1]) * UNITS[found[2] or ""]


def say(seconds: float) -> str:
    """Say a time in the unit that fits."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size * 2 or (seconds >= size and seconds % size == 0):
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def run(
    seconds: float,
    holders: Callable[[], Sequence[str]],
    tell: Callable[[str], None],
    *,
    given_up: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Count down; whoever holds stops the count, and it begins anew when nobody does. False when it was given up."""
    left, before, held = seconds, clock(), ""
    while not given_up():
        reasons = "; ".join(holders())
        now = clock()
        if reasons:
            left = seconds
        else:
            left -= 0.0 if held else now - before
        if reasons != held:
            tell(f"waits: {reasons}" if reasons else f"nothing holds it any more: {say(seconds)} from now")
        before, held = now, reasons
        if left <= 0:
            return True
        sleep(min(POLL, left) if not reasons else POLL)
    return False
