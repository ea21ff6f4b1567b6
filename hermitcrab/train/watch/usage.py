"""What a run uses of its box: memory against the limit, the checkpoints' disk, CPU, network, waiting for disks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator, NamedTuple

from hermitcrab.box.disks import StatVfs, disk_at, read_mounts
from hermitcrab.box.limits import NO_LIMIT, Group, Limits, find_group, read_limits


class Cpu(NamedTuple):
    """Counters since some start, in seconds; compared with a later reading they are rates."""

    time: float
    tree: float | None  # CPU time of the training and all it started
    busiest: float | None  # of its busiest process
    throttled: float | None  # time for which the cgroup's quota made somebody wait
    received: float | None  # bytes from the network, loopback left out
    waiting: float | None  # time for which somebody waited for a disk


class Box:
    """Reads the box's figures; limits are read once, for they do not change."""

    def __init__(self, root: Path = Path("/"), *, statvfs: StatVfs = os.statvfs) -> None:
        self.root, self._statvfs = root, statvfs
        self.limits: Limits = read_limits(root, statvfs=statvfs)
        mounts = read_mounts(root)
        self._memory = find_group("memory", root, mounts)
        self._cpu = find_group("cpu", root, mounts)

    def ram(self) -> tuple[int | None, int | None]:
        """Return the memory in use and what may be used; the page cache is not in use."""
        limit = self.limits.memory
        for folder in self._memory.folders if self._memory else ():
            if _limited(folder, self._memory, limit):
                return _in_use(folder, self._memory), limit
        free = _fields(self.root / "proc/meminfo", ":").get("MemAvailable")
        machine = self.limits.machine_memory
        return (machine - free * 1024 if machine is not None and free is not None else None), limit

    def disk_free(self, folder: Path) -> int | None:
        """Return what is free where a folder is or will be; None where that cannot be known."""
        for path in (folder, *folder.parents):
            disk = disk_at(str(path), self.root, statvfs=self._statvfs)
            if not disk.note.startswith("cannot be read"):
                return disk.free
        return None

    def cpu(self, pid: int | None, now: float) -> Cpu:
        """Return the counters of now."""
        times = list(_times(self.root, pid)) if pid else []
        return Cpu(
            now,
            sum(times) if times else None,
            max(times) if times else None,
            _throttled(self._cpu),
            _received(self.root),
            _waiting(self.root),
        )


def _limited(folder: Path, group: Group | None, limit: int | None) -> bool:
    """Say whether this cgroup is the one whose limit counts."""
    name = "memory.max" if group and group.version == "v2" else "memory.limit_in_bytes"
    found = _number(folder / name)
    return found is not None and found < NO_LIMIT and (limit is None or found <= limit)


def _in_use(folder: Path, group: Group | None) -> int | None:
    v2 = bool(group and group.version == "v2")
    used = _number(folder / ("memory.current" if v2 else "memory.usage_in_bytes"))
    cache = _fields(folder / "memory.stat", " ").get("inactive_file" if v2 else "total_inactive_file", 0)
    return None if used is None else max(0, used - cache)


def _throttled(group: Group | None) -> float | None:
    if group is None:
        return None
    fields = [_fields(folder / "cpu.stat", " ") for folder in group.folders]
    v2 = [found["throttled_usec"] / 1e6 for found in fields if "throttled_usec" in found]
    v1 = [found["throttled_time"] / 1e9 for found in fields if "throttled_time" in found]
    return max(v2 + v1, default=None)


def _received(root: Path) -> float | None:
    fields = _fields(root / "proc/net/dev", ":")
    return float(sum(value for name, value in fields.items() if name != "lo")) if fields else None


def _waiting(root: Path) -> float | None:
    """Read the pressure on disks: "some avg10=… total=microseconds"."""
    line = _text(root / "proc/pressure/io").partition("\n")[0]
    total = line.rpartition("total=")[2]
    return int(total) / 1e6 if total.isdigit() else None


def _times(root: Path, pid: int) -> Iterator[float]:
    """Yield the CPU seconds of a process and of all below it."""
    tick = os.sysconf("SC_CLK_TCK")
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for entry in _processes(root):
        # The name stands in parentheses and may hold anything, so it is cut off at the last one.
        fields = _text(root / "proc" / entry / "stat").rpartition(")")[2].split()
        if len(fields) > 14:
            children.setdefault(int(fields[1]), []).append(int(entry))
            used[int(entry)] = (int(fields[11]) + int(fields[12])) / tick
    todo, seen = [pid], {pid}
    while todo:
        one = todo.pop()
        if one in used:
            yield used[one]
        new = [child for child in children.get(one, ()) if child not in seen]
        seen.update(new)
        todo += new


def _processes(root: Path) -> list[str]:
    try:
        return [name for name in os.listdir(root / "proc") if name.isdigit()]
    except OSError:
        return []


def _fields(path: Path, separator: str) -> dict[str, int]:
    """Read lines of a name and a number."""
    found = {}
    for line in _text(path).splitlines():
        name, _, rest = line.strip().partition(separator)
        word = rest.split(maxsplit=1)[0] if rest.strip() else ""
        if word.isdigit():
            found[name.strip()] = int(word)
    return found


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
