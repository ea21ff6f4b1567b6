"""What a run costs: the price of the box times the time that it was up for this run."""

from __future__ import annotations

import argparse
import math
import re

PRICE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(?:/\s*(min|minute|h|hour|d|day|month))?")
HOURS = {"min": 1 / 60, "minute": 1 / 60, "h": 1.0, "hour": 1.0, "d": 24.0, "day": 24.0, "month": 730.0}
CURRENCY = re.compile(r"[^\W\d_]{1,8}|[$€£¥]")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what the box costs."""
    parser.add_argument("--price", type=parse, metavar="4.5/h", help="what the box costs: per h, min, d or month")
    parser.add_argument("--currency", type=_currency, default="", metavar="CNY", help="of the price")


def parse(text: str) -> float:
    """Return a price per hour; ``4.5`` is per hour already."""
    found = PRICE.fullmatch(text.strip())
    price = float(found[1]) / HOURS[found[2] or "h"] if found else math.nan
    if not 0 <= price < 1e6:  # also nan
        raise argparse.ArgumentTypeError(f"{text!r} is no price: a number per h, min, d or month, as 4.5/h")
    return price


def money(amount: float, currency: str) -> str:
    """Say an amount: ``12.34 CNY``."""
    return f"{amount:.2f} {currency}".rstrip()


class Meter:
    """Counts what was spent; monotonic, and on from what an earlier supervisor of the run had spent."""

    def __init__(self, price: float | None, currency: str, now: float, before: object = None) -> None:
        self.price, self.currency = price, currency
        self._start = now
        known = isinstance(before, (int, float)) and not isinstance(before, bool) and math.isfinite(before)
        self._before = float(before) if known else 0.0  # type: ignore[arg-type]

    def spent(self, now: float) -> float | None:
        """Return what was spent until now; None without a price."""
        return None if self.price is None else self._before + self.price * max(0.0, now - self._start) / 3600


def _currency(text: str) -> str:
    if text and not CURRENCY.fullmatch(text):  # argparse gives the default, too
        raise argparse.ArgumentTypeError(f"{text!r} is no currency: a word such as CNY, USD or EUR")
    return text
