"""Trainings on a card, for test_checkpoint.py: `python -m tests.gpu.card WORK FOLDER DEVICE`; the last line is JSON.

Nothing here needs a card but its name: with cpu as the device, tests/checkpoint/test_card.py runs it all.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch
from torch import nn

from hermitcrab import Checkpointer, ResumableSampler
from hermitcrab.checkpoint import rng, saver, store

STEPS: Final = 12
OVERFLOW: Final = 4  # the step whose gradients are infinite: the scaler halves its scale
ROUNDS: Final = 6
PARTS: Final = ("model", "optimizer", "scheduler", "scaler", "sampler")


class Training:
    """Draws on the card (dropout, noise), scales its loss, and computes in half precision."""

    def __init__(self, folder: Path, device: str, **options: Any) -> None:
        torch.manual_seed(3)
        half, fused = (torch.float16, {"fused": True}) if device == "cuda" else (torch.bfloat16, {})
        self.autocast = torch.autocast(device, dtype=half)
        self.device, self.data = device, torch.randn(44, 32)
        self.model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 8)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, **fused)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.05, total_steps=STEPS)
        self.scaler = _scaler(device)
        self.sampler = ResumableSampler(self.data, batch_size=8, seed=1)
        self.parts = {name: getattr(self, name) for name in PARTS}
        self.ckpt = Checkpointer(folder, **self.parts, **{"every_steps": 1, "rehearse": False, **options})

    def run(self, **resume: Any) -> dict[int, str]:
        """Train to the end; a digest of everything after each step."""
        digests, batches = {}, self.sampler.batches(self.sampler)
        for step in range(self.ckpt.resume(**resume), STEPS):
            loss = self._step(step, next(batches))
            self.ckpt.step(step, loss=loss)
            digests[step] = self.digest()
        self.ckpt.wait()
        self.ckpt._drain()
        return digests

    def digest(self) -> str:
        """All that the next step depends on, the generators of all cards included."""
        state = [{name: part.state_dict() for name, part in self.parts.items()}, rng.capture()]
        return hashlib.sha256("".join(map(str, _flat(state))).encode()).hexdigest()

    def _step(self, step: int, index: list[int]) -> Any:
        inputs = self.data[torch.tensor(index)].to(self.device)
        last = f"cuda:{torch.cuda.device_count() - 1}" if self.device == "cuda" else self.device
        noise = torch.randn(8, device=last).to(self.device)
        with self.autocast:
            loss = (self.model(inputs) - noise).float().pow(2).mean()
        self.scaler.scale(loss * (math.inf if step == OVERFLOW else 1)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return loss


def exact(folder: Path, device: str) -> dict[str, Any]:
    """Resume after every step and compare each further one; and once without the card's random state."""
    torch.use_deterministic_algorithms(True)
    whole = Training(folder / "whole", device, every_steps=10**6).run()
    saved = Training(folder / "run", device, keep=STEPS).run()
    wrong = []
    for stop in range(STEPS - 1):
        again = Training(folder / "run", device, every_steps=10**6).run(step=stop)
        wrong += [stop] if again != {step: whole[step] for step in range(stop + 1, STEPS)} else []
    with mock.patch.object(rng, "restore", return_value=[]):
        forgotten = Training(folder / "run", device, every_steps=10**6).run(step=OVERFLOW)
    manifest = store.verify(store.found(folder / "run")[0].path)
    return {
        "distinct": len(set(whole.values())),
        "saving changes nothing": saved == whole,
        "wrong": wrong,
        "seen when forgotten": forgotten[STEPS - 1] != whole[STEPS - 1],
        "exact": manifest["exact"],
        "inexact": manifest["inexact"],
        "gpu": manifest["gpu"],
        "generators": len(saver.load(folder / "run/step_00000000")["rng"][0].get("cuda", [])),
        "scales": [_scale(folder / "run", step) for step in (OVERFLOW - 1, OVERFLOW, STEPS - 1)],
    }


def stall(folder: Path, device: str) -> dict[str, Any]:
    """What a save costs the training, against one copy into host memory that is reused; 1.5 GB on a card."""
    count = 96 if device == "cuda" else 8
    model = nn.ParameterList([nn.Parameter(torch.randn(1 << 22, device=device)) for _ in range(count)])
    ckpt = Checkpointer(folder, model=model, every_steps=1, rehearse=False)
    host = [torch.empty(1 << 22, pin_memory=device == "cuda") for _ in model]
    stalls, copies, gaps = [], [], []
    for step in range(ckpt.resume(), ROUNDS):
        copies.append(_timed(lambda: list(map(_copy, host, model))))
        stalls.append(_timed(lambda step=step: ckpt.step(step)))
        gaps.append(_gap(ckpt))
        ckpt.wait()
    buffers = ckpt._saver._snapshot._buffers.values()
    ckpt.close()
    tensors = [buffer for buffer in buffers if buffer.numel() == 1 << 22]
    return {
        "bytes": sum(tensor.numel() * 4 for tensor in tensors),
        "pinned": all(tensor.is_pinned() for tensor in tensors),
        "stall": min(stalls[1:]),  # the first one makes the buffers
        "copy": min(copies[1:]),
        "gap": min(gaps[1:]),
    }


def hold(folder: Path, device: str) -> dict[str, Any]:
    """Hold memory of the card and save without pause, until killed; says each step that is safe."""
    model = nn.Linear(1 << 14, (1 << 14) if device == "cuda" else 64, device=device)  # 1 GiB on a card
    ckpt = Checkpointer(folder, model=model, every_steps=1, rehearse=False)
    for step in range(ckpt.resume(), 10**9):
        nn.init.constant_(model.weight, step)
        ckpt.step(step)
        print(ckpt.saved, flush=True)
    return {}


def _scaler(device: str) -> Any:
    options: dict[str, Any] = {"init_scale": 1024.0, "growth_interval": 3}
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device, **options)
    return torch.cuda.amp.GradScaler(**options, enabled=device == "cuda")


def _scale(folder: Path, step: int) -> float | None:
    state = saver.load(folder / f"step_{step:08d}")["scaler"]
    return float(state["scale"]) if state else None


def _timed(work: Any) -> float:
    _finish()
    began = time.perf_counter()
    work()
    _finish()
    return time.perf_counter() - began


def _copy(host: Any, tensor: Any) -> None:
    host.copy_(tensor.detach(), non_blocking=tensor.is_cuda)


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _gap(ckpt: Checkpointer) -> float:
    """The longest that this thread waits beside the writer."""
    longest, last = 0.0, time.perf_counter()
    while ckpt._saver.background.busy:
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _flat(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)
    elif not callable(value):
        yield value.cpu().numpy().tobytes().hex() if isinstance(value, torch.Tensor) else repr(value)


if __name__ == "__main__":
    works = {"exact": exact, "stall": stall, "hold": hold}
    print(json.dumps(works[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])), flush=True)
