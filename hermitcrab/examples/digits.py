"""Handwritten digits, trained the way a long training should be written: copy this file.

::

    python -m hermitcrab.examples.digits
    crab train -- python -m hermitcrab.examples.digits --steps 2000
    torchrun --nproc-per-node 2 -m hermitcrab.examples.digits
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hermitcrab import Checkpointer, ResumableSampler
from hermitcrab.checkpoint.seeded import SeededData
from hermitcrab.examples import common

SHIPPED = Path(__file__).with_name("digits.json")  # who made them, under which licence: see there
SIDE, HELD_BACK = 8, 5  # every fifth image is for the test


class Shifted(torch.utils.data.Dataset):  # type: ignore[misc] # torch is untyped where it is not installed
    """Images, each moved by a random pixel: what SeededData makes repeatable in any number of workers."""

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        down, right = torch.randint(-1, 2, (2,)).tolist()
        return torch.roll(self.images[index], (down, right), (0, 1)), self.labels[index]


class Net(nn.Module):  # type: ignore[misc] # as above
    """Small, with dropout, so that the random state matters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(SIDE * SIDE, 128), nn.GELU(), nn.Dropout(0.2), nn.Linear(128, 10)
        )

    def forward(self, images: Any) -> Any:
        """Ten numbers per image."""
        return self.layers(images)


def images() -> tuple[Any, Any]:
    """All images, between 0 and 1, and what they show."""
    told = json.loads(SHIPPED.read_text())
    pixels = torch.frombuffer(bytearray(told["pixels"].encode()), dtype=torch.uint8) - ord("a")
    labels = torch.cat([torch.full((count,), digit) for digit, count in enumerate(told["counts"])])
    return pixels.view(SIDE * SIDE, -1).t().reshape(-1, SIDE, SIDE).float() / 16, labels


def accuracy(model: Any, pictures: Any, labels: Any) -> float:
    """The share that is recognised."""
    model = getattr(model, "module", model).eval()
    with torch.no_grad():
        found = float((model(pictures).argmax(1) == labels).float().mean())
    model.train()
    return found


def main() -> None:
    """Train, evaluate, say what came of it."""
    parser = common.options("Recognise handwritten digits.", "runs/digits", steps=600, batch=64, lr=3e-3)
    parser.add_argument("--evaluate-every", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds per step, to watch it or to kill it")
    options = parser.parse_args()
    place = common.begin(options.seed)

    pictures, labels = images()
    held_back = torch.arange(len(labels)) % HELD_BACK == 0
    test = pictures[held_back].to(place.device), labels[held_back].to(place.device)
    data = SeededData(Shifted(pictures[~held_back], labels[~held_back]), seed=options.seed)
    sampler = ResumableSampler(data, batch_size=options.batch, seed=options.seed, rank=place.rank, world=place.world)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler, num_workers=options.workers)

    model = common.spread(Net().to(place.device), place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, total_steps=options.steps)
    autocast, scaler = common.precision(place, off=options.no_amp)

    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "sampler": sampler}
    ckpt = Checkpointer(options.ckpt_dir, total=options.steps, every_steps=options.every_steps, **parts)
    start = ckpt.resume()
    scalars = common.Scalars(Path(options.ckpt_dir), start, place)
    batches = sampler.batches(loader)
    for step in range(start, options.steps):
        total = torch.zeros((), device=place.device)
        for micro in range(options.accumulate):
            inputs, targets = (part.to(place.device, non_blocking=True) for part in next(batches))
            with common.no_sync(model, last=micro == options.accumulate - 1), autocast:
                loss = functional.cross_entropy(model(inputs), targets) / options.accumulate
                scaler.scale(loss).backward()
            total += loss.detach()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad()
        ckpt.step(step, loss=total, grad_norm=norm)
        time.sleep(options.pause)

        if (step + 1) % options.evaluate_every == 0:
            with ckpt.phase("evaluating"):
                right = accuracy(model, *test)
            scalars.add(step, loss=total, grad_norm=norm, accuracy=right)
            if place.rank == 0:
                print(f"step {step + 1}/{options.steps}  loss {float(total):.4f}  accuracy {right:.4f}", flush=True)
    ckpt.close()
    scalars.close()
    if place.rank == 0:
        print(f"accuracy {accuracy(model, *test):.4f}  weights {common.digest(model)}", flush=True)


if __name__ == "__main__":
    main()
