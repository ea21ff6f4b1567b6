"""Deadlines that are armed on this box, known by their processes: what is in memory needs no file to fire."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from hermitcrab.box.files import read

NAME = b"crab-deadline"  # what the process calls itself; the kernel keeps 15 bytes
WORD = "hermitcrab-deadline"  # in its command line, before the name of its run


class Deadline(NamedTuple):
    """One of them."""

    pid: int
    run: str  # the run's name


def armed(root: Path = Path("/")) -> list[Deadline]:
    """Return all that can be seen, also those of other users and those whose records are gone."""
    try:
        pids = sorted(int(name) for name in os.listdir(root / "proc") if name.isdigit())
    except OSError:
        return []
    words = {pid: _words(root / "proc" / str(pid) / "cmdline") for pid in pids}
    return [Deadline(pid, said[-1]) for pid, said in words.items() if _is_deadline(said)]


def text(deadline: Deadline) -> str:
    """Say which one it is."""
    return f"the deadline of run {deadline.run} (process {deadline.pid})"


def _is_deadline(words: list[str]) -> bool:
    # By its own command line, as it has it from its first moment; whoever only searches for the word has other words.
    return len(words) > 4 and words[1:3] == ["-I", "-c"] and words[-2] == WORD


def _words(path: Path) -> list[str]:
    try:
        data = read(path) or b""
    except OSError:  # gone meanwhile, or not ours to look at
        return []
    return [os.fsdecode(word) for word in data.rstrip(b"\0").split(b"\0")] if data else []
