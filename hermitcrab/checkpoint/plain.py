"""State as tensors and primitives, so that ``torch.load(weights_only=True)`` always takes it.

What is neither is converted where nothing is lost by it, and refused with its key path otherwise: at
the first save, not on the day of the resume.
"""

from __future__ import annotations

import argparse
import functools
import io
import sys
from collections import OrderedDict
from datetime import timedelta
from pathlib import PurePath
from typing import Any, Callable, Iterable

import torch

from hermitcrab.errors import UserError

DEEPEST = 64
METADATA = "_metadata"  # where torch keeps the modules' versions
Convert = Callable[[Any], Any]
# Subclasses become what they are based on: np.float64 is a float, an IntEnum an int, torch.Size a tuple.
CONVERTED: tuple[tuple[type, Convert], ...] = (
    (bool, bool),
    (int, int),
    (float, float),
    (str, str),
    (PurePath, str),
    (timedelta, timedelta.total_seconds),
    (argparse.Namespace, vars),
)


class UnsaveableError(UserError):
    """A part of the state that no checkpoint can hold."""

    def __init__(self, path: str, value: Any, advice: str = "") -> None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        advice = advice or "keep tensors, numbers, strings, lists and dicts in the state"
        super().__init__(f"{path} is a {kind}, which a checkpoint cannot hold; {advice}", code=2)


def plain(value: Any, path: str = "state", depth: int = 0) -> Any:
    """Return the same state in tensors and primitives; raises UnsaveableError with the key path."""
    if value is None or (isinstance(value, (torch.dtype, torch.device)) and _loads(value)):
        return value
    if isinstance(value, torch.Tensor):
        return _tensor(value, path)
    if depth > DEEPEST:
        raise UnsaveableError(path, value, f"it is nested more than {DEEPEST} deep, or holds itself")
    if isinstance(value, dict):
        return _dict(value, path, depth)
    if isinstance(value, (list, tuple)):
        items = [plain(item, f"{path}[{number}]", depth + 1) for number, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    for kind, convert in CONVERTED:
        if isinstance(value, kind):
            converted = convert(value)
            return plain(dict(converted), path, depth + 1) if isinstance(converted, dict) else converted
    return _numpy(value, path)


@functools.lru_cache(maxsize=None)
def _loads(value: Any) -> bool:
    """Whether this torch takes it back with ``weights_only=True``; the first ones took no dtype and no device."""
    return _returns(lambda: value)


@functools.lru_cache(maxsize=None)
def _holds(dtype: Any) -> bool:
    """Whether this torch saves tensors of a type: some have uint16 and no way to write it."""
    return _returns(lambda: torch.empty(1, dtype=dtype))


def _returns(make: Callable[[], Any]) -> bool:
    buffer = io.BytesIO()
    try:
        torch.save(make(), buffer)
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    except Exception:  # noqa: BLE001 - KeyError, UnpicklingError, and what other versions have
        return False
    return True


def rebuilt(value: Any, items: Iterable[tuple[Any, Any]]) -> Any:
    """Return such a dict with other items; a module's state keeps its modules' versions, which loading asks for."""
    ordered: Any = OrderedDict(items) if type(value) is OrderedDict else dict(items)
    if hasattr(value, METADATA):
        setattr(ordered, METADATA, getattr(value, METADATA))
    return ordered


def _dict(value: dict[Any, Any], path: str, depth: int) -> Any:
    ordered = rebuilt(
        value, ((_key(key, path), plain(item, f"{path}.{key}", depth + 1)) for key, item in value.items())
    )
    if hasattr(ordered, METADATA):
        setattr(ordered, METADATA, plain(dict(getattr(value, METADATA)), f"{path}.{METADATA}", depth + 1))
    return ordered


def _key(key: Any, path: str) -> Any:
    for kind in (bool, int, float, str):
        if isinstance(key, kind):
            return kind(key)
    if key is None or isinstance(key, tuple):
        return plain(key, f"the key {key!r} of {path}")
    raise UnsaveableError(f"the key {key!r} of {path}", key)


def _tensor(value: Any, path: str) -> Any:
    if type(value) not in {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer if hasattr(torch.nn, "Buffer") else None}:
        raise UnsaveableError(path, value, "give its full, ordinary tensor")
    if value.layout is not torch.strided or value.is_meta or value.is_quantized:
        raise UnsaveableError(path, value, "only dense tensors with data can be saved")
    if not _holds(value.dtype):
        raise UnsaveableError(path, value, f"this torch cannot save {value.dtype}: convert it to another type")
    return value.detach()


def _numpy(value: Any, path: str) -> Any:
    numpy = sys.modules.get("numpy")  # never imported for this: torch is the only dependency
    if numpy and isinstance(value, numpy.generic) and not isinstance(value.item(), numpy.generic):
        return plain(value.item(), path)
    if numpy and isinstance(value, numpy.ndarray) and not isinstance(value, numpy.ma.MaskedArray):
        try:
            tensor = torch.from_numpy(value.astype(value.dtype.newbyteorder("=")))
        except TypeError as error:  # objects, texts, and numbers that no tensor holds
            raise UnsaveableError(path, value, str(error).splitlines()[0]) from error
        return _tensor(tensor, path)
    raise UnsaveableError(path, value)
