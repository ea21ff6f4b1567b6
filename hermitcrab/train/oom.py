"""Whether the kernel killed for memory: its counters before and after, since a SIGKILL does not say who sent it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hermitcrab.box.disks import read_mounts
from hermitcrab.box.limits import find_group

FILES = {"v1": "memory.oom_control", "v2": "memory.events"}


class Kills(NamedTuple):
    """How many processes were killed for memory, and whose count that is."""

    number: int
    source: str


def kills(root: Path = Path("/")) -> Kills | None:
    """Count them in this container, else on this machine; None where neither can be read."""
    group = find_group("memory", root, read_mounts(root))
    if group and group.folders:
        count = _count(group.folders[0] / FILES[group.version])
        if count is not None:
            return Kills(count, f"{FILES[group.version]} of its cgroup")
    # The machine's own count is that of all its containers: it is no witness inside one.
    if group is None or len(group.folders) <= 1:
        count = _count(root / "proc/vmstat")
        return None if count is None else Kills(count, "/proc/vmstat")
    return None


def since(before: Kills | None, after: Kills | None) -> str:
    """Say who saw a kill between two counts; empty when nobody did."""
    if before and after and before.source == after.source and after.number > before.number:
        return f"{after.source}: oom_kill went from {before.number} to {after.number}"
    return ""


def _count(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None
