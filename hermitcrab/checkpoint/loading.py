"""From a chosen checkpoint back into the parts of a training and its random generators."""

from __future__ import annotations

from typing import Any, Mapping

import torch

from hermitcrab.checkpoint import parts, ranks, record, rng, sharded
from hermitcrab.checkpoint.choice import Chosen
from hermitcrab.checkpoint.sampler import ResumableSampler
from hermitcrab.checkpoint.saver import load
from hermitcrab.errors import UserError


def apply(chosen: Chosen, named: Mapping[str, Any], here: Mapping[str, Any], *, is_sharded: bool) -> list[str]:
    """Load a checkpoint into the parts on this rank; returns what is not as it was."""
    state = chosen.state if chosen.state is not None else load(chosen.path)
    notes = record.differences(chosen.manifest, here)
    if sharded.is_in(chosen.path):
        spread, rest = sharded.split(named)
        sharded.load(spread, chosen.path)
        notes += parts.apply(rest, state)
    elif is_sharded:
        raise UserError(f"{chosen.path} is not sharded: load it into the model before that is", code=2)
    else:
        notes += parts.apply(named, state)
    return notes + _restore(state["rng"], named.get("sampler"))


def _restore(states: list[rng.State], sampler: Any) -> list[str]:
    if len(states) != ranks.world():
        rng.restore(states[0])
        torch.manual_seed(int(torch.randint(2**62, ())) + ranks.rank())
        return ["the ranks' random states are new ones"]
    mine = states[ranks.rank()]
    if isinstance(sampler, ResumableSampler) and sampler.batch:
        # In mid-epoch the loader's start draws once more than the first time: undo it.
        sampler.on_first_index = lambda: rng.restore(mine)
    return rng.restore(mine)
