"""Why a resume would not continue bit for bit: what the manifest and the log say of it."""

from __future__ import annotations

from typing import Any, Iterator, Mapping

import torch

from hermitcrab.checkpoint.sampler import ResumableSampler


def reasons(parts: Mapping[str, Any], environment: Mapping[str, Any]) -> Iterator[str]:
    """Name what of a state saved now cannot be brought back as it was."""
    sampler = parts.get("sampler")
    if sampler is None:
        yield "no sampler was given: the position in the data is not saved"
    elif not isinstance(sampler, ResumableSampler):
        yield "the position in the data is as good as the given sampler tells it"
    elif sampler.reads_ahead and sampler.batch and not sampler.by_index:
        yield (
            "in mid-epoch, what the loader's workers draw at random begins anew: use SeededData, "
            "or ResumableSampler(…, by_index=True) if the samples draw nothing"
        )
    if torch.cuda.is_available() and not environment.get("deterministic"):
        yield "deterministic algorithms are off: on CUDA the same state may give other bits"


def position(sampler: Any) -> dict[str, Any]:
    """Tell for the manifest where in the data a state was saved."""
    if not isinstance(sampler, ResumableSampler):
        return {"epoch": None, "samples": None, "batches": None}
    return {"epoch": sampler.epoch, "samples": sampler.samples, "batches": sampler.batch}
