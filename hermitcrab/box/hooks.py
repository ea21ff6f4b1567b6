"""Hooks: executables that run at each start of the box, before its command. None can stop the box."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Iterator

FOLDER = Path("/etc/hermitcrab/hooks.d")
LIMIT = 600.0  # seconds; a hook may install packages, but not for ever


def run(folder: Path = FOLDER, limit: float = LIMIT) -> Iterator[str]:
    """Run the executables of a folder in name order; yield a line for each that fails."""
    for hook in _hooks(folder):
        failure = _failure(hook, limit)
        if failure:
            yield f"hook {hook} {failure}"


def _hooks(folder: Path) -> list[Path]:
    try:
        found = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError:
        return []
    # What editors and package managers leave beside a file is no hook.
    return [path for path in found if not path.name.startswith(".") and not path.name.endswith(("~", ".bak"))]


def _failure(hook: Path, limit: float) -> str:
    """Run one hook; say what is wrong with it, or nothing."""
    if not os.access(str(hook), os.X_OK):
        return "is not executable: skipped"
    try:
        # What it prints goes to the box's log, not into the output of the command; its own session,
        # so that what it left hanging can be ended as a whole.
        hung = subprocess.Popen([str(hook)], stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)
    except OSError as error:
        return f"cannot be run: {error.strerror}"
    try:
        status = hung.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(hung.pid, signal.SIGKILL)
        hung.wait()
        return f"did not end within {limit:g} s: killed"
    return f"failed with status {status}" if status else ""
