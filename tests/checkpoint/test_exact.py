"""A resumed training goes on bit for bit as if nothing had happened, from every step of three epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermitcrab.checkpoint import store
from tests.checkpoint.loop import EPOCH, Setup, Training

NEVER = 10**6  # steps between saves, where only the one to resume from is wanted
STEPS = 3 * EPOCH + 2
# The steps around the epochs' edges, and some within.
SOME = (0, 3, EPOCH - 2, EPOCH - 1, EPOCH, 2 * EPOCH - 1, 2 * EPOCH + 3)
CASES = {
    "every step": (Setup(), range(STEPS - 1)),
    "saved while waiting": (Setup(asynchronous=False), SOME),
    "for batch in loader": (Setup(direct=True), SOME),
    "2 workers": (Setup(workers=2), range(STEPS - 1)),
    "for batch in loader, 2 workers": (Setup(workers=2, direct=True), SOME),
    "accumulated across epochs": (Setup(accumulate=3), range(STEPS - 1)),
    "accumulated, for batch in loader": (Setup(accumulate=3, direct=True), SOME),
}


@pytest.mark.parametrize("name", CASES)
def test_from_every_step(tmp_path: Path, name: str) -> None:
    """Go on after a step, compare every further one with the run that was neither interrupted nor saved."""
    setup, stops = CASES[name]
    whole: dict[int, str] = {}
    Training(tmp_path / "whole", setup, every_steps=NEVER).run(STEPS, whole)
    assert len(set(whole.values())) == STEPS, "every step changes something"
    folder, saved = tmp_path / "saved", dict[int, str]()
    Training(folder, setup, every_steps=1, keep=STEPS).run(STEPS, saved)
    assert saved == whole, "saving changes nothing"
    for stop in stops:
        again: dict[int, str] = {}
        assert Training(folder, setup, every_steps=NEVER).run(STEPS, again, after=stop) == stop + 1
        assert again == {step: digest for step, digest in whole.items() if step > stop}, f"resumed after step {stop}"
    assert all(store.verify(item.path)["exact"] is True for item in store.found(folder))


@pytest.mark.parametrize("setup", [Setup(), Setup(workers=2), Setup(accumulate=3), Setup(direct=True)])
def test_resume_of_a_resume(tmp_path: Path, setup: Setup) -> None:
    """Ten starts in one run, some without a step of their own."""
    whole: dict[int, str] = {}
    Training(tmp_path / "whole", setup).run(STEPS, whole)
    pieces: dict[int, str] = {}
    for stop in (1, 1, 2, 5, EPOCH, EPOCH, EPOCH + 1, 12, 2 * EPOCH, STEPS):
        Training(tmp_path / "pieces", setup).run(stop, pieces)
    assert pieces == whole


def test_the_oracle_sees_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted faults: one generator that is not restored, and a position one batch off."""
    whole: dict[int, str] = {}
    Training(tmp_path / "whole", Setup()).run(6, whole)
    for number, fault in enumerate(("random.setstate", "torch.set_rng_state", "numpy.random.set_state")):
        Training(tmp_path / str(number), Setup()).run(3)
        again: dict[int, str] = {}
        with monkeypatch.context() as patch:
            patch.setattr(fault, lambda _: None)
            Training(tmp_path / str(number), Setup()).run(6, again)
        assert again[3] != whole[3], fault
    Training(tmp_path / "off", Setup()).run(3)
    other = Training(tmp_path / "off", Setup())
    load = other.sampler.load_state_dict

    def load_one_off(state: dict[str, Any]) -> None:
        load(state)
        other.sampler.advance()

    monkeypatch.setattr(other.sampler, "load_state_dict", load_one_off)
    again = {}
    other.run(6, again)
    assert again[3] != whole[3]


@pytest.mark.parametrize("name", ["model", "ema", "optimizer", "scheduler", "scaler"])
def test_the_oracle_sees_a_part_that_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each of them by itself."""
    whole: dict[int, str] = {}
    Training(tmp_path / "run", Setup(), keep=9).run(6, whole)
    training, again = Training(tmp_path / "run", Setup()), dict[int, str]()
    if name == "scaler" and not training.scaler.is_enabled():
        pytest.skip("this torch scales on CUDA only")
    monkeypatch.setattr(getattr(training, name), "load_state_dict", lambda _: None)
    training.run(6, again, after=2)
    assert again[3] != whole[3]
