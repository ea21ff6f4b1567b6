"""What every training needs around its loop: ranks, devices, mixed precision, scalars, a digest of the weights."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import importlib.util
import os
import random
from pathlib import Path
from typing import Any, NamedTuple

import torch


class Place(NamedTuple):
    """Where this process computes: torchrun starts one per card."""

    rank: int
    world: int
    device: Any


def options(description: str, folder: str, **defaults: Any) -> argparse.ArgumentParser:
    """The options that all examples share; `crab train` sets CKPT_DIR."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=defaults["steps"])
    parser.add_argument("--batch", type=int, default=defaults["batch"], help="samples per rank and micro-step")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-steps per step")
    parser.add_argument("--lr", type=float, default=defaults["lr"])
    parser.add_argument("--workers", type=int, default=0, help="processes that load data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ckpt-dir", default=os.environ.get("CKPT_DIR") or folder)
    parser.add_argument("--every-steps", type=int, default=None, help="between checkpoints; else by their cost")
    parser.add_argument("--no-amp", action="store_true", help="full precision on a card, too")
    return parser


def begin(seed: int) -> Place:
    """Join the other ranks if there are any, take a card if there is one, and make the run repeatable."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS is not deterministic
    else:
        torch.set_num_threads(1)  # of networks as small as these, more threads only wait for each other
    if world > 1:
        torch.distributed.init_process_group("nccl" if cuda else "gloo")
    torch.use_deterministic_algorithms(True, warn_only=True)
    random.seed(seed)
    torch.manual_seed(seed)
    return Place(rank, world, torch.device("cuda" if cuda else "cpu"))


def spread(model: Any, place: Place) -> Any:
    """Let the ranks average their gradients."""
    return torch.nn.parallel.DistributedDataParallel(model) if place.world > 1 else model


def precision(place: Place, *, off: bool) -> tuple[Any, Any]:
    """Mixed precision on a card: the context to compute in, and the scaler that float16 needs."""
    half = torch.bfloat16 if place.device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float16
    on = place.device.type == "cuda" and not off
    autocast = torch.autocast(place.device.type, dtype=half if on else torch.bfloat16, enabled=on)
    scaling = on and half is torch.float16
    if hasattr(torch.amp, "GradScaler"):
        return autocast, torch.amp.GradScaler(place.device.type, enabled=scaling)
    return autocast, torch.cuda.amp.GradScaler(enabled=scaling)


def no_sync(model: Any, *, last: bool) -> Any:
    """Before the last micro-step of a step the ranks need not talk."""
    return contextlib.nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync()


class Scalars:
    """Curves for TensorBoard where that is installed; a resumed run goes on with its curves."""

    def __init__(self, folder: Path, start: int, place: Place) -> None:
        self._writer: Any = None
        if place.rank == 0 and importlib.util.find_spec("tensorboard"):
            board = importlib.import_module("torch.utils.tensorboard")
            self._writer = board.SummaryWriter(str(folder / "tensorboard"), purge_step=start)

    def add(self, step: int, **values: Any) -> None:
        """Add one point to each curve."""
        for name, value in values.items() if self._writer else ():
            self._writer.add_scalar(name, float(value), step)

    def close(self) -> None:
        """Write what is not written."""
        if self._writer:
            self._writer.close()


def digest(model: Any) -> str:
    """One number for all weights: two trainings that agree in it agree in every bit."""
    tensors = [tensor.detach().cpu().contiguous() for tensor in getattr(model, "module", model).state_dict().values()]
    return hashlib.sha256(b"".join(bytes(tensor.view(-1).view(torch.uint8).tolist()) for tensor in tensors)).hexdigest()
