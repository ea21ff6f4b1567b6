"""hermitcrab: the machine changes, the training run goes on."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

LAZY = {
    "Checkpointer": "hermitcrab.checkpoint.checkpointer",
    "NoGoodCheckpointError": "hermitcrab.checkpoint.store",
    "ResumableSampler": "hermitcrab.checkpoint.sampler",
    "SeededData": "hermitcrab.checkpoint.seeded",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is asked for: `crab --help` must not wait for it."""
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(LAZY[name]), name)
