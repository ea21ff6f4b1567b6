"""Limits: the smallest of what the own cgroup and those above it allow, by v1 and v2."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hermitcrab.box import limits

GIB = 1 << 30
V2 = "30 1 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate"
NONE_V1 = "9223372036854771712"


def plant(root: Path, files: dict[str, str]) -> Path:
    """Make a fake machine of 128 CPUs and 1 TiB, of which the process may use what the files say."""
    machine = {
        "sys/devices/system/cpu/online": "0-127\n",
        "proc/meminfo": f"MemFree: 1 kB\nMemTotal:       {1 << 30} kB\n",
        "proc/self/status": "Name:\tcrab\nCpus_allowed_list:\t0-127\n",
        "proc/self/mountinfo": V2 + "\n",
        "proc/self/cgroup": "0::/\n",
    }
    for name, text in {**machine, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v1(*controllers: str, top: str = "/") -> str:
    """Build the mounts of cgroup v1 controllers."""
    line = "40 1 0:{n} {top} /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}\n"
    return "".join(line.format(n=40 + n, top=top, name=name) for n, name in enumerate(controllers))


def test_a_container_of_v2(tmp_path: Path) -> None:
    """In its own namespace a container's cgroup is the root of what it sees."""
    found = limits.read_limits(
        plant(
            tmp_path,
            {"sys/fs/cgroup/cpu.max": "1250000 100000\n", "sys/fs/cgroup/memory.max": f"{90 * GIB}\n"},
        )
    )
    assert (found.cpus, found.cpu_source, found.machine_cpus) == (12.5, "cgroup v2 quota", 128)
    assert (found.memory, found.memory_source, found.machine_memory) == (90 * GIB, "cgroup v2", 1 << 40)


def test_a_limit_above_the_own_cgroup_counts(tmp_path: Path) -> None:
    """A job's step has no limit of its own, the job above it has."""
    found = limits.read_limits(
        plant(
            tmp_path,
            {
                "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
                "sys/fs/cgroup/slurm/job_7/step_0/memory.max": "max\n",
                "sys/fs/cgroup/slurm/job_7/step_0/cpu.max": "800000 100000\n",
                "sys/fs/cgroup/slurm/job_7/memory.max": f"{32 * GIB}\n",
                "sys/fs/cgroup/slurm/job_7/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/slurm/memory.max": f"{64 * GIB}\n",
            },
        )
    )
    assert (found.cpus, found.memory) == (4, 32 * GIB)


def test_a_sibling_cgroup_does_not_count(tmp_path: Path) -> None:
    """Only the way up is walked."""
    files = {
        "proc/self/cgroup": "0::/mine\n",
        "sys/fs/cgroup/mine/memory.max": "max\n",
        "sys/fs/cgroup/other/memory.max": "1\n",
    }
    found = limits.read_limits(plant(tmp_path, files))
    assert (found.memory, found.memory_source) == (1 << 40, "no limit")


@pytest.mark.parametrize("path", ["/docker/abc", "/", "/../..", "/elsewhere/deep"])
def test_a_mounted_part_of_the_tree(tmp_path: Path, path: str) -> None:
    """Where the mount is itself a cgroup deep in the host's tree, its top is the own one."""
    files = {
        "proc/self/cgroup": f"0::{path}\n",
        "proc/self/mountinfo": V2.replace("0:30 /", "0:30 /docker/abc") + "\n",
        "sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
    }
    assert limits.read_limits(plant(tmp_path, files)).memory == 2 * GIB


def test_below_a_mounted_part_of_the_tree(tmp_path: Path) -> None:
    """A path on the host leads to the folder of the same cgroup under the mount."""
    files = {
        "proc/self/cgroup": "0::/docker/abc/job\n",
        "proc/self/mountinfo": V2.replace("0:30 /", "0:30 /docker/abc") + "\n",
        "sys/fs/cgroup/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/job/memory.max": f"{GIB}\n",
    }
    assert limits.read_limits(plant(tmp_path, files)).memory == GIB


def test_a_cgroup_above_the_namespace(tmp_path: Path) -> None:
    """A path that leads out of the namespace is not followed out of the mount."""
    files = {
        "proc/self/cgroup": "0::/../other\n",
        "sys/fs/cgroup/memory.max": f"{8 * GIB}\n",
        "sys/fs/other/memory.max": "4096\n",
    }
    assert limits.read_limits(plant(tmp_path, files)).memory == 8 * GIB


def test_a_container_of_v1(tmp_path: Path) -> None:
    """AutoDL's mode without a GPU: half a core and 2 GiB, with several controllers in one mount."""
    mounts = v1("cpu,cpuacct", "memory", top="/docker/abc")
    files = {
        "proc/self/mountinfo": mounts,
        "proc/self/cgroup": "5:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "2147483648\n",
    }
    found = limits.read_limits(plant(tmp_path, files))
    assert (found.cpus, found.cpu_source) == (0.5, "cgroup v1 quota")
    assert (found.memory, found.memory_source) == (2 * GIB, "cgroup v1")


