"""What a run's folder tells, in order: its state, its events and its samples, read without any faith."""

from __future__ import annotations

import math
import shlex
import time
from calendar import timegm
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple

from hermitcrab.box import files
from hermitcrab.box.mask import mask, mask_words
from hermitcrab.train.journal import lines
from hermitcrab.train.places import Run

KNOWN = {"time", "kind"}
SAID = ("what", "text", "reason", "evidence")
Words = Mapping[str, str]


class Story(NamedTuple):
    """All that is known of a run; events and samples with their time in seconds."""

    state: dict[str, Any]
    events: list[tuple[float, dict[str, Any]]]
    samples: list[tuple[float, dict[str, Any]]]

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last moment that is known."""
        times = [at for at, _ in (*self.events, *self.samples)]
        return (min(times), max(times)) if times else (0.0, 0.0)

    def points(self, field: str) -> list[tuple[float, float]]:
        """Return what was measured of one field."""
        found = ((at, number(sample.get(field))) for at, sample in self.samples)
        return [(at, value) for at, value in found if value is not None]


def read(run: Run) -> Story:
    """Read a run's folder; what is broken in it is left out."""
    return Story(files.read_json(run.state), _timed(run.events), _timed(run.samples))


def folded(story: Story, words: Words) -> Iterator[tuple[float, str, str]]:
    """Yield time, kind and text of each event; checkpoints in a row are one."""
    row = 0
    for place, (at, event) in enumerate(story.events):
        kind = str(event.get("kind") or "")
        row = row + 1 if kind == "checkpoint" else 0
        after = story.events[place + 1][1].get("kind") if place + 1 < len(story.events) else ""
        if kind != "checkpoint" or after != "checkpoint":
            yield at, kind, (words["folded"].format(row) + " " if row > 1 else "") + tell(event, words)


def tell(event: Mapping[str, Any], words: Words) -> str:
    """Say an event; fields that are not known here are shown as they are."""
    rest = {name: value for name, value in event.items() if name not in KNOWN and value not in (None, "", [])}
    if event.get("kind") == "attempt" and isinstance(rest.get("argv"), list):
        start = rest.get("resume", "auto")
        said = f"{rest.get('number', '')}: {shlex.join(mask_words([str(word) for word in rest['argv']]))}"
        return said + (f"\n{words['from']} {start}" if start not in ("auto", "none") else "")
    said_lines = [str(rest.pop(name)) for name in SAID if name in rest]
    tips = rest.pop("advice", [])
    said_lines += [f"→ {tip}" for tip in (tips if isinstance(tips, list) else [tips])]
    more = ", ".join(f"{name} {_short(value)}" for name, value in sorted(rest.items(), key=_step_first))
    return mask("\n".join([*said_lines, *([more] if more else [])]))


def number(value: Any) -> float | None:
    """Return a number that can be drawn."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) and abs(value) < 1e200 else None
    except OverflowError:
        return None


def _step_first(pair: tuple[str, Any]) -> tuple[bool, str]:
    return pair[0] != "step", pair[0]


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _timed(path: Path) -> list[tuple[float, dict[str, Any]]]:
    """Return lines with their time, in order; one without a time has no place."""
    found = ((_seconds(line.get("time")), line) for line in lines(path))
    return sorted(((at, line) for at, line in found if at is not None), key=lambda pair: pair[0])


def _seconds(text: Any) -> float | None:
    try:
        whole, _, part = str(text).rstrip("Z").partition(".")
        return timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float(f"0.{part or 0}")
    except ValueError:
        return None
