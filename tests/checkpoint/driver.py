"""A program that commits checkpoints and says so, to be killed from within or from outside.

`python driver.py FOLDER FIRST COUNT [KILL_AT]`: at the KILL_AT-th call of the operating system it is no more.
Needs no torch, so that hundreds of kills are quick.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from hermitcrab.checkpoint import choice, commit, retention, store
from hermitcrab.checkpoint.retention import Keep, Verified
from hermitcrab.checkpoint.tee import Write

PATCHED = ("write", "mkdir", "fsync", "rename", "replace", "unlink", "rmdir")
SIZE = 300_000


def main(folder: Path, first: int, count: int, kill_at: int) -> None:
    """Commit ``count`` steps from ``first`` on; each is acknowledged on stdout once it is safe."""
    if kill_at:
        _die_at(kill_at)
    verified = Verified()
    for step in range(first, first + count):
        path = commit.commit(folder, step, {"run": "r"}, files(step))
        choice.committed(folder)
        print(step, flush=True)
        verified.trust(path)
        for old in retention.surplus(folder, "r", Keep(), verified):
            store.remove(old)
    print("done", _calls, flush=True)


def files(step: int) -> dict[str, Write]:
    """The one file of a step."""
    return {"state.pt": lambda file: file.write(payload(step))}


def payload(step: int) -> bytes:
    """What a step's file holds."""
    return step.to_bytes(4, "little") * (SIZE // 4)


_calls = 0


def _die_at(number: int) -> None:
    def counted(work: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            global _calls  # noqa: PLW0603 - one counter for all patched functions
            _calls += 1
            if _calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return work(*arguments, **options)

        return call

    for name in PATCHED:
        setattr(os, name, counted(getattr(os, name)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(word) for word in [*sys.argv[2:], "0"][:3]))
