"""The state of every random generator a training step may draw from: python, numpy, torch, all CUDA devices."""

from __future__ import annotations

import importlib
import random
import sys
from typing import Any, Dict

import torch

State = Dict[str, Any]


def capture() -> State:
    """Return the state of all generators, in tensors and primitives."""
    version, numbers, gauss = random.getstate()
    state = {"python": {"version": version, "numbers": torch.tensor(numbers, dtype=torch.int64), "gauss": gauss}}
    state["torch"] = torch.get_rng_state()
    if "numpy" in sys.modules:  # what is not imported has drawn nothing
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = {"name": str(name), "keys": torch.tensor(keys.tolist(), dtype=torch.int64), "rest": rest}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore(state: State) -> list[str]:
    """Put all generators back; returns what could not be."""
    python = state["python"]
    random.setstate((python["version"], tuple(python["numbers"].tolist()), python["gauss"]))
    torch.set_rng_state(state["torch"])
    return _restore_numpy(state.get("numpy")) + _restore_cuda(state.get("cuda", []))


def _restore_numpy(state: Any) -> list[str]:
    if state is None:
        return []
    try:
        numpy = importlib.import_module("numpy")
    except ImportError:
        return ["numpy's random state has no numpy here"]
    keys = numpy.array(state["keys"].tolist(), dtype="uint32")
    numpy.random.set_state((state["name"], keys, *state["rest"]))
    return []


def _restore_cuda(states: list[Any]) -> list[str]:
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for device, state in enumerate(states[:here]):
        torch.cuda.set_rng_state(state, device)
    if len(states) > here:
        return [f"the random state of {len(states) - here} CUDA devices has no device here"]
    return []
