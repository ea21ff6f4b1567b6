"""Claims: a short run ends after its steps and says whether loading, loss and memory are in order."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from hermitcrab.status import Status
from hermitcrab.train import watch
from hermitcrab.train.places import Run
from hermitcrab.train.watch import Watch, smoke
from hermitcrab.train.watch.finding import Finding
from hermitcrab.train.watch.smoke import Facts, verdict

GOOD = Facts(
    steps=200,
    rate=4.0,
    first=12.0,
    total=10_000,
    losses=[3.0 - number / 100 for number in range(200)],
    util=95.0,
    gpu=0.8,
    gpu_total=24 << 30,
    ram=0.3,
    ram_limit=64 << 30,
    price=4.5,
    currency="CNY",
)


def test_a_good_run_is_said_to_be_one() -> None:
    """With what all steps would take and cost here."""
    text = verdict(GOOD, 200).text
    assert text.splitlines()[0] == "smoke: in order after 200 steps"
    assert "BAD" not in text
    assert "4 steps/s; the first after 12 s" in text
    assert "all 10000 steps would take 42 min here, 3.12 CNY" in text
    assert "at most 80 % of 24.0 GiB" in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": 50}, "BAD   steps: 50 of 200"),
        ({"steps": 0}, "BAD   steps: none was seen"),
        ({"losses": [2.3] * 200}, "BAD   loss: 2.3 and never another"),
        ({"losses": [float(n + 1) for n in range(200)]}, "it grows"),
        ({"losses": []}, "?     loss: none was seen"),
        ({"losses": [2.0, 1.0]}, "too few to judge"),
        ({"util": 30.0, "cause": "the data loader: more workers"}, "slow  loading: the GPU works 30 %"),
        ({"util": None}, "?     loading"),
        ({"gpu": 0.97}, "tight GPU memory"),
        ({"gpu": 0.2}, "a larger batch may be faster"),
        ({"ram": 0.97}, "tight memory"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, object], said: str) -> None:
    """Each in its own line."""
    found = verdict(GOOD._replace(**change), 200)  # type: ignore[arg-type]
    assert said in found.text
    assert ("not in order" in found.text) == ("BAD" in said or "grows" in said)


def run(folder: Path, output: Sequence[str], *options: str) -> tuple[Finding | None, Watch]:
    """Print a line each second to a watch with the options."""
    parser = argparse.ArgumentParser()
    watch.add_options(parser)
    now = [0.0]
    watched = Watch(parser.parse_args(options), Run(folder), environ={}, root=folder, clock=lambda: now[0])
    watched.begin(1, os.getpid())
    for line in output:
        now[0] += 1
        watched.line(line)
        for finding in watched.tick(Status(), now[0]):
            if finding.fatal:
                return finding, watched
    return None, watched


def test_it_ends_after_its_steps(tmp_path: Path) -> None:
    """Counted from the first that was seen, so that a resumed run does as many."""
    lines = [f"step {number}/9000 loss {3 - number / 1000:.3f}" for number in range(500, 900)]
    found, _ = run(tmp_path, lines, "--smoke", "200", "--price", "3.6/h")
    assert found is not None
    assert (found.kind, found.fatal) == ("smoke-done", True)
    assert "200 of 200, 1 steps/s" in found.text
    assert "all 9000 steps would take 2 h 30 min here, 9.00" in found.text


def test_a_program_that_ends_before_has_its_verdict_too(tmp_path: Path) -> None:
    """Which is a bad one: the steps were not done."""
    found, watched = run(tmp_path, [f"step {number} loss 1.0" for number in range(20)], "--smoke", "200")
    assert found is None
    ended = watched.verdict()
    assert ended is not None
    assert ended.text.startswith("smoke: not in order after 19 steps")


def test_without_the_option_there_is_no_verdict(tmp_path: Path) -> None:
    """The run goes on."""
    found, watched = run(tmp_path, [f"step {number} loss {3 - number / 1000}" for number in range(400)])
    assert (found, watched.verdict()) == (None, None)


@pytest.mark.parametrize("text", ["0", "-5", "x", "", "1e3", "9" * 12])
def test_what_is_no_number_of_steps_is_refused(text: str) -> None:
    """By the parser."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    smoke.add_options(parser)
    with pytest.raises(argparse.ArgumentError, match="is no number of steps"):
        parser.parse_args([f"--smoke={text}"])
