"""The small pieces: order of samples, pace, revision."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest

from hermitcrab import ResumableSampler
from hermitcrab.checkpoint import record
from hermitcrab.checkpoint.pace import Clock, Pace
from hermitcrab.errors import UserError


def take(sampler: ResumableSampler, count: int) -> list[list[int]]:
    """Batches as a trainer takes them, the sampler standing in for its loader."""
    return list(itertools.islice(sampler.batches(sampler), count))


def test_each_epoch_holds_each_sample_once() -> None:
    """In another order each time, which seed and epoch alone decide."""
    sampler = ResumableSampler(10, batch_size=4, seed=1)
    batches = take(sampler, 6)
    epochs = [sum(batches[:3], []), sum(batches[3:], [])]  # noqa: RUF017 - tiny
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 2 and epochs[0] != epochs[1]
    assert take(ResumableSampler(10, batch_size=4, seed=1), 6) == batches
    assert take(ResumableSampler(10, batch_size=4, seed=2), 6) != batches
    assert [len(batch) for batch in batches[:3]] == [4, 4, 2]
    assert [len(batch) for batch in take(ResumableSampler(10, batch_size=4, drop_last=True), 4)] == [4] * 4
    assert take(ResumableSampler(5, batch_size=2, shuffle=False), 3) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("position", range(9))
def test_from_any_position(position: int) -> None:
    """At once, without walking there."""
    whole = take(ResumableSampler(10, batch_size=4, seed=3), 9)
    first = ResumableSampler(10, batch_size=4, seed=3)
    take(first, position)
    second = ResumableSampler(10, batch_size=4, seed=99)  # the checkpoint's seed holds
    assert second.load_state_dict(first.state_dict()) == []
    assert take(second, 9 - position) == whole[position:]


def test_ranks_share_an_epoch() -> None:
    """All take as many batches; together they hold each sample; the position is that of all."""
    ranks = [ResumableSampler(10, batch_size=2, rank=rank, world=2, seed=1) for rank in range(2)]
    batches = [take(sampler, 3) for sampler in ranks]
    seen = sorted(index for of_rank in batches for batch in of_rank for index in batch)
    assert set(seen) == set(range(10)) and [len(of_rank) for of_rank in batches] == [3, 3]
    take(ranks[0], 1)
    alone = ResumableSampler(10, batch_size=4)
    assert alone.load_state_dict(ranks[0].state_dict()) == []
    assert (alone.epoch, alone.samples) == (1, 4)
    other = ResumableSampler(10, batch_size=3)
    (said,) = other.load_state_dict(ranks[0].state_dict())
    assert said.startswith("1 samples of this epoch are trained on again")


def test_a_sampler_without_a_batch_is_refused() -> None:
    """Else an endless loop would come of it."""
    for given in ({"data": 0}, {"data": 3, "batch_size": 4, "drop_last": True}, {"data": 4, "rank": 2, "world": 2}):
        with pytest.raises(UserError, match="no batch"):
            ResumableSampler(**given)


class Time:
    """A clock that one sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("pace", "cost", "due"),
    [
        (Pace(), 3.5, [100.0, 200.0, 300.0]),
        (Pace(overhead=0.1), 3.5, [40.0, 80.0, 120.0, 160.0, 200.0, 240.0, 280.0]),
        (Pace(), 0.0, [10.0 * count for count in range(1, 31)]),  # never more often than every 10 s
        (Pace(every_minutes=2), 9.0, [120.0, 240.0]),
        (Pace(every_steps=12), 9.0, [110.0, 230.0]),
        (Pace(every_steps=12, every_minutes=1), 9.0, [60.0, 110.0, 170.0, 230.0, 290.0]),
    ],
)
def test_pace(pace: Pace, cost: float, due: list[float]) -> None:
    """A step takes 10 s, a save its cost; the moments at which one begins."""
    time = Time()
    clock = Clock(pace, time)
    begun = []
    for step in range(31):
        time.now = 10.0 * step
        if clock.is_due(step):
            begun.append(time.now)
            clock.begun()
        clock.ended(cost)
    assert begun == due


def test_the_default_pace_keeps_to_its_share() -> None:
    """Whatever a save costs: at most 3.5 % of the time."""
    for cost in (0.5, 3.0, 60.0, 600.0):
        clock = Clock(Pace(), Time())
        clock.ended(cost)
        assert clock.interval and cost / clock.interval <= 0.0351


def test_revision(tmp_path: Path) -> None:
    """The commit, and whether the code is still that; none without Git."""
    assert record.revision(tmp_path) == {}
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    (tmp_path / "a.py").write_text("1\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    assert record.revision(tmp_path)["dirty"] is False
    (tmp_path / "a.py").write_text("2\n")
    assert record.revision(tmp_path)["dirty"] is True
