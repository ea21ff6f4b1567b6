"""One of several processes over which a model is spread."""

from __future__ import annotations

import hashlib
import importlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hermitcrab import Checkpointer, ResumableSampler
from tests.checkpoint.loop import Data

fully_shard: Any = getattr(importlib.import_module("torch.distributed.fsdp"), "fully_shard", None)  # older torch: none


def main(folder: Path, rank: int, world: int, port: str, last: int, *words: str) -> None:
    """Train to a step; print where it began and a digest of the whole model and optimizer."""
    store = torch.distributed.TCPStore("127.0.0.1", int(port), world, rank == 0)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (world,))
    for module in (model[0], model[2], model):
        fully_shard(module, mesh=mesh)
    torch.manual_seed(rank)
    sampler = ResumableSampler(27, batch_size=2, seed=5, rank=rank, world=world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    ckpt = Checkpointer(folder, model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler, every_steps=3)
    start = ckpt.resume()
    batches = sampler.batches(torch.utils.data.DataLoader(Data(), batch_sampler=sampler))
    for step in range(start, last):
        inputs, targets = next(batches)
        loss = (model(inputs) - targets * torch.rand(())).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if "nan" in words and rank == 1 and step == last - 1:
            nn.init.constant_(model[0].bias.to_local(), float("nan"))
        if "full" in words and rank == 1 and step == 5:
            _fill()
        ckpt.step(step, loss=loss)
        if "die" in words and step == last - 1:
            torch.distributed.barrier()
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
    ckpt.close()
    print(start, digest(model, optimizer), repr(float(torch.rand(()))), flush=True)
    torch.distributed.barrier()
    os._exit(0)


def digest(model: Any, optimizer: Any) -> str:
    """All weights and moments, put together from all ranks."""
    tensors = list(model.state_dict().values())
    tensors += [item for state in optimizer.state_dict()["state"].values() for item in state.values()]
    whole = [tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for tensor in tensors]
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in whole)).hexdigest()


def _fill() -> None:
    """From here on this process writes no file to its end, as on a full disk."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
