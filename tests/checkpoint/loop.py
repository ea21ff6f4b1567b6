"""A small training that draws from every generator, and what it must come to."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np  # type: ignore[import-not-found]
import torch
from torch import nn

from hermitcrab import Checkpointer, ResumableSampler

SAMPLES: Final = 27
BATCH: Final = 4
EPOCH: Final = 7  # batches; the last one is short


class Setup(NamedTuple):
    """What of a training may differ."""

    workers: int = 0
    accumulate: int = 1
    direct: bool = False  # `for batch in loader` instead of sampler.batches(loader)
    asynchronous: bool = True


class Data(torch.utils.data.Dataset):  # type: ignore[misc] # torch is untyped where it is not installed
    """Samples that are a function of their index, without its random state."""

    by_index = True

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(6, generator=generator), torch.randn(1, generator=generator)


class Training:
    """All the parts, made anew as a started program makes them."""

    def __init__(self, folder: Path, setup: Setup, **options: Any) -> None:
        torch.manual_seed(11)
        random.seed(11)
        np.random.seed(11)
        self.setup = setup
        self.model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.ema = torch.optim.swa_utils.AveragedModel(self.model, avg_fn=lambda old, new, _: old * 0.9 + new * 0.1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.05, total_steps=200)
        self.scaler = scaler()
        self.sampler = ResumableSampler(Data(), batch_size=BATCH, seed=7)
        self.loader = torch.utils.data.DataLoader(Data(), batch_sampler=self.sampler, num_workers=setup.workers)
        named = {"model": self.model, "ema": self.ema, "optimizer": self.optimizer, "scheduler": self.scheduler}
        given = {"every_steps": 1, "rehearse": False, "asynchronous": setup.asynchronous, **options}
        self.ckpt = Checkpointer(folder, **named, scaler=self.scaler, sampler=self.sampler, **given)

    def run(self, last: int, digests: dict[int, str] | None = None, *, after: int | None = None) -> int:
        """Train up to a step; returns the first one done. Ends as a killed program does: without close()."""
        start = first = self.ckpt.resume(step=after)
        batches = self._direct() if self.setup.direct else self.sampler.batches(self.loader)
        for step in range(start, last):
            # Over the loader itself a step ends with the epoch at the latest.
            left = EPOCH - self.sampler.batch if self.setup.direct else self.setup.accumulate
            count = min(self.setup.accumulate, left)
            loss = self._step(batches, count)
            self.ckpt.step(step, loss=loss, batches=count)
            if digests is not None:
                digests[step] = self.digest()
        self.ckpt.wait()
        self.ckpt._drain()
        return int(first)

    def digest(self) -> str:
        """All that the next step depends on."""
        state = [part.state_dict() for part in (self.model, self.ema, self.optimizer, self.scheduler, self.scaler)]
        return hashlib.sha256("".join(map(str, flat(state))).encode()).hexdigest()

    def _direct(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def _step(self, batches: Iterator[Any], count: int) -> Any:
        total = torch.zeros(())
        for _ in range(count):
            inputs, targets = next(batches)
            noise = random.random() + np.random.rand() + float(torch.rand(()))
            loss = (self.model(inputs) - targets * noise).pow(2).mean()
            self.scaler.scale(loss).backward()
            total += loss.detach()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.ema.update_parameters(self.model)
        return total


def scaler() -> Any:
    """One that scales on the CPU and grows while the test runs; torch had only that of CUDA before."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    return torch.cuda.amp.GradScaler(enabled=False)


def flat(value: Any) -> Iterator[Any]:
    """Every leaf, tensors as their bytes."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from flat(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from flat(item)
    elif not callable(value):  # a function of an older scheduler, whose text holds its address
        yield value.numpy().tobytes().hex() if isinstance(value, torch.Tensor) else repr(value)
