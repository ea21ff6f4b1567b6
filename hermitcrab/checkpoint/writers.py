"""Who writes a temporary folder, spelled in its name, and whether that process is dead.

A pid alone is no name: in a container that starts again the same small pids come back, so the start
time of the process and the boot of the machine belong to it.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

PROC = Path("/proc")


def temporary_name(name: str) -> str:
    """Name the folder in which this process writes ``name``."""
    return f".tmp_{name}.{_host()}.{_boot()}.{os.getpid()}.{_started(os.getpid())}"


def is_dead(name: str) -> bool:
    """Say whether the writer of such a folder is dead for certain; of another machine one cannot know."""
    parts = name.rsplit(".", 4)
    if len(parts) != 5 or parts[1] != _host():
        return False
    _, _, boot, pid, started = parts
    if boot != _boot():
        return True
    return not pid.isdigit() or _started(int(pid)) != started


def _host() -> str:
    return re.sub(r"[^\w-]", "-", socket.gethostname()) or "nowhere"


def _boot() -> str:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return "0"


def _started(pid: int) -> str | None:
    """When a process started, in ticks since the boot; None when there is no such process."""
    try:
        # The command's name may hold spaces and brackets: count behind its last bracket.
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
