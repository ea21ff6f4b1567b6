"""A small transformer that learns to write a text, letter by letter.

::

    python -m hermitcrab.examples.chars --text book.txt
    crab train -- python -m hermitcrab.examples.chars --text book.txt --steps 20000
    torchrun --nproc-per-node 2 -m hermitcrab.examples.chars --text book.txt
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hermitcrab import Checkpointer, ResumableSampler
from hermitcrab.errors import UserError
from hermitcrab.examples import common

OURS = Path(__file__).parents[1]  # without a text it learns to write this program


class Windows(torch.utils.data.Dataset):  # type: ignore[misc] # torch is untyped where it is not installed
    """A piece of the text from every place, and the same moved by one letter."""

    by_index = True  # a sample is a function of its index: workers change nothing

    def __init__(self, letters: Any, length: int) -> None:
        self.letters, self.length = letters, length

    def __len__(self) -> int:
        return len(self.letters) - self.length

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        piece = self.letters[index : index + self.length + 1]
        return piece[:-1], piece[1:]


class Writer(nn.Module):  # type: ignore[misc] # as above
    """Two layers that look back."""

    def __init__(self, letters: int, length: int, width: int) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, letters)

    def forward(self, pieces: Any) -> Any:
        """For each letter, which may come next."""
        places = torch.arange(pieces.shape[1], device=pieces.device)
        future = torch.ones(len(places), len(places), dtype=torch.bool, device=pieces.device).triu(1)
        return self.out(self.layers(self.letter(pieces) + self.place(places), mask=future))


def read(path: str | None) -> tuple[Any, list[str]]:
    """The text as numbers, and the letters they stand for."""
    if path:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    else:
        text = "".join(file.read_text(encoding="utf-8") for file in sorted(OURS.rglob("*.py")))
    letters = sorted(set(text))
    numbers = {letter: number for number, letter in enumerate(letters)}
    return torch.tensor([numbers[letter] for letter in text], dtype=torch.int64), letters


def main() -> None:
    """Train, say what came of it."""
    parser = common.options("Learn to write a text.", "runs/chars", steps=2000, batch=32, lr=1e-3)
    parser.add_argument("--text", default=None, help="a file; without it, this program's own source")
    parser.add_argument("--length", type=int, default=64, help="letters it looks back at")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--log-every", type=int, default=100)
    options = parser.parse_args()
    place = common.begin(options.seed)

    text, letters = read(options.text)
    if len(text) < 2 * options.length:
        raise UserError(f"a text of {len(text)} letters is too short: give at least {2 * options.length}", code=2)
    data = Windows(text, options.length)
    sampler = ResumableSampler(data, batch_size=options.batch, seed=options.seed, rank=place.rank, world=place.world)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler, num_workers=options.workers)

    model = common.spread(Writer(len(letters), options.length, options.width).to(place.device), place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    autocast, scaler = common.precision(place, off=options.no_amp)

    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "sampler": sampler}
    ckpt = Checkpointer(options.ckpt_dir, total=options.steps, every_steps=options.every_steps, **parts)
    start = ckpt.resume()
    scalars = common.Scalars(Path(options.ckpt_dir), start, place)
    batches = sampler.batches(loader)
    began = time.monotonic()
    for step in range(start, options.steps):
        total = torch.zeros((), device=place.device)
        for micro in range(options.accumulate):
            inputs, targets = (part.to(place.device, non_blocking=True) for part in next(batches))
            with common.no_sync(model, last=micro == options.accumulate - 1), autocast:
                loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()) / options.accumulate
                scaler.scale(loss).backward()
            total += loss.detach()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad()
        ckpt.step(step, loss=total, grad_norm=norm)

        if (step + 1) % options.log_every == 0:
            scalars.add(step, loss=total, grad_norm=norm, lr=scheduler.get_last_lr()[0])
            if place.rank == 0:
                rate = (step + 1 - start) / (time.monotonic() - began)
                print(f"step {step + 1}/{options.steps}  loss {float(total):.4f}  {rate:.1f} steps/s", flush=True)
    ckpt.close()
    scalars.close()
    if place.rank == 0:
        print(f"weights {common.digest(model)}", flush=True)


if __name__ == "__main__":
    main()
