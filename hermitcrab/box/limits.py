"""What the box may use of its machine: CPUs, memory and shared memory, by cgroup v1 or v2.

A container sees the CPUs and the memory of its host, while its cgroup, or any above it, allows less.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable, Iterator, NamedTuple, Sequence

from hermitcrab.box.disks import Disk, Mount, StatVfs, disk_at, find_mount, read_mounts

NO_LIMIT = 1 << 60  # cgroup v1 writes "none" as the largest number it has


class Limits(NamedTuple):
    """What may be used, and what there is; None means unknown, and the source says what decided."""

    cpus: float | None
    cpu_source: str
    machine_cpus: int | None
    memory: int | None
    memory_source: str
    machine_memory: int | None
    shm: Disk


class Group(NamedTuple):
    """The own cgroup and those above it, as far as they can be seen."""

    version: str  # v1 or v2
    folders: tuple[Path, ...]


def read_limits(root: Path = Path("/"), *, statvfs: StatVfs = os.statvfs) -> Limits:
    """Read the limits of this process; of several that apply, the smallest."""
    mounts = read_mounts(root)
    machine_cpus = _count(_text(root / "sys/devices/system/cpu/online"))
    cpus, cpu_source = _cpus(root, mounts, machine_cpus)
    machine_memory = _machine_memory(root)
    memory, memory_source = _memory(find_group("memory", root, mounts), machine_memory)
    shm = _shm(root, mounts, statvfs)
    return Limits(cpus, cpu_source, machine_cpus, memory, memory_source, machine_memory, shm)


def find_group(controller: str, root: Path, mounts: Sequence[Mount]) -> Group | None:
    """Find the own cgroup of a controller; v1 where it is mounted, else v2."""
    own = dict(_memberships(root))
    for version, kind, name in (("v1", "cgroup", controller), ("v2", "cgroup2", "")):
        for mount in mounts:
            right = mount.type == kind and (version == "v2" or controller in mount.super_options)
            if right and name in own:
                return Group(version, tuple(_upwards(own[name], mount, root)))
    return None


def _memberships(root: Path) -> Iterator[tuple[str, str]]:
    """Yield controller and path of each line of /proc/self/cgroup; v2's controller is the empty text."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            yield controller, path


def _upwards(path: str, mount: Mount, root: Path) -> Iterator[Path]:
    """Yield the folder of a cgroup and of each one above it, up to what is mounted."""
    top = root / mount.path.lstrip("/")
    prefix = mount.root.rstrip("/")
    # A path outside of what is mounted belongs to a namespace that this one cannot see into.
    seen = path == prefix or path.startswith(prefix + "/")
    parts = [part for part in path[len(prefix) :].split("/") if part] if seen else []
    if ".." in parts:
        parts = []
    for depth in range(len(parts), -1, -1):
        yield top.joinpath(*parts[:depth])


def _cpus(root: Path, mounts: Sequence[Mount], machine: int | None) -> tuple[float | None, str]:
    """Return the CPUs that may be used: those allowed, or the share of their time that is."""
    allowed = _allowed(root)
    usable = allowed if allowed is not None else machine
    group = find_group("cpu", root, mounts)
    quota = _smallest(group, _cpu_v1 if group and group.version == "v1" else _cpu_v2)
    if group and quota is not None and (usable is None or quota <= usable):
        return quota, f"cgroup {group.version} quota"
    known = "" if group else ", quota unknown"
    if allowed is not None and machine is not None and allowed < machine:
        return allowed, "cpuset" + known
    return usable, ("no limit" if group else "quota unknown") if usable is not None else "unknown"


def _memory(group: Group | None, machine: int | None) -> tuple[int | None, str]:
    if group is None:
        return None, "limit unknown"
    limit = _smallest(group, _memory_v1 if group.version == "v1" else _memory_v2)
    if limit is not None and (machine is None or limit <= machine):
        return int(limit), f"cgroup {group.version}"
    return machine, "no limit" if machine is not None else "unknown"


def _smallest(group: Group | None, read: Callable[[Path], float | None]) -> float | None:
    found = [read(folder) for folder in group.folders] if group else []
    return min((limit for limit in found if limit is not None), default=None)


def _cpu_v1(folder: Path) -> float | None:
    return _share(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))


def _cpu_v2(folder: Path) -> float | None:
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    return _share(quota, period)


def _share(quota: str, period: str) -> float | None:
    """Return how many CPUs a quota is worth; "max" and -1 are none."""
    time, of = _number(quota), _number(period)
    return time / of if time and of else None


def _memory_v1(folder: Path) -> float | None:
    limits = [_number(_text(folder / "memory.limit_in_bytes"))]
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        # This one knows the limits of cgroups above that the container cannot see.
        if name == "hierarchical_memory_limit":
            limits.append(_number(value))
    return min((limit for limit in limits if limit is not None and limit < NO_LIMIT), default=None)


def _memory_v2(folder: Path) -> float | None:
    return _number(_text(folder / "memory.max"))


def _machine_memory(root: Path) -> int | None:
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        number = _number(value.replace("kB", ""))
        if name == "MemTotal" and number is not None:
            return number * 1024
    return None


def _allowed(root: Path) -> int | None:
    """Count the CPUs that this process may run on: its cpuset and its affinity."""
    for line in _text(root / "proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            # Without a cpuset the list may name CPUs that the machine could have but has not.
            return _count(value, _text(root / "sys/devices/system/cpu/online"))
    return None


def _count(text: str, among: str = "") -> int | None:
    """Count the CPUs of a list such as 0-3,8; None when it is none."""
    numbers, others = _numbers(text), _numbers(among)
    return len(numbers & others if others else numbers) or None


def _numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        start, end = _number(first), _number(last or first)
        if start is None or end is None:
            return set()
        found.update(range(start, end + 1))
    return found


def _shm(root: Path, mounts: Sequence[Mount], statvfs: StatVfs) -> Disk:
    mount = find_mount("/dev/shm", mounts)  # noqa: S108 - the kernel's place, not a temporary file
    if mount is None or mount.path != "/dev/shm":  # noqa: S108
        return Disk("/dev/shm", None, None, "", "not mounted")  # noqa: S108
    return disk_at(mount.path, root, statvfs=statvfs)


def _number(text: str) -> int | None:
    """Read a whole number; a limit of -1, "max" or nothing is none."""
    digits = text.strip()
    return int(digits) if digits.isascii() and digits.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