def test_no_limit_in_v1(tmp_path: Path) -> None:
    """v1 writes "none" as -1 for CPUs and as the largest number for memory."""
    files = {
        "proc/self/mountinfo": v1("cpu", "memory"),
        "proc/self/cgroup": "2:memory:/a\n1:cpu:/a\n0::/\n",
        "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{NONE_V1}\n",
        "sys/fs/cgroup/memory/a/memory.stat": f"cache 1\nhierarchical_memory_limit {NONE_V1}\n",
    }
    found = limits.read_limits(plant(tmp_path, files))
    assert (found.cpus, found.cpu_source, found.memory, found.memory_source) == (128, "no limit", 1 << 40, "no limit")
    (tmp_path / "proc/meminfo").unlink()
    assert limits.read_limits(tmp_path)[3:5] == (None, "unknown")


def test_v1_knows_of_limits_out_of_sight(tmp_path: Path) -> None:
    """A pod's limit above a container is only in memory.stat."""
    files = {
        "proc/self/mountinfo": v1("memory", top="/kubepods/pod/box"),
        "proc/self/cgroup": "2:memory:/kubepods/pod/box\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{NONE_V1}\n",
        "sys/fs/cgroup/memory/memory.stat": f"cache 1\nhierarchical_memory_limit {16 * GIB}\n",
    }
    assert limits.read_limits(plant(tmp_path, files)).memory == 16 * GIB


def test_v1_beside_v2(tmp_path: Path) -> None:
    """In the hybrid layout the controllers are in v1, and v2 only holds names."""
    files = {
        "proc/self/mountinfo": v1("memory") + V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified") + "\n",
        "proc/self/cgroup": "2:memory:/a\n0::/a\n",
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{GIB}\n",
    }
    found = limits.read_limits(plant(tmp_path, files))
    assert (found.memory, found.memory_source) == (GIB, "cgroup v1")


def test_a_cpuset_counts(tmp_path: Path) -> None:
    """The smaller of cpuset and quota; CPUs that the machine does not have are not allowed ones."""
    status = "Cpus_allowed_list:\t0-3,64-65,200-255\n"
    files = {"proc/self/status": status, "sys/fs/cgroup/cpu.max": "max 100000\n"}
    found = limits.read_limits(plant(tmp_path, files))
    assert (found.cpus, found.cpu_source) == (6, "cpuset")
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("200000 100000\n")
    assert limits.read_limits(tmp_path).cpus == 2


def test_a_limit_above_the_machine_is_none(tmp_path: Path) -> None:
    """More than there is cannot be used."""
    files = {"sys/fs/cgroup/memory.max": f"{2 << 40}\n", "sys/fs/cgroup/cpu.max": "25600000 100000\n"}
    found = limits.read_limits(plant(tmp_path, files))
    assert (found.memory, found.memory_source, found.cpus) == (1 << 40, "no limit", 128)


def test_without_cgroups_the_limits_are_unknown(tmp_path: Path) -> None:
    """Unknown is not "no limit"."""
    found = limits.read_limits(plant(tmp_path, {"proc/self/mountinfo": "", "proc/self/cgroup": ""}))
    assert (found.memory, found.memory_source) == (None, "limit unknown")
    assert (found.cpus, found.cpu_source) == (128, "quota unknown")


@pytest.mark.parametrize("garbage", ["", "?", "max", "-7 x", "1e9", "\u0663"])
def test_garbage_is_no_limit(tmp_path: Path, garbage: str) -> None:
    """A file that makes no sense limits nothing and breaks nothing."""
    files = {"sys/fs/cgroup/memory.max": garbage, "sys/fs/cgroup/cpu.max": garbage, "proc/self/status": garbage}
    found = limits.read_limits(plant(tmp_path, files))
    assert (found.memory, found.cpus) == (1 << 40, 128)


def test_an_empty_root_knows_nothing(tmp_path: Path) -> None:
    """Not even a /proc: all is unknown, nothing fails."""
    found = limits.read_limits(tmp_path)
    assert found[:6] == (None, "unknown", None, None, "limit unknown", None)
    assert (found.shm.total, found.shm.note) == (None, "not mounted")


def test_the_size_of_shared_memory(tmp_path: Path) -> None:
    """Docker gives 64 MiB; a plain folder /dev/shm is not shared memory."""
    mount = "50 1 0:55 / /dev/shm rw - tmpfs shm rw,size=65536k\n"

    def statvfs(path: str) -> os.statvfs_result:
        assert path == str(tmp_path / "dev/shm")
        return os.statvfs_result((4096, 4096, 16384, 16384, 16384, 0, 0, 0, 0, 255))

    found = limits.read_limits(plant(tmp_path, {"proc/self/mountinfo": mount}), statvfs=statvfs)
    assert found.shm.total == 64 << 20
    (tmp_path / "proc/self/mountinfo").write_text("1 0 8:1 / / rw - ext4 /dev/sda rw\n")
    assert limits.read_limits(tmp_path, statvfs=statvfs).shm.note == "not mounted"


def test_this_machine_has_limits() -> None:
    """On the real root, no more CPUs and memory may be used than there are."""
    found = limits.read_limits()
    assert found.cpus is not None
    assert 0 < found.cpus <= (os.cpu_count() or 1)
    assert found.memory is None or found.machine_memory is None or found.memory <= found.machine_memory
