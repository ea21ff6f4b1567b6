"""Claims: a standstill is told from a slow program, by steps alone, and what is not proven kills nothing."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable

import pytest

from hermitcrab.train.watch.finding import Finding
from hermitcrab.train.watch.patterns import SOURCES, Counter
from hermitcrab.train.watch.progress import Progress, Steps, duration, limit, span

MINUTE = 60.0


def progress(*, hang_after: float | None = None, first_step: float | None = None, hangs: int = 0) -> Progress:
    """The progress of an attempt that starts at 0."""
    return Progress(0.0, hang_after=hang_after, first_step=first_step, hangs=hangs)


def steps(watched: Progress, times: Iterable[float], *, total: float | None = None, strong: bool = True) -> None:
    """Print a counter at these times."""
    for value, now in enumerate(times):
        watched.saw(now, Counter("step", float(value), total, strong))


def first(watched: Progress, until: float, *, start: float = 0.0, every: float = 10.0) -> tuple[float, Finding] | None:
    """Look every ten seconds; return when something was said first, and what."""
    now = start
    while now <= until:
        found = watched.judge(now)
        if found:
            return now, found
        now += every
    return None


def test_ten_minutes_without_a_step_are_a_hang() -> None:
    """Steps of a second: not 599 s, but 600."""
    watched = progress()
    steps(watched, range(1, 20))
    found = first(watched, 2000, start=20)
    assert found is not None
    assert (found[0], found[1].kind, found[1].fatal) == (620, "hang", True)
    assert "no progress for 10 min since step 18; steps took 1 s" in found[1].text


def test_slow_steps_have_ten_of_theirs() -> None:
    """A step of five minutes: 50 minutes."""
    watched = progress()
    steps(watched, [300, 600, 900, 1200, 1500])
    found = first(watched, 9000, start=1500)
    assert found is not None
    assert found[0] == 1500 + 3000


def test_before_some_steps_are_known_the_first_is_the_measure() -> None:
    """A program that prints every half hour must not be killed after its first line."""
    watched = progress()
    watched.heartbeat(1800, step=0, committed=None, phase="")
    watched.heartbeat(1900, step=1, committed=None, phase="")
    assert first(watched, 1900 + 17_990, start=1900) is None
    found = first(watched, 1900 + 18_010, start=1900 + 17_990)
    assert found is not None
    assert found[1].fatal


def test_a_step_that_is_told_at_the_start_proves_nothing() -> None:
    """A program may tell where it resumes, and compile for half an hour."""
    watched = progress()
    watched.heartbeat(5, step=1000, committed=None, phase="")
    found = first(watched, 10_000, start=5)
    assert found is not None
    assert not found[1].fatal


def test_the_first_step_may_take_its_time() -> None:
    """Downloads and compilation: told once after half an hour, never ended."""
    found = first(progress(), 6000)
    assert found is not None
    assert (found[0], found[1].kind, found[1].fatal) == (1800, "slow-start", False)
    assert first(progress(first_step=MINUTE), 6000) is not None

    watched = progress()
    first(watched, 6000)
    assert first(watched, 60_000, start=6000) is None


def test_a_limit_for_the_first_step_is_kept() -> None:
    """Whoever gives one means it."""
    found = first(progress(first_step=600), 6000)
    assert found is not None
    assert (found[0], found[1].kind, found[1].fatal) == (600, "hang", True)
    assert "--first-step allows 10 min" in found[1].text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_few_lines_of_output_prove_no_steps(count: int) -> None:
    """A line as "Step 2: tokenizing", with a number beside it, is soon printed."""
    watched = progress()
    steps(watched, range(1, count + 1))
    found = first(watched, 100_000, start=10)
    assert found is not None
    assert found[1].fatal == (count >= 3)


def test_what_counts_something_else_proves_nothing() -> None:
    """After a download a silence is only told."""
    watched = progress()
    steps(watched, range(1, 100), strong=False)
    found = first(watched, 100_000, start=100)
    assert found is not None
    assert not found[1].fatal


def test_any_counter_shows_life() -> None:
    """An evaluation that counts its batches is no hang, however long it is."""
    watched = progress()
    steps(watched, range(1, 20))
    for number in range(200):
        now = 20 + 100.0 * number
        watched.saw(now, Counter("bar evaluating", float(number), 200, strong=False))
        assert watched.judge(now) is None


def test_a_counter_that_is_printed_again_shows_none() -> None:
    """Hangs while printing: the same number, by one rank or by several that stand at different steps."""
    watched = progress()
    steps(watched, range(1, 20))
    for number in range(100):
        now = 20 + 10.0 * number
        watched.saw(now, Counter("step", 18.0 - number % 2, None, strong=True))
        if watched.judge(now):
            assert now == 620
            return
    raise AssertionError("the hang was not seen")


def test_a_bar_that_begins_anew_is_progress() -> None:
    """Each epoch has its own, with the same label."""
    watched = progress()
    for epoch in range(3):
        for step in range(5):
            assert watched.saw(epoch * 10 + step, Counter("bar epoch", float(step), 4, strong=True))


def test_after_the_last_step_there_is_more_time() -> None:
    """The export or the last evaluation counts nothing: an hour, not ten minutes."""
    watched = progress()
    steps(watched, range(1, 12), total=10)
    assert watched.complete
    found = first(watched, 100_000, start=12)
    assert found is not None
    assert 3600 <= found[0] < 3700


def test_a_program_that_said_it_finished_is_left_alone() -> None:
    """It may upload for as long as it takes."""
    watched = progress()
    steps(watched, range(1, 12))
    said = [found for now in range(12, 20_000, 10) for found in (watched.judge(now, finished=True),) if found]
    assert [found.fatal for found in said] == [False]


def test_a_phase_that_is_no_step_is_waited_for() -> None:
    """Saving and evaluating, as the status file says."""
    watched = progress()
    for step in range(5):
        watched.heartbeat(float(step), step=step, committed=None, phase="")
    for now in range(10, 3000, 10):
        watched.heartbeat(float(now), step=4, committed=None, phase="evaluating")
        assert watched.judge(now) is None
    watched.heartbeat(3000, step=4, committed=None, phase="")
    found = first(watched, 20_000, start=3000)
    assert found is not None
    assert 3590 <= found[0] <= 3600


def test_a_phase_that_never_ends_is_told() -> None:
    """It is not ended, for it is the program's own word; but an hour of saving is to be known."""
    watched = progress()
    watched.heartbeat(0.0, step=1, committed=None, phase="")
    said = []
    for now in range(10, 9000, 10):
        watched.heartbeat(float(now), step=1, committed=None, phase="saving")
        said += [found for found in (watched.judge(now),) if found]
    assert [(found.kind, found.fatal) for found in said] == [("phase", False)]
    assert "saving" in said[0].text


