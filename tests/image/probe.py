"""Runs inside the image: computes what has known values and prints it as JSON. `compile` adds torch.compile."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np  # type: ignore[import-not-found]
import torch
import torchaudio  # type: ignore[import-not-found]
import torchvision  # type: ignore[import-not-found]
from torch.utils.data import DataLoader, TensorDataset


def trace(x: torch.Tensor) -> torch.Tensor:
    """The squared length of all rows."""
    return (x @ x.T).diagonal().sum()


def convolve() -> Any:
    """Sums over all 2×2 squares of 0 to 8."""
    image = torch.arange(9.0).reshape(1, 1, 3, 3)
    return torch.nn.functional.conv2d(image, torch.ones(1, 1, 2, 2)).flatten().tolist()


def suppress() -> Any:
    """Of two boxes in one place, the one with the better score."""
    both = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.1]])
    return torchvision.ops.nms(both, torch.tensor([0.5, 0.9]), 0.5).tolist()


def echo() -> Any:
    """An impulse that halves at each step."""
    impulse = torch.tensor([1.0, 0.0, 0.0])
    return torchaudio.functional.lfilter(impulse, torch.tensor([1.0, -0.5]), torch.tensor([1.0, 0.0])).tolist()


def load(strategy: str) -> Any:
    """The sum of what two workers bring; by files, torch's own manager program is needed."""
    torch.multiprocessing.set_sharing_strategy(strategy)
    loader = DataLoader(TensorDataset(torch.arange(32)), batch_size=4, num_workers=2)
    return sum(int(batch.sum()) for (batch,) in loader)


def main() -> None:
    """Print all values."""
    matrix = torch.arange(16.0).reshape(4, 4)
    values = {
        "matmul": trace(matrix).item(),
        "conv": convolve(),
        "nms": suppress(),
        "lfilter": echo(),
        "numpy": torch.from_numpy(np.ones(3)).sum().item(),
        "workers": load("file_descriptor"),
        "workers by files": load("file_system"),
    }
    if "compile" in sys.argv:
        values["compiled"] = torch.compile(trace)(matrix).item()
    print(json.dumps(values))


if __name__ == "__main__":
    main()
