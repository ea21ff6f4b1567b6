"""One of several processes that train together."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hermitcrab import Checkpointer, ResumableSampler
from tests.checkpoint.loop import Data


def run(main: Callable[..., None], said: Path, *arguments: Any) -> None:
    """Be a rank: what it prints goes into files, and it ends with the status of its error."""
    for number, suffix in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(said.with_suffix(suffix), os.O_WRONLY | os.O_CREAT | os.O_EXCL), number)
    try:
        main(*arguments)
    except BaseException as error:  # noqa: BLE001 - an end in the usual way may wait for a peer that has left already
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(int(getattr(error, "code", 1)))


def main(folder: Path, rank: int, world: int, port: str, last: int, *words: str) -> None:
    """Train to a step, print the weights and what this rank's generator gives next."""
    store = torch.distributed.TCPStore("127.0.0.1", int(port), world, rank == 0)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    torch.manual_seed(3)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1)))
    torch.manual_seed(rank)
    random.seed(rank)
    sampler = ResumableSampler(27, batch_size=2, seed=5, rank=rank, world=world)
    optimizer = torch.optim.AdamW(model.parameters())
    # No rank but the first decides by the clock, so the ranks' clocks need not agree.
    ckpt = Checkpointer(folder, model=model, optimizer=optimizer, sampler=sampler, every_steps=3)
    start = ckpt.resume()
    loader = torch.utils.data.DataLoader(Data(), batch_sampler=sampler)
    batches = sampler.batches(loader)
    for step in range(start, last):
        inputs, targets = next(batches)
        loss = (model(inputs) - targets * torch.rand(()) * random.random()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 1 and step == last - 1 and "signal" in words:
            os.kill(os.getpid(), signal.SIGUSR2)
        ckpt.step(step, loss=loss)
        if "die" in words and step == last - 1:
            ckpt.wait()
            torch.distributed.barrier()
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
    ckpt.close()
    weights = float(sum(value.double().abs().sum() for value in model.state_dict().values()))
    print(start, repr(weights), repr(float(torch.rand(()))), repr(random.random()), flush=True)
    # Not destroy_process_group(): once in a while gloo waits there for a peer that has left already.
    torch.distributed.barrier()
    os._exit(0)
