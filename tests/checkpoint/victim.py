"""A training that is killed again and again: `python victim.py FOLDER`, and each line on its stdin is another life.

Each life is a fork, since importing torch takes longer than all else. Says its pid, from where it goes on, every
step that is safe, and "torn" if it finds another state than that of its step.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import nn

from hermitcrab import Checkpointer


def main(folder: Path) -> None:
    """Live as often as is asked."""
    torch.set_num_threads(1)
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1).step()  # imports for seconds what each life would import
    for _ in sys.stdin:
        pid = os.fork()
        if not pid:
            live(folder)
        os.waitpid(pid, 0)
        print("dead", flush=True)


def live(folder: Path) -> None:
    """Train until killed, saving beside it all the time."""
    model = nn.Linear(512, 512)  # 1 MB, and as much again in the optimizer
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    ckpt = Checkpointer(folder, model=model, optimizer=optimizer, every_steps=1, rehearse=False)
    start = ckpt.resume()
    if start and not all(bool((tensor == start - 1).all()) for tensor in model.parameters()):
        print("torn", flush=True)
    print(os.getpid(), start, flush=True)
    told = ckpt.saved
    for step in range(start, 10**9):
        for tensor in model.parameters():
            nn.init.constant_(tensor, step)
            tensor.grad = torch.ones_like(tensor)
        optimizer.step()
        ckpt.step(step, loss=1.0)
        if ckpt.saved != told:
            told = ckpt.saved
            print(told, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
