"""The parts of a training as state and back: model, optimizer, scheduler, scaler, EMA, sampler, any other.

A part is an object with ``state_dict`` and ``load_state_dict``, or a list of such. A model's wrappers
leave no trace: ``module.`` of DistributedDataParallel and ``_orig_mod.`` of torch.compile are taken from
the names at saving, and given back at loading where the model has them then.
"""

from __future__ import annotations

from typing import Any, Mapping

import torch

from hermitcrab.checkpoint.plain import plain, rebuilt
from hermitcrab.errors import UserError

COMPILED, PARALLEL = "_orig_mod.", "module."
RESERVED = ("rng",)


def check(parts: Mapping[str, Any]) -> None:
    """Refuse what is no part, at once and by name."""
    for name, part in parts.items():
        for item in _items(part):
            if name in RESERVED or not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
                raise UserError(
                    f"Checkpointer(…, {name}=…) is a {type(item).__qualname__} without state_dict and "
                    "load_state_dict; give a part of the training, or a list of them",
                    code=2,
                )


def collect(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of all parts in tensors and primitives; the tensors are the live ones."""
    return {name: _state(part, name) for name, part in parts.items()}


def apply(parts: Mapping[str, Any], state: Mapping[str, Any]) -> list[str]:
    """Load the state into the parts; returns what cannot be as it was."""
    missing = [name for name in parts if name not in state]
    unused = [name for name in state if name not in parts and name not in RESERVED]
    if missing:
        raise UserError(
            f"the checkpoint has no {', '.join(missing)}; it has {', '.join(state)}: give those parts to Checkpointer"
        )
    notes = [f"the checkpoint's {name} is not used" for name in unused]
    for name, part in parts.items():
        notes += _load(part, state[name])
    return notes


def bare(names: list[str]) -> dict[str, str]:
    """Map the names of a model's tensors to those without wrappers; to themselves if two would be one."""
    whole = all(name.replace(COMPILED, "").startswith(PARALLEL) for name in names)
    cut = [name.replace(COMPILED, "") for name in names]
    cut = [name[len(PARALLEL) :] for name in cut] if whole else cut
    return dict(zip(names, cut if len(set(cut)) == len(names) else names))


def _state(part: Any, name: str) -> Any:
    if isinstance(part, (list, tuple)):
        return [_state(item, f"{name}[{number}]") for number, item in enumerate(part)]
    state = part.state_dict()
    if isinstance(part, torch.optim.lr_scheduler.LRScheduler):
        state = _without_functions(state)
    return _renamed(plain(state, name), bare(list(state))) if isinstance(part, torch.nn.Module) else plain(state, name)


def _load(part: Any, state: Any) -> list[str]:
    if isinstance(part, (list, tuple)):
        return [note for item, its in zip(part, state) for note in _load(item, its)]
    if isinstance(part, torch.nn.Module):
        wrapped = {plain_name: name for name, plain_name in bare(list(part.state_dict())).items()}
        state = _renamed(state, {name: wrapped.get(name, name) for name in state})
    said = part.load_state_dict(state)
    return said if type(said) is list else []  # a sampler's notes; a module returns its missing keys


def _without_functions(state: Any) -> Any:
    """Older schedulers list functions in their state, which a new scheduler has anyway."""
    if isinstance(state, dict):
        return {key: _without_functions(value) for key, value in state.items() if not callable(value)}
    return [_without_functions(item) for item in state] if isinstance(state, list) else state


def _renamed(state: Any, names: Mapping[str, str]) -> Any:
    return rebuilt(state, ((names[name], value) for name, value in state.items()))


def _items(part: Any) -> list[Any]:
    return list(part) if isinstance(part, (list, tuple)) else [part]
