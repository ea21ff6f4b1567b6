"""The numbers that a step comes to: loss, gradient norm, any metric."""

from __future__ import annotations

import numbers
from typing import Any

from hermitcrab.errors import UserError


def held(name: str, value: Any) -> Any:
    """Return one number as it is now, whatever is done to its tensor later; None is none.

    On a card it stays there, since reading it makes the training wait. Raises UserError where it is no number.
    """
    if hasattr(value, "detach"):
        value = value.detach()  # else it would hold on to the graph of its step
        if value.numel() == 1 and not value.is_complex() and value.device.type != "cpu":
            return value.clone()
    read = _read(value)
    if read is None and value is not None:
        raise UserError(f"step(…, {name}=…) is {_kind(value)}; give one number, such as {name}.mean()", code=2)
    return read


def number(value: Any) -> float | None:
    """Read a value that was held."""
    read = _read(value)
    return None if read is None else float(read)


def _read(value: Any) -> Any:
    """A tensor's or numpy's number as Python's, and anything that is no real number as None."""
    if hasattr(value, "item") and _count(value) == 1:
        value = value.item()
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else None


def _count(value: Any) -> int:
    return int(value.numel() if hasattr(value, "numel") else value.size)


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", ())
    return f"a {type(value).__qualname__}" + (f" of shape {tuple(shape)}" if shape else "")
