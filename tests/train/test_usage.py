"""Claims: memory is measured against the limit that kills; CPU, network and disks are counted where they are used."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hermitcrab.train.watch.usage import Box

GIB = 1 << 30


def machine(root: Path, *, version: str = "v2", limit: int | None = 8 * GIB) -> Path:
    """Make a box whose cgroup has a memory limit; returns the cgroup's folder."""
    folder = root / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n")
    if version == "v2":
        (root / "proc/self/cgroup").write_text("0::/\n")
        (root / "proc/self/mountinfo").write_text("1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        (folder / "memory.max").write_text(f"{'max' if limit is None else limit}\n")
        (folder / "memory.current").write_text(f"{5 * GIB}\n")
        (folder / "memory.stat").write_text(f"anon 1\ninactive_file {1 * GIB}\n")
        (folder / "cpu.max").write_text("200000 100000\n")
        (folder / "cpu.stat").write_text("usage_usec 5\nthrottled_usec 2500000\n")
        return folder
    (root / "proc/self/cgroup").write_text("4:memory:/\n3:cpu,cpuacct:/\n")
    (root / "proc/self/mountinfo").write_text(
        "1 0 0:1 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "2 0 0:2 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    )
    for name in ("memory", "cpu"):
        (folder / name).mkdir()
    (folder / "memory/memory.limit_in_bytes").write_text(f"{2**63 - 4096 if limit is None else limit}\n")
    (folder / "memory/memory.usage_in_bytes").write_text(f"{5 * GIB}\n")
    (folder / "memory/memory.stat").write_text(f"total_inactive_file {1 * GIB}\n")
    (folder / "cpu/cpu.stat").write_text("nr_throttled 5\nthrottled_time 2500000000\n")
    return folder


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_memory_is_that_of_the_cgroup_without_its_cache(tmp_path: Path, version: str) -> None:
    """The cache is given back before anybody is killed."""
    machine(tmp_path, version=version)
    box = Box(tmp_path)
    assert box.ram() == (4 * GIB, 8 * GIB)
    assert box.cpu(None, 1.0).throttled == 2.5


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_without_a_limit_it_is_that_of_the_machine(tmp_path: Path, version: str) -> None:
    """What is available is not in use."""
    machine(tmp_path, version=version, limit=None)
    assert Box(tmp_path).ram() == (32 * GIB, 64 * GIB)


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    """An empty /proc is no reason to fail."""
    box = Box(tmp_path)
    assert box.ram() == (None, None)
    assert box.cpu(1, 2.0) == (2.0, None, None, None, None, None)


def test_the_disk_is_that_of_the_folder_or_of_where_it_will_be(tmp_path: Path) -> None:
    """Checkpoints may not have begun yet."""
    box = Box()
    free = box.disk_free(tmp_path / "not/yet/there")
    found = os.statvfs(tmp_path)
    assert free is not None
    assert abs(free - found.f_bavail * found.f_frsize) < 1 << 30


def test_a_network_disk_is_not_asked(tmp_path: Path) -> None:
    """Its server may be gone, and its figures are those of a cluster."""
    machine(tmp_path)
    (tmp_path / "proc/self/mountinfo").write_text("1 0 0:1 / /data rw - nfs4 server:/x rw\n")
    asked: list[str] = []

    def statvfs(path: str) -> os.statvfs_result:
        asked.append(path)
        return os.statvfs("/")

    assert Box(tmp_path, statvfs=statvfs).disk_free(Path("/data/run/checkpoints")) is None
    assert not any("data" in path for path in asked)


def test_network_and_pressure_are_counted(tmp_path: Path) -> None:
    """Loopback is no network; two interfaces are added."""
    machine(tmp_path)
    (tmp_path / "proc/net").mkdir()
    (tmp_path / "proc/net/dev").write_text(
        "Inter-|   Receive\n face |bytes\n    lo: 999 1 0\n  eth0: 1000 5 0\n  eth1:2000 5 0\n"
    )
    (tmp_path / "proc/pressure").mkdir()
    (tmp_path / "proc/pressure/io").write_text("some avg10=0.00 avg60=0.00 total=1500000\nfull avg10=0 total=1\n")
    found = Box(tmp_path).cpu(None, 1.0)
    assert (found.received, found.waiting) == (3000, 1.5)


def test_the_cpu_time_is_that_of_the_whole_tree(tmp_path: Path) -> None:
    """A child with spaces and parentheses in its name counts; a stranger does not; a circle ends."""
    for pid, parent, name, used in (
        (10, 1, "sh", 100),
        (11, 10, "a (b) c", 300),
        (12, 11, "w", 50),
        (13, 1, "x", 9999),
    ):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} 0 0 0 0 0 0 0 0 0 {used} 0 0 0 20 0 1 0 5 0 0\n")
    found = Box(tmp_path).cpu(10, 1.0)
    tick = os.sysconf("SC_CLK_TCK")
    assert (found.tree, found.busiest) == (450 / tick, 300 / tick)


def test_a_real_process_is_seen_to_work() -> None:
    """From the kernel's own table."""
    box = Box()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        time.sleep(0.5)
        found = box.cpu(child.pid, 1.0)
        child.kill()
    assert found.tree is not None
    assert found.tree > 0.05
