"""Random augmentation that a resume repeats: a sample's chance is a function of seed, epoch and index.

The state of a worker of a data loader cannot be brought back in mid-epoch; nothing is lost if none is needed.
"""

from __future__ import annotations

import random
import sys
import zlib
from typing import Any

import torch


class Place(int):
    """An index into a data set that knows its epoch: it travels to the loader's workers with it."""

    epoch: int

    def __new__(cls, index: int, epoch: int = 0) -> Place:
        """Make it of a plain index."""
        place = super().__new__(cls, index)
        place.epoch = epoch
        return place

    def __reduce__(self) -> Any:
        return Place, (int(self), self.epoch)


class SeededData(torch.utils.data.Dataset):  # type: ignore[misc] # torch is untyped where it is not installed
    """A data set whose samples draw the same numbers wherever and whenever they are made.

    ``SeededData(data, seed=7)[index]`` seeds python, numpy and torch from seed, epoch and index, asks
    ``data[index]``, and leaves the generators as they were.
    """

    by_index = True

    def __init__(self, data: Any, *, seed: int = 0) -> None:
        self.data, self.seed = data, seed

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        epoch = getattr(index, "epoch", 0)
        number = zlib.crc32(f"{self.seed}.{epoch}.{int(index)}".encode())
        generator, numpy = torch.default_generator, sys.modules.get("numpy")
        before = random.getstate(), generator.get_state(), numpy.random.get_state() if numpy else None
        random.seed(number)
        generator.manual_seed(number)  # not torch.manual_seed: that one goes through all devices, and takes its time
        if numpy:
            numpy.random.seed(number)
        try:
            return self.data[int(index)]
        finally:
            random.setstate(before[0])
            generator.set_state(before[1])
            if numpy:
                numpy.random.set_state(before[2])
