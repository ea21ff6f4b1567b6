"""Claims: a card that waits is told of with the likeliest cause, at most once an hour, and nothing is ended for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hermitcrab.train.watch import idle
from hermitcrab.train.watch.finding import Finding
from hermitcrab.train.watch.idle import CAUSES, UNKNOWN, Facts, Idle, cause_of
from hermitcrab.train.watch.usage import Cpu

# What is known, and a word of the cause that is told.
ROWS = [
    (Facts(3, 8, received=20e6, stepping=False), "20 MB/s come in: it waits for a download"),
    (Facts(3, 8, stepping=False), "it loads, downloads or compiles"),
    (Facts(40, 4, tree=3.9, throttled=0.4), "CPU quota (4 CPUs) stops it 40 %"),
    (Facts(40, 4, tree=3.9, throttled=0.0), "the data loader: 3.9 of 4 CPUs are busy"),
    (Facts(20, 16, tree=1.0, busiest=0.3, waiting=0.6), "the disk: 60 %"),
    (Facts(40, 16, tree=1.0, busiest=0.99), "bound by one CPU, while 15 more are free"),
    (Facts(40, 16, tree=3.0, busiest=0.5, memory=0.2), "small batches: 20 %"),
    (Facts(40, 16, tree=3.0, busiest=0.5, memory=0.9), "not to be seen"),
    (Facts(40, None), "not to be seen"),
    (Facts(40, 16, received=20e6), "not to be seen"),  # it streams its data, which is no wrong
]


@pytest.mark.parametrize(("facts", "said"), ROWS)
def test_the_likeliest_cause_is_told(facts: Facts, said: str) -> None:
    """The surest of those that hold."""
    cause = cause_of(facts)
    assert said in cause.text(facts)
    assert cause.advice


def test_each_cause_has_a_row() -> None:
    """One that is never told is none."""
    assert {id(cause_of(facts)) for facts, _ in ROWS} == {id(cause) for cause in (*CAUSES, UNKNOWN)}


def watch(utils: Sequence[float | None], *, every: float = 10.0, stepping: bool = True) -> list[tuple[float, Finding]]:
    """Give utilisation as it was measured; return what was told and when."""
    watched, told = Idle(4.0), []
    for number, util in enumerate(utils):
        now = every * number
        watched.see(now, util, Cpu(now, 3.9 * now, 1.0 * now, 0.0, 0.0, 0.0))
        found = watched.judge(now, stepping=stepping, memory=0.9)
        told += [(now, found)] if found else []
    return told


def test_low_utilisation_is_told_after_some_minutes() -> None:
    """With the median, its window and the cause; again after an hour."""
    told = watch([30.0] * 800)
    assert [now for now, _ in told] == [300, 3900, 7500]
    finding = told[0][1]
    assert (finding.kind, finding.fatal) == ("low-utilisation", False)
    assert "the GPU works 30 % of the time (median of 5 min): the data loader: 3.9 of 4 CPUs" in finding.text


def test_good_utilisation_is_not() -> None:
    """Also with many idle moments: the median counts, and a save or an evaluation is none."""
    assert watch([97.0] * 360) == []
    assert watch([97.0, 0.0, 97.0] * 120) == []
    assert watch([None] * 360) == []
    assert watch([0.0] * 20) == []


def test_the_window_forgets() -> None:
    """A slow start is over when it is over."""
    assert len(watch([0.0] * 40 + [97.0] * 1000)) == 1


def test_counters_that_go_back_are_no_rates() -> None:
    """A new attempt begins at zero."""
    watched = Idle(4.0)
    watched.see(0, 10.0, Cpu(0, 100.0, 100.0, 5.0, None, None))
    watched.see(400, 10.0, Cpu(400, 1.0, 1.0, 5.0, None, None))
    facts = watched.facts(stepping=True, memory=None)
    assert (facts.tree, facts.throttled, facts.received) == (None, 0.0, None)


def test_the_threshold_is_seventy() -> None:
    """As the document says."""
    assert idle.LOW == 70.0
    assert watch([69.0] * 100)
    assert not watch([70.0] * 100)
