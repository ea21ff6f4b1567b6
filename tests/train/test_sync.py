"""Claims: results count as copied only when they were compared where they arrived."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hermitcrab.errors import UserError
from hermitcrab.train.gate import sync
from hermitcrab.train.gate.sync import Target
from tests.rented import put

TOOLS = [
    pytest.param(
        tool, marks=pytest.mark.skipif(not shutil.which(tool), reason=f"{tool} is not installed on this machine")
    )
    for tool in ("rsync", "rclone")
]
AWKWARD = ("log.txt", "a 'b' \"c\".pt", "line\nbreak.pt", "-rf", "checkpoints/step_00000003/state.pt", "überall.pt")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with files of all kinds of names, and with what stays here."""
    for name in (*AWKWARD, "lock", "hold", "attached/17"):
        put(tmp_path / "run", name, name * 1000)
    return tmp_path / "run"


def local(tool: str, folder: Path) -> Target:
    """A folder as the target of a tool."""
    return Target(tool, str(folder), local=True)


def files(folder: Path) -> set[str]:
    """Return the names below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("tool", TOOLS)
def test_all_but_the_supervisors_own_files_arrives(tool: str, run: Path, tmp_path: Path) -> None:
    """Below the run's name, whatever the files are called, and a second time too."""
    for _ in range(2):
        done = sync.sync([run], local(tool, tmp_path / "to there"), "exp", 60)
        assert done.ok, done.said
        assert files(tmp_path / "to there/exp") == set(AWKWARD)


@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_wrong_at_the_destination_is_put_right(tool: str, run: Path, tmp_path: Path) -> None:
    """Of the same size and time, but not of the same content."""
    target = local(tool, tmp_path / "to")
    assert sync.sync([run], target, "exp", 60).ok
    copy = tmp_path / "to/exp/log.txt"
    times = os.stat(copy)
    copy.write_text(copy.read_text().replace("l", "L", 1))
    os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))
    done = sync.sync([run], target, "exp", 3, pauses=(5.0,))
    assert not done.ok
    assert "log.txt" in done.said or "differences" in done.said


@pytest.mark.parametrize("tool", TOOLS)
def test_more_folders_lie_beside_the_runs_files(tool: str, run: Path, tmp_path: Path) -> None:
    """Each under a name of its own."""
    put(tmp_path / "out", "model.pt", "weights")
    assert sync.sync([run, tmp_path / "out"], local(tool, tmp_path / "to"), "exp", 60).ok
    assert (tmp_path / "to/exp/results-1-out/model.pt").read_text() == "weights"


def stub(tmp_path: Path, tool: str, body: str) -> dict[str, str]:
    """Put a tool's stub on a PATH of its own; it records its arguments."""
    put(tmp_path / "bin", tool, f'#!/bin/sh\nprintf "%s\\n" "$*" >> "{tmp_path}/calls"\n{body}\n', 0o755)
    return {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}


def test_a_copy_that_fails_is_tried_again_until_the_time_is_over(run: Path, tmp_path: Path) -> None:
    """With growing pauses, and what the tool said last is told."""
    environ = stub(tmp_path, "rsync", 'echo "ssh: connect to host h: no route" >&2; exit 255')
    slept: list[float] = []
    pauses = (2.0, 10.0, 100.0)
    done = sync.sync([run], Target("rsync", "h:x", local=False), "exp", 45, environ, pauses=pauses, sleep=slept.append)
    assert (done.ok, done.tries, slept) == (False, 3, [2.0, 10.0])
    assert done.said == "rsync: status 255: ssh: connect to host h: no route"


def test_a_copy_that_works_at_the_third_try_is_good(run: Path, tmp_path: Path) -> None:
    """A network that comes back is waited for."""
    environ = stub(tmp_path, "rsync", f'[ $(wc -l < "{tmp_path}/calls") -ge 3 ] || exit 12')
    done = sync.sync([run], Target("rsync", "h:x", local=False), "exp", 600, environ, sleep=lambda _: None)
    assert (done.ok, done.tries) == (True, 3)


def test_a_difference_that_stays_is_no_success(run: Path, tmp_path: Path) -> None:
    """The tool's own status says that all is well."""
    environ = stub(tmp_path, "rsync", 'case "$*" in *--dry-run*) echo "<fc........ state.pt" ;; esac')
    done = sync.sync([run], Target("rsync", "h:x", local=False), "exp", 1, environ, pauses=(9.0,))
    assert (done.ok, done.said) == (False, "differs at the destination: <fc........ state.pt")


def test_a_tool_that_hangs_is_ended(run: Path, tmp_path: Path) -> None:
    """At the end of the time that it was given."""
    environ = stub(tmp_path, "rsync", "sleep 60")
    done = sync.sync([run], Target("rsync", "h:x", local=False), "exp", 1, environ)
    assert (done.ok, done.said) == (False, "rsync did not end in time")


def test_a_store_without_checksums_is_read_back(run: Path, tmp_path: Path) -> None:
    """A comparison by size alone is none."""
    body = 'case "$*" in *--download*) ;; check*) echo "NOTICE: 3 hashes could not be checked" ;; esac'
    environ = stub(tmp_path, "rclone", body)
    assert sync.sync([run], Target("rclone", "crypt:x", local=False), "exp", 60, environ).ok
    assert "--download" in (tmp_path / "calls").read_text().splitlines()[-1]


READ = (
    ("/mnt/nas", "rsync", "/mnt/nas", True),
    ("rclone:drive:a/b", "rclone", "drive:a/b", False),
    ("drive:a/b", "rclone", "drive:a/b", False),
    ("me@home:runs", "rsync", "me@home:runs", False),
    ("home:runs", "rsync", "home:runs", False),
    ("rsync://home/runs", "rsync", "rsync://home/runs", False),
)


@pytest.mark.parametrize(("dest", "tool", "place", "is_local"), READ)
def test_dest_is_read(dest: str, tool: str, place: str, is_local: bool, tmp_path: Path) -> None:
    """A configured remote of rclone is one; all else with a colon is a host."""
    environ = stub(tmp_path, "rclone", "echo drive:") | stub(tmp_path, "rsync", "")
    assert sync.target(dest, environ) == Target(tool, place, is_local)


@pytest.mark.parametrize("dest", ["", "-e sh:x", "rclone:-x", "a\nb"])
def test_what_is_no_place_is_refused(dest: str) -> None:
    """Before anything runs."""
    with pytest.raises(UserError, match="is no place"):
        sync.target(dest)


def test_a_missing_tool_is_named(tmp_path: Path) -> None:
    """Before step 0."""
    with pytest.raises(UserError, match="needs rsync, which is not installed"):
        sync.target("me@home:x", {"PATH": str(tmp_path)})


def test_the_rehearsal_says_what_the_tool_said(tmp_path: Path) -> None:
    """A wrong key shows at minute 0, not at hour 20."""
    environ = stub(tmp_path, "rsync", 'echo "Permission denied (publickey)." >&2; exit 255')
    with pytest.raises(UserError, match=r"--sync h:x does not work: rsync: status 255: Permission denied"):
        sync.rehearse(Target("rsync", "h:x", local=False), "exp", environ)
