"""Claims: a curve keeps its shape, its axes have round numbers, and no values break it."""

from __future__ import annotations

import re

import pytest

from hermitcrab.train.report import chart
from hermitcrab.train.report.chart import Line, Mark, draw, elapsed, steps, thin


def show(points: list[tuple[float, float]], marks: list[Mark] | None = None, *, zero: bool = False) -> str:
    """Draw one line."""
    span = (points[0][0], points[-1][0]) if points else (0.0, 0.0)
    return draw([Line("x", points)], marks or [], span, label="x", say=lambda value: f"{value:g}", zero=zero)


def ticks(svg: str) -> list[str]:
    """The texts of the upright axis."""
    return re.findall(r'text-anchor="end">([^<]*)<', svg)


def test_a_spike_survives_the_thinning() -> None:
    """The one sample in a hundred thousand that tells why."""
    points = [(float(n), 1.0) for n in range(100_000)]
    points[54_321] = (54_321.0, 99.0)
    kept = thin(points)
    assert (54_321.0, 99.0) in kept
    assert len(kept) < 3 * chart.MOST
    assert kept == sorted(kept)
    assert (kept[0], kept[-1]) == (points[0], points[-1])


def test_few_points_are_all_kept() -> None:
    """Nothing is thinned for its own sake."""
    points = [(float(n), float(n % 3)) for n in range(50)]
    assert thin(points) == points


@pytest.mark.parametrize(
    ("low", "high", "found"), [(0, 100, [0, 25, 50, 75, 100]), (0, 1, [0, 0.25, 0.5, 0.75, 1]), (2, 9, [2, 4, 6, 8])]
)
def test_axes_have_round_numbers(low: float, high: float, found: list[float]) -> None:
    """Which a person can read."""
    assert steps(low, high) == pytest.approx(found)


def test_a_loss_that_falls_far_is_drawn_by_powers() -> None:
    """Else its end is a flat line."""
    assert ticks(show([(0, 1000.0), (1, 10.0), (2, 0.5)]))[:4] == ["1", "10", "100", "1000"]
    assert "1000" not in ticks(show([(0, 10.0), (1, 9.0)]))


def test_a_line_is_cut_where_nothing_was_measured() -> None:
    """A restart is no straight line."""
    points = [(float(n), 1.0) for n in [*range(100), *range(1000, 1100)]]
    assert show(points).count("M") == 2


@pytest.mark.parametrize(
    "points",
    [
        [(0.0, 0.0)],
        [(0.0, 5.0), (0.0, 5.0)],
        [(0.0, -3.0), (1.0, -3.0)],
        [(0.0, 1e-300), (1.0, 1e150)],
        [(0.0, 1e150), (1.0, -1e150)],
        [(0.0, 1.0), (1.0, 1.0 + 1e-15)],
        [(1.7e9, 5e-324), (1.7e9 + 1e9, 1.0)],
        [(0.0, 0.0), (1e-9, 1.0)],
    ],
)
@pytest.mark.parametrize("zero", [True, False])
def test_no_values_break_a_chart(points: list[tuple[float, float]], *, zero: bool) -> None:
    """One point, one value, huge ones and tiny ones: all coordinates lie inside."""
    svg = show(points, zero=zero)
    assert "nan" not in svg
    assert "inf" not in svg
    for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", svg):
        assert 0 <= float(x) <= chart.WIDTH
        assert 0 <= float(y) <= chart.HEIGHT
    assert len(svg) < 10_000


def test_nothing_measured_is_no_chart() -> None:
    """Rather than empty axes."""
    assert show([]) == ""


def test_marks_outside_are_left_out_and_texts_are_escaped() -> None:
    """A mark's text shows when pointed at."""
    svg = show([(0.0, 1.0), (10.0, 2.0)], [Mark(5, "<b>&", 'a"b'), Mark(50, "late")])
    assert "<title>&lt;b&gt;&amp;</title>" in svg
    assert 'class="mark a&quot;b"' in svg
    assert "late" not in svg


def test_times_are_said_for_people() -> None:
    """In at most two words."""
    said = [elapsed(seconds) for seconds in (0, 45, 60, 3600, 5400, 86_400, 93_600)]
    assert said == ["0 s", "45 s", "1 min", "1 h", "1 h 30 min", "1 d", "1 d 2 h"]
