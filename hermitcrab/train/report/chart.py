"""Curves as SVG: lines over time, with their axes, for a page that needs neither a network nor a program."""

from __future__ import annotations

import math
from statistics import median
from typing import Callable, Iterator, NamedTuple, Sequence

from hermitcrab.train.report.page import text

WIDTH, HEIGHT = 640, 200
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 10, 24
MOST = 220  # buckets of a line: more than its pixels tells nothing
GAP = 6  # times the usual distance: a line is cut where nothing was measured
WIDE = 50  # largest to smallest: then the scale is logarithmic
SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)


class Line(NamedTuple):
    """One curve: its name and its points, by time."""

    name: str
    points: Sequence[tuple[float, float]]


class Mark(NamedTuple):
    """Something that happened: a vertical line with a text that shows when pointed at."""

    at: float
    text: str
    kind: str = ""


class Scale(NamedTuple):
    """Turns values of one axis into pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, value = (math.log10(x) if self.log else x for x in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def draw(
    lines: Sequence[Line],
    marks: Sequence[Mark],
    span: tuple[float, float],
    *,
    label: str,
    say: Callable[[float], str],
    zero: bool = False,
) -> str:
    """Return one chart; ``say`` writes the values of its upright axis, ``zero`` begins it there."""
    drawn = [line for line in lines if line.points]
    values = [value for line in drawn for _, value in line.points]
    if not values:
        return ""
    x = Scale(span[0], max(span[1], span[0] + 1), LEFT, WIDTH - RIGHT)
    y = _upright(values, zero=zero)
    body = [
        *_grid(x, y, say),
        *(_mark(mark, x) for mark in marks if span[0] <= mark.at <= x.high),
        *(_path(line, number, x, y) for number, line in enumerate(drawn, 1)),
    ]
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(label)}">{"".join(body)}</svg>'


def thin(points: Sequence[tuple[float, float]], most: int = MOST) -> list[tuple[float, float]]:
    """Keep the shape of a line with fewer points: of each part its lowest and its highest."""
    if len(points) <= 2 * most:
        return list(points)
    kept: list[tuple[float, float]] = [points[0]]
    size = len(points) / most
    for number in range(most):
        part = points[int(number * size) : int((number + 1) * size)]
        kept += sorted({min(part, key=_value), max(part, key=_value)})
    return [*kept, points[-1]]


def steps(low: float, high: float, count: int = 4) -> list[float]:
    """Return round values between two, about so many."""
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    size *= next(factor for factor in (1, 2, 2.5, 5, 10) if factor * size >= rough * 0.999)
    first = math.ceil(low / size - 1e-9)
    return [number * size for number in range(first, first + 12) if number * size <= high + size * 1e-9]


def elapsed(seconds: float) -> str:
    """Say a time since the start."""
    whole = round(seconds)
    days, rest = divmod(whole, 86400)
    if days:
        return f"{days} d {rest // 3600} h" if rest >= 3600 else f"{days} d"
    hours, minutes = rest // 3600, rest % 3600 // 60
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min" if minutes and not whole % 60 else f"{whole} s"


def _value(point: tuple[float, float]) -> float:
    return point[1]


def _upright(values: Sequence[float], *, zero: bool) -> Scale:
    low, high = min(values), max(values)
    bottom, top = HEIGHT - BOTTOM, TOP
    if not zero and low > 0 and high / low > WIDE:
        return Scale(low, high, bottom, top, log=True)
    low = min(0.0, low) if zero else low
    if not high - low > abs(high) * 1e-9:  # one value, or as good as one
        low, high = (0.0, high) if zero and high > 0 else (low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2)
    room = 0.0 if zero else (high - low) * 0.04
    return Scale(low - room, high + (high - low) * 0.04, bottom, top)


def _grid(x: Scale, y: Scale, say: Callable[[float], str]) -> Iterator[str]:
    for value in _decades(y) if y.log else steps(y.low, y.high):
        at = y.at(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield f'<text class="tick" x="{LEFT - 6}" y="{at + 3.5:.1f}" text-anchor="end">{text(say(value))}</text>'
    length = x.high - x.low
    size = next((size for size in SECONDS if length / size <= 6), max(SECONDS) * math.ceil(length / max(SECONDS) / 6))
    for number in range(int(length / size) + 1):
        at = x.at(x.low + number * size)
        anchor = "start" if number == 0 else "end" if at > WIDTH - RIGHT - 20 else "middle"
        said = text(elapsed(number * size))
        yield f'<text class="tick" x="{at:.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{said}</text>'


def _decades(y: Scale) -> list[float]:
    found = [10.0**power for power in range(math.floor(math.log10(y.low)), math.ceil(math.log10(y.high)) + 1)]
    inside = [value for value in found if y.low <= value <= y.high]
    return inside[:: max(1, len(inside) // 5)] or [y.low, y.high]


def _mark(mark: Mark, x: Scale) -> str:
    at = x.at(mark.at)
    return (
        f'<g class="mark {text(mark.kind)}"><title>{text(mark.text)}</title>'
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/></g>'
    )


def _path(line: Line, number: int, x: Scale, y: Scale) -> str:
    points = thin(line.points)
    distances = [after[0] - before[0] for before, after in zip(points, points[1:])]
    usual = median(distances) if distances else 0.0
    words, before = [], -math.inf
    for at, value in points:
        # A point alone would not be seen: a line of no length with round ends is a dot.
        word = "L" if at - before <= GAP * max(usual, 1e-9) else "M"
        words.append(f"{word}{x.at(at):.1f} {y.at(value):.1f}" + ("h0" if word == "M" else ""))
        before = at
    return f'<path class="s{number}" d="{"".join(words)}"/>'
