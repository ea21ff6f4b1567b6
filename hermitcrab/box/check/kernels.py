"""Real kernels, each compared with the CPU's result; run in the child, with torch."""

from __future__ import annotations

import os
import shutil
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable

from hermitcrab.box.check.findings import FAIL, PASS, SKIP, WARN, Finding
from hermitcrab.box.check.messages import explain

SIZE = 512
# The largest error relative to the largest value; fp32 leaves room for TF32, where it is switched on.
TOLERANCES = {"float32": 5e-3, "float16": 5e-3, "bfloat16": 2e-2}
NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
FIRST_WITH_BF16, FIRST_WITH_TRITON = (8, 0), (7, 0)
WRONG = ("The card, its memory or its driver is faulty.", "Take another machine: results would be wrong.")


def matmul(kind: str) -> Finding:
    """Multiply two matrices on every GPU, and on the CPU in fp32."""
    import torch

    id_ = f"kernel.{NAMES[kind]}"
    if kind == "bfloat16" and _oldest(torch) < FIRST_WITH_BF16:
        return Finding(id_, SKIP, "the card has no bf16 units: use fp16")
    kept = getattr(torch, kind)
    a, b = (_random(torch, seed, SIZE, SIZE).to(kept) for seed in (1, 2))
    return _compare(
        id_, f"{NAMES[kind]} matmul", a.float() @ b.float(), lambda on: a.to(on) @ b.to(on), TOLERANCES[kind]
    )


def convolution() -> Finding:
    """Convolve images on every GPU, by cuDNN, and on the CPU."""
    import torch

    image, weight = _random(torch, 1, 4, 16, 64, 64), _random(torch, 2, 32, 16, 3, 3)
    conv = torch.nn.functional.conv2d
    return _compare(
        "kernel.conv", "convolution", conv(image, weight), lambda on: conv(image.to(on), weight.to(on)), 1e-2
    )


def compiled() -> Finding:
    """Let torch.compile make a kernel, where there is a compiler for its host part."""
    import torch

    missing = _no_compiler(torch)
    if missing:
        return Finding("kernel.compile", SKIP, f"torch.compile is not tried: {missing}")

    def function(x: Any) -> Any:
        return torch.relu(x * 2 + 1).sum(dim=1)

    x = _random(torch, 1, SIZE, SIZE)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor", TRITON_CACHE_DIR=f"{folder}/triton")
        made = torch.compile(function)
        return _compare("kernel.compile", "torch.compile", function(x), lambda on: made(x.to(on)), 5e-3)


def cudnn() -> Finding:
    """Say which cuDNN torch uses; its own checks of it raise errors."""
    import torch

    backend = torch.backends.cudnn
    if not backend.is_available():
        return Finding("kernel.cudnn", FAIL, "torch cannot use cuDNN", *explain("libcudart functions unavailable"))
    return Finding("kernel.cudnn", PASS, f"cuDNN {backend.version()}")


def nccl() -> Finding:
    """Sum over all GPUs by NCCL; with one GPU its only rank."""
    import torch

    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return Finding(
            "kernel.nccl", WARN, "this torch has no NCCL", "The build lacks it.", "Train on one GPU, or by gloo."
        )
    count = torch.cuda.device_count()
    tensors = [torch.full((1024,), float(rank + 1), device=f"cuda:{rank}") for rank in range(count)]
    torch.cuda.nccl.all_reduce(tensors)
    wanted = count * (count + 1) / 2
    if any((tensor.cpu() != wanted).any() for tensor in tensors):
        return Finding("kernel.nccl", FAIL, f"an all-reduce over {count} GPUs gave a wrong sum", *WRONG)
    version = ".".join(map(str, torch.cuda.nccl.version()))
    return Finding("kernel.nccl", PASS, f"NCCL {version}: all-reduce over {count} GPU{'s' * (count > 1)}")


def _compare(id_: str, what: str, wanted: Any, compute: Callable[[str], Any], tolerance: float) -> Finding:
    """Compute on every GPU; the first that differs from the CPU fails."""
    devices = _devices()
    for device in devices:
        got = compute(device).float().cpu()
        error = float((got - wanted).abs().max() / wanted.abs().max())
        if not error <= tolerance:  # also true for NaN
            return Finding(id_, FAIL, f"{what} on {device} is not the CPU's: off by {error:.2g}", *WRONG)
    return Finding(id_, PASS, f"{what} equals the CPU's on {len(devices)} GPU{'s' * (len(devices) > 1)}")


def _devices() -> list[str]:
    import torch

    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


def _random(torch: Any, seed: int, *shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _oldest(torch: Any) -> tuple[int, int]:
    major, minor = min(torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count()))
    return major, minor


def _no_compiler(torch: Any) -> str:
    """Say what torch.compile lacks; empty when it lacks nothing."""
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        return "no C compiler (gcc)"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "no Python headers (python3-dev)"
    if find_spec("triton") is None:
        return "no triton, which this torch does not bring for this Python"
    return "the card is too old for triton" if _oldest(torch) < FIRST_WITH_TRITON else ""
