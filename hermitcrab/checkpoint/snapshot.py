"""A copy of the state in host memory that is reused from save to save: the only time the training waits.

A fresh copy costs three times as much, for its pages. On CUDA the memory is pinned and the copies overlap.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator

import torch

from hermitcrab.checkpoint.plain import rebuilt

MEMORY_SHARE = 0.8  # of what is free: the rest is the data loader's
CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


class Snapshot:
    """Host memory for one copy of a state; tensors that share memory share it here as well."""

    def __init__(self) -> None:
        self._buffers: dict[str, Any] = {}
        self._shared: dict[tuple[Any, ...], Any] = {}
        self._cuda: list[Any] = []

    def take(self, state: Any) -> Any:
        """Return the state with every tensor copied; valid until the next call."""
        self._shared, self._cuda = {}, []
        copy = self._copy(state, "")
        for device in {tensor.device for tensor in self._cuda}:
            torch.cuda.current_stream(device).synchronize()
        self._shared, self._cuda = {}, []  # they hold the live tensors
        return copy

    def fits(self, state: Any) -> bool:
        """Say whether the memory for a copy is there, or free to be had."""
        held = sum(_bytes(buffer) for buffer in self._buffers.values())
        return size(state) - held <= MEMORY_SHARE * free_memory()

    def _copy(self, value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, dict):
            return rebuilt(value, ((key, self._copy(item, f"{path}.{key!r}")) for key, item in value.items()))
        if isinstance(value, (list, tuple)):
            items = [self._copy(item, f"{path}.{number}") for number, item in enumerate(value)]
            return tuple(items) if isinstance(value, tuple) else items
        return value

    def _tensor(self, tensor: Any, path: str) -> Any:
        # The device belongs to it: two cards may use the same address. An empty tensor has none.
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and place in self._shared:
            return self._shared[place]
        buffer = self._buffers.get(path)
        if buffer is None or not _alike(buffer, tensor):
            buffer = self._buffers[path] = _host_memory(tensor)
        buffer.copy_(tensor, non_blocking=tensor.is_cuda)
        self._cuda += [tensor] if tensor.is_cuda else []
        self._shared[place] = buffer
        return buffer


def tensors(state: Any) -> Iterator[Any]:
    """Yield every tensor in a state."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, (dict, list, tuple)):
        for item in state.values() if isinstance(state, dict) else state:
            yield from tensors(item)


def size(state: Any) -> int:
    """Bytes of all tensors in a state."""
    return sum(_bytes(tensor) for tensor in tensors(state))


def first_non_finite(state: Any, path: str = "model") -> str:
    """Name the first tensor that holds NaN or infinity; empty when there is none."""
    if isinstance(state, torch.Tensor):
        state = state.to_local() if hasattr(state, "to_local") else state  # of a sharded one, what is here
        return path if (state.is_floating_point() or state.is_complex()) and not _is_finite(state) else ""
    pairs = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, (list, tuple)) else ()
    return next((found for key, item in pairs for found in [first_non_finite(item, f"{path}.{key}")] if found), "")


def free_memory(root: Path = Path("/")) -> int:
    """Bytes this process may still take: the machine's, or fewer by its cgroup's limit."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for limit, used in CGROUPS:
        try:
            free.append(int((root / limit[1:]).read_text()) - int((root / used[1:]).read_text()))
        except (OSError, ValueError):  # no such cgroup, or "max"
            continue
    return max(0, min(free, default=0))


def _is_finite(tensor: Any) -> bool:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())  # not all of them know a sum
    if tensor.element_size() < 2:  # nor does float8
        try:
            tensor = tensor.float()
        except NotImplementedError:
            return True  # float4 has neither
    # The sum is one pass without a temporary; it may overflow where no element does, so then look closely.
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _alike(buffer: Any, tensor: Any) -> bool:
    same: bool = buffer.shape == tensor.shape and buffer.dtype == tensor.dtype
    return bool(same and buffer.is_pinned() == tensor.is_cuda and buffer.stride() == _layout(tensor).stride())


def _host_memory(tensor: Any) -> Any:
    empty = _layout(tensor)
    return torch.empty_strided(empty.shape, empty.stride(), dtype=tensor.dtype, pin_memory=tensor.is_cuda)


def _layout(tensor: Any) -> Any:
    """A tensor without data, in the order of dimensions that a copy keeps: channels last stays so."""
    return torch.empty_like(tensor, device="meta")
