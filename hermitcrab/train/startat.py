"""``--start-at 23:00``: wait for the cheap hours."""

from __future__ import annotations

import argparse
import re
import time

TIME = re.compile(r"(?:(\d{4})-(\d\d)-(\d\d)[T ])?(\d{1,2}):(\d\d)")
FORMAT = "HH:MM, or 2026-01-31T23:00, by the clock of this box"


def parse(text: str) -> tuple[int, ...]:
    """Read a time of the day, or one of a day; for argparse."""
    found = TIME.fullmatch(text.strip())
    words = tuple(int(word) for word in found.groups() if word) if found else ()
    try:
        time.strptime("{:02}:{:02}".format(*words[-2:]), "%H:%M")
        if len(words) == 5:
            time.strptime("{}-{:02}-{:02}".format(*words[:3]), "%Y-%m-%d")
    except (ValueError, IndexError):
        raise argparse.ArgumentTypeError(f"{text!r} is no time: {FORMAT}") from None
    return words


def next_time(words: tuple[int, ...], now: float) -> float:
    """Return the next moment that a clock on the wall shows this; one that is past is now."""
    today = time.localtime(now)
    hour, minute = words[-2:]
    day = words[:3] if len(words) == 5 else (today.tm_year, today.tm_mon, today.tm_mday)
    moment = _at(day, 0, hour, minute)
    if len(words) == 2 and moment <= now:
        moment = _at(day, 1, hour, minute)
    return max(moment, now)


def _at(day: tuple[int, ...], later: int, hour: int, minute: int) -> float:
    # mktime puts day 32 and the hour that summer time skips where they belong.
    return time.mktime((day[0], day[1], day[2] + later, hour, minute, 0, 0, 0, -1))