def test_a_new_checkpoint_is_progress() -> None:
    """Also when the step is only told with it."""
    watched = progress()
    for number in range(20):
        watched.heartbeat(500.0 * number, step=5, committed=number, phase="")
        assert watched.judge(500.0 * number) is None


def test_a_hang_makes_the_next_attempt_more_patient() -> None:
    """An evaluation of a quarter of an hour must not be killed at each attempt."""
    for hangs, minutes in ((0, 10), (1, 20), (2, 40), (3, 80), (9, 80)):
        watched = progress(hangs=hangs)
        steps(watched, range(1, 20))
        assert watched.limit == minutes * MINUTE


def test_the_limit_can_be_given() -> None:
    """Or taken away."""
    watched = progress(hang_after=30)
    steps(watched, range(1, 20))
    found = first(watched, 100, start=20, every=1.0)
    assert found is not None
    assert found[0] == 49
    watched = progress(hang_after=limit("never"), hangs=2)
    steps(watched, range(1, 20))
    assert first(watched, 100_000, start=20) is None


def test_sleep_of_the_machine_is_no_standstill_of_the_training() -> None:
    """When nobody looked for hours, the training was not running either."""
    watched = progress()
    steps(watched, range(1, 20))
    assert watched.judge(20) is None
    assert watched.judge(20 + 8 * 3600) is None
    assert first(watched, 20 + 8 * 3600 + 500, start=20 + 8 * 3600) is None
    found = first(watched, 20 + 8 * 3600 + 1000, start=20 + 8 * 3600 + 500)
    assert found is not None
    assert found[1].fatal


def test_labels_without_end_are_not_kept() -> None:
    """A program that prints a new label each time must not fill the memory."""
    watched = progress()
    for number in range(1000):
        watched.saw(float(number), Counter(f"bar {number}", 1.0, None, strong=False))
    assert len(watched._highest) <= 65


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("10", 600), ("1.5h", 5400), ("2d", 172_800), ("5min", 300)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    """As one says them."""
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5m", "x", "1e99", "nan", "5 years", "9" * 40])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """By the parser, with what is valid."""
    with pytest.raises(argparse.ArgumentTypeError, match="is no duration"):
        duration(text)


def test_spans_are_said_for_people() -> None:
    """No more digits than one wants to read."""
    assert [span(s) for s in (0.25, 1, 45.4, 150, 7300)] == ["0.25 s", "1 s", "45 s", "2 min", "2 h 02 min"]


def test_the_rate_is_that_of_the_last_minute() -> None:
    """Compilation long ago does not count, and a standstill is zero soon."""
    watched = Steps()
    watched.see(0, 0, 100, "status", SOURCES)
    for number in range(1, 21):
        watched.see(1000.0 + number, 2 * number, 100, "status", SOURCES)
    assert watched.rate(1020) == pytest.approx(2.0, rel=0.01)
    rate = watched.rate(10_000)
    assert rate is not None
    assert rate < 0.01
    assert (watched.step, watched.total, watched.done) == (40, 100, 40)


def test_steps_of_the_best_source_are_believed() -> None:
    """The status file before the output, a named step before a bar."""
    watched = Steps()
    watched.see(0, 3, 50, "bar", SOURCES)
    watched.see(1, 1000, None, "step", SOURCES)
    watched.see(2, 4, 50, "bar", SOURCES)
    assert watched.step == 1000
    watched.see(3, 1003, 2000, "status", SOURCES)
    watched.see(4, 7, None, "step", SOURCES)
    assert (watched.step, watched.total, watched.done) == (1003, 2000, 0)


def test_done_steps_are_counted_over_epochs() -> None:
    """A bar that begins anew goes on counting."""
    watched = Steps()
    for now, step in enumerate([0, 5, 10, 0, 5, 10]):
        watched.see(float(now), step, 10, "bar", SOURCES)
    assert watched.done == 20
    assert watched.rate(math.pi) is not None
