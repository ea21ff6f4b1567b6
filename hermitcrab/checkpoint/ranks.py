"""Agreement between the ranks of one training: rank 0 chooses and writes, nobody goes on without the others."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

import torch

from hermitcrab.errors import UserError

T = TypeVar("T")


def world() -> int:
    """How many ranks train together."""
    return int(torch.distributed.get_world_size()) if _is_distributed() else 1


def rank() -> int:
    """Which of them this one is."""
    return int(torch.distributed.get_rank()) if _is_distributed() else 0


def any_of(flags: list[bool]) -> list[bool]:
    """Say of each flag whether it is set on some rank, so that all take the same turn."""
    if world() == 1:
        return flags
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    values = torch.tensor([int(flag) for flag in flags], dtype=torch.int32, device=device)
    torch.distributed.all_reduce(values, op=torch.distributed.ReduceOp.MAX)
    return [bool(value) for value in values.tolist()]


def gather(value: Any) -> list[Any]:
    """Give every rank the values of all."""
    if world() == 1:
        return [value]
    values: list[Any] = [None] * world()
    torch.distributed.all_gather_object(values, value)
    return values


def first_of(text: str) -> str:
    """Give every rank the first text that is not empty, and with it its rank."""
    told = [f"{said} of rank {number}" if world() > 1 else said for number, said in enumerate(gather(text)) if said]
    return told[0] if told else ""


def from_first(choose: Callable[[], T]) -> T:
    """Let rank 0 choose and tell; what goes wrong there goes wrong everywhere, or the others would wait for ever."""
    if world() == 1:
        return choose()
    box: list[Any] = [None, None]
    if rank() == 0:
        try:
            box[0] = choose()
        except Exception as error:  # noqa: BLE001 - raised below, on all ranks
            box[1] = error
    torch.distributed.broadcast_object_list(box, src=0)
    if box[1] is not None:
        raise box[1]
    return box[0]  # type: ignore[no-any-return]


def all_succeed(work: Callable[[], T]) -> T:
    """Do something on every rank; when one fails, all do."""
    result: T | None = None
    error: Exception | None = None
    try:
        result = work()
    except Exception as failure:
        if world() == 1:
            raise
        error = failure
    failed = [f"rank {number}: {said}" for number, said in enumerate(gather(error and str(error))) if said]
    if error is not None:
        raise error
    if failed:
        raise UserError("the checkpoint does not load everywhere: " + "; ".join(failed))
    return result  # type: ignore[return-value]


def _is_distributed() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())
