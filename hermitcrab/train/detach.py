"""The supervisor leaves the terminal: what happens to that, or to tmux, is no business of a run."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path


def is_terminal() -> bool:
    """Say whether a person looks on, who may leave and want the run to stay."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    # The first process of a container is the container: with its end all ends. So it is with that one's child.
    return os.getpid() != 1 and os.getppid() != 1


def detach(errors: Path) -> bool:
    """Fork; True in the child, which has a session of its own and neither input nor output."""
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork():
        return False
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    try:
        told = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        told = null
    for target, source in ((0, null), (1, null), (2, told)):
        os.dup2(source, target)
    return True


def stay() -> None:
    """Get a session of its own where nobody is at a keyboard; one that leads a session already keeps it."""
    if not any(os.isatty(number) for number in (0, 1, 2) if _is_open(number)):
        with suppress(OSError):
            os.setsid()


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
