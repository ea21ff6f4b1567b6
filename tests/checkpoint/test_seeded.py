"""Random augmentation that a resume repeats, what is said where it cannot be, and phases that draw nothing."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np  # type: ignore[import-not-found]
import pytest
import torch
from torch import nn

from hermitcrab import Checkpointer, ResumableSampler
from hermitcrab.checkpoint import store
from hermitcrab.checkpoint.seeded import Place, SeededData


class Noise(torch.utils.data.Dataset):  # type: ignore[misc] # torch is untyped where it is not installed
    """Samples that draw from every generator."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, random.random(), np.random.rand(), float(torch.rand(()))], dtype=torch.float64)


def epochs(data: Any, workers: int, start: int = 0, **options: Any) -> list[Any]:
    """The batches of two epochs from a position on."""
    sampler = ResumableSampler(data, batch_size=3, seed=1)
    sampler.advance(start)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler, num_workers=workers, **options)
    batches = sampler.batches(loader)
    return [next(batches) for _ in range(2 * len(sampler) - start)]


def test_the_same_wherever_it_is_made() -> None:
    """In this process, in workers, in workers that stay, from any position; another epoch draws other numbers."""
    data = SeededData(Noise(), seed=3)
    whole = epochs(data, 0)
    for again in (epochs(data, 2), epochs(data, 1, persistent_workers=True), epochs(data, 2, start=5)):
        assert all(torch.equal(one, other) for one, other in zip(whole[-len(again) :], again, strict=True))
    rows = torch.cat(whole)
    assert len(rows[:, 1:].unique()) == rows[:, 1:].numel(), "every sample of every epoch draws its own"
    other = torch.cat(epochs(SeededData(Noise(), seed=4), 0))
    assert not torch.equal(rows[:, 1:], other[:, 1:])


def test_the_generators_stay_as_they_were() -> None:
    """Whoever asks for a sample in the training's process loses no number by it."""
    before = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()
    data = SeededData(Noise())
    assert torch.equal(data[Place(3, 1)], data[Place(3, 1)]) and not torch.equal(data[Place(3, 1)], data[Place(3, 2)])
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    assert np.random.get_state()[1].tolist() == before[2]


@pytest.mark.parametrize(
    ("data", "workers", "exact"), [(Noise(), 0, True), (Noise(), 2, False), (SeededData(Noise()), 2, True)]
)
def test_workers_that_draw_are_told(
    folder: Path, capsys: pytest.CaptureFixture[str], data: Any, workers: int, exact: bool
) -> None:
    """In mid-epoch only; in the manifest each time, in the log once."""
    sampler = ResumableSampler(data, batch_size=2)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler, num_workers=workers)
    ckpt = Checkpointer(folder, model=nn.Linear(1, 1), sampler=sampler, every_steps=1, keep=20, rehearse=False)
    batches = sampler.batches(loader)
    for step in range(ckpt.resume(), len(sampler)):
        next(batches)
        ckpt.step(step)
    ckpt.close()
    manifests = {item.step: store.verify(item.path) for item in store.found(folder)}
    assert manifests[2]["exact"] is exact, manifests[2]["inexact"]
    assert manifests[len(sampler) - 1]["exact"] is True, "at an epoch's edge the workers begin anew in any case"
    assert capsys.readouterr().err.count("what the loader's workers draw at random begins anew") == (not exact)


def test_a_phase_draws_nothing(folder: Path) -> None:
    """An evaluation after the save, which a resumed run does not come by, changes nothing; nor a save within it."""
    model = nn.Linear(1, 1)
    ckpt = Checkpointer(folder, model=model, every_steps=1000, rehearse=False)
    ckpt.resume()
    ckpt.step(0)
    then = torch.get_rng_state(), random.getstate()
    with ckpt.phase("evaluating"):
        torch.rand(5)
        with ckpt.phase("sampling"):
            random.random()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert ckpt.saved is None
        ckpt.poll()
        assert ckpt.saved == 0
    assert torch.equal(torch.get_rng_state(), then[0]) and random.getstate() == then[1]
    torch.rand(5)
    Checkpointer(folder, model=model).resume()
    assert torch.equal(torch.get_rng_state(), then[0]) and random.getstate() == then[1]
    with ckpt.phase("warming up"):
        torch.rand(1)
        ckpt.step(1)
        now = torch.get_rng_state()
    assert torch.equal(torch.get_rng_state(), now), "a phase with steps in it keeps what they drew"
    ckpt.close()


def test_sigterm_before_the_first_step(folder: Path) -> None:
    """In the preparations: nothing is saved, since a resume would skip them; the program ends."""
    ckpt = Checkpointer(folder, model=nn.Linear(1, 1))
    ckpt.resume()
    ckpt.poll()
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit, match="143"):
        ckpt.poll()
    assert store.found(folder) == []
