"""Claims: a kill for memory is known by the kernel's own count, and that of others is not taken for one's own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hermitcrab.box.disks import read_mounts
from hermitcrab.box.limits import find_group
from hermitcrab.train import oom
from hermitcrab.train.oom import Kills
from tests.rented import put
from tests.train.training import CRAB, Folder

V1 = "1 0 0:1 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
V2 = "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def box(root: Path, mounts: str, membership: str, files: dict[str, str]) -> Path:
    """A machine with these cgroups."""
    put(root, "proc/self/mountinfo", mounts)
    put(root, "proc/self/cgroup", membership)
    for name, text in files.items():
        put(root, name, text)
    return root


@pytest.mark.parametrize(
    ("mounts", "membership", "files", "found"),
    [
        (
            V2,
            "0::/job\n",
            {"sys/fs/cgroup/job/memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 0\n"},
            Kills(2, "memory.events of its cgroup"),
        ),
        (
            V1,
            "4:memory:/job\n",
            {"sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"},
            Kills(5, "memory.oom_control of its cgroup"),
        ),
        # The root of all has no such file; then the machine's count is its own.
        (V2, "0::/\n", {"proc/vmstat": "pgfault 1\noom_kill 7\n"}, Kills(7, "/proc/vmstat")),
        ("", "", {"proc/vmstat": "oom_kill 7\n"}, Kills(7, "/proc/vmstat")),
        # In a cgroup of its own the machine's count is that of strangers as well.
        (V2, "0::/a/b\n", {"proc/vmstat": "oom_kill 7\n"}, None),
        ("", "", {}, None),
        ("", "", {"proc/vmstat": "oom_kill many\n"}, None),
    ],
)
def test_kills_are_counted(tmp_path: Path, mounts: str, membership: str, files: dict[str, str], found: Kills) -> None:
    """Where the kernel counts them for us."""
    assert oom.kills(box(tmp_path, mounts, membership, files)) == found


def test_only_a_count_that_grew_is_a_kill() -> None:
    """Of one and the same counter."""
    before, after = Kills(2, "a"), Kills(3, "a")
    assert oom.since(before, after) == "a: oom_kill went from 2 to 3"
    for pair in ((before, before), (after, before), (before, Kills(3, "b")), (None, after), (before, None)):
        assert oom.since(*pair) == ""


@pytest.fixture
def small() -> Iterator[Path]:
    """A cgroup of 150 MB below this one."""
    group = find_group("memory", Path("/"), read_mounts(Path("/")))
    if group is None or not group.folders:
        pytest.skip("no memory cgroup here")
    folder = group.folders[0] / f"crab-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / {"v1": "memory.limit_in_bytes", "v2": "memory.max"}[group.version]).write_text("150000000")
    except OSError:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip("this user may make no memory cgroup")
    yield folder
    for _ in range(100):
        with suppress(OSError):
            folder.rmdir()
            break
        time.sleep(0.1)


def test_a_real_kill_for_memory_is_told_from_any_other(small: Path, folder: Folder) -> None:
    """By the kernel itself: the evidence is its count, and there is no restart into the same wall."""
    code = "held = []\nwhile True: held.append(bytearray(b'x' * 10_000_000))"
    line = f'echo $$ > "{small}/cgroup.procs" && exec "$@"'
    command = ["sh", "-c", line, "sh", *CRAB, "train", "--name", "run", "--", sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=folder.path, env=folder.environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 137, done.stdout
    state = folder.state()
    assert (state["verdict"], state["failure"], state["attempt"]) == ("failed", "host-oom", 1)
    assert "of its cgroup: oom_kill went from 0 to 1" in state["reason"]
