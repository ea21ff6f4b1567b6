"""The box's disks: what is mounted where, and how much of it is free, as far as that can be known.

The size of a network file system is that of the whole cluster (two petabytes, say), of which a quota
gives away a little; such figures are unknown, not believed. Nor is a network mount even asked: one
whose server is gone would never answer.
"""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Callable, NamedTuple, Sequence

NETWORK = frozenset(
    [
        *("afs", "beegfs", "ceph", "cifs", "fuse", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "orangefs"),
        *("panfs", "pvfs2", "smb3", "smbfs", "wekafs"),
    ]
)
LOCAL_FUSE = ("fuse.fuse-overlayfs", "fuse.mergerfs")
# A project quota is not among them: statvfs tells what it leaves.
QUOTAS = re.compile(r"(usr|grp|u|g)?j?quota(=.+)?")
NO_DISKS = frozenset(
    ("autofs", "cgroup", "cgroup2", "devtmpfs", "iso9660", "overlay", "proc", "ramfs", "squashfs", "sysfs", "tmpfs")
)
TOO_BIG = 10**15  # no disk of one machine has a petabyte

StatVfs = Callable[[str], os.statvfs_result]


class Disk(NamedTuple):
    """One place to write to; None means unknown, and the note says why."""

    path: str
    total: int | None
    free: int | None
    device: str = ""
    note: str = ""


class Mount(NamedTuple):
    """A line of /proc/self/mountinfo."""

    number: str  # major:minor of the device
    root: str  # what of the file system is mounted
    path: str
    options: tuple[str, ...]
    type: str
    device: str
    super_options: tuple[str, ...]


def read_mounts(root: Path = Path("/")) -> tuple[Mount, ...]:
    """Return what is mounted, in order; nothing when the kernel does not tell."""
    try:
        lines = (root / "proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return ()
    return tuple(mount for mount in map(_parse, lines) if mount)


def system_disk(root: Path = Path("/"), *, statvfs: StatVfs = os.statvfs) -> Disk:
    """Return the disk that / lies on."""
    return disk_at("/", root, statvfs=statvfs)


def data_disk(patterns: Sequence[str], root: Path = Path("/"), *, statvfs: StatVfs = os.statvfs) -> Disk | None:
    """Return the first disk beside the system's that is mounted at one of the places; a plain folder is none."""
    mounts = read_mounts(root)
    system = find_mount("/", mounts)
    for pattern in patterns:
        for mount in mounts:
            second = system is None or mount.number != system.number
            if second and _is_at(mount.path, pattern) and find_mount(mount.path, mounts) == mount and _is_disk(mount):
                return disk_at(mount.path, root, statvfs=statvfs)
    return None


def disk_at(path: str, root: Path = Path("/"), *, statvfs: StatVfs = os.statvfs) -> Disk:
    """Return the disk that an absolute path lies on, with the space that is truly free there."""
    mount = find_mount(path, read_mounts(root))
    device, doubt = (mount.device, _doubt(mount)) if mount else ("", "")
    if doubt:
        return Disk(path, None, None, device, doubt)
    try:
        figures = statvfs(str(root / path.lstrip("/")))
    except OSError as error:
        return Disk(path, None, None, device, f"cannot be read: {error.strerror}")
    total, free = figures.f_blocks * figures.f_frsize, figures.f_bavail * figures.f_frsize
    if total == 0:
        return Disk(path, None, None, device, "reports no size")
    if total >= TOO_BIG:
        return Disk(path, None, None, device, f"reports {size(total)}, which is not believed")
    if mount and "ro" in mount.options:
        return Disk(path, total, 0, device, "read-only")
    return Disk(path, total, free, device, "container layer" if mount and mount.type == "overlay" else "")


def find_mount(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """Return the mount that a path lies on: the deepest, and of several at one place the last."""
    found = None
    for mount in mounts:
        inside = path == mount.path or path.startswith(mount.path.rstrip("/") + "/")
        if inside and (found is None or len(mount.path) >= len(found.path)):
            found = mount
    return found


def size(number: int | None) -> str:
    """Say a number of bytes the way `df -h` does."""
    if number is None:
        return "unknown"
    amount, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def _parse(line: bytes) -> Mount | None:
    # id parent major:minor root path options [optional ...] - type device super-options
    before, dash, after = line.partition(b" - ")
    left, right = [[_unescape(field) for field in half.split(b" ")] for half in (before, after)]
    if not dash or len(left) < 6 or len(right) < 2:
        return None
    options = tuple(left[5].split(","))
    return Mount(left[2], left[3], left[4], options, right[0], right[1], tuple([*right, ""][2].split(",")))


def _unescape(field: bytes) -> str:
    plain = re.sub(rb"\\([0-3][0-7]{2})", lambda match: bytes([int(match.group(1), 8)]), field)
    return plain.decode("utf-8", "surrogateescape")


def _is_at(path: str, pattern: str) -> bool:
    # fnmatch alone would let * stand for several folders.
    return path.count("/") == pattern.count("/") and fnmatchcase(path, pattern)


def _is_disk(mount: Mount) -> bool:
    return mount.type not in NO_DISKS and "ro" not in mount.options


def _doubt(mount: Mount) -> str:
    """Say why statvfs would not tell the truth about a mount; nothing when it does."""
    if mount.type in NETWORK or (mount.type.startswith("fuse.") and mount.type not in LOCAL_FUSE):
        return f"network file system ({mount.type}): a quota decides"
    if any(QUOTAS.fullmatch(option) for option in mount.super_options):
        return f"{mount.type} with user quotas: `quota` tells what is left"
    return ""
