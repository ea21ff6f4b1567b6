"""What the watch has to say about a run: something to tell, or a reason to end it."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """One thing that was seen; a fatal one asks the supervisor to end this attempt.

    Fatal kinds are ``nan``, ``hang``, ``gpu-lost``, ``preempted`` and ``smoke-done``; all others are only told.
    For a ``hang`` the stacks are to be dumped before anything is killed: they show where it stands.
    """

    kind: str
    fatal: bool
    text: str  # what happened, with the evidence
    advice: tuple[str, ...] = ()  # what to try, the likeliest first
    until: float | None = None  # for preempted: when the machine is taken, in seconds since the epoch
