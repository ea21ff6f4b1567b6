"""File systems that are not like a local disk, and many starts in one folder."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from hermitcrab import Checkpointer
from hermitcrab.checkpoint import commit, probe, store
from tests.checkpoint import driver

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:40 / /mnt rw - tmpfs tmpfs rw
24 23 0:41 / /mnt/bucket\\040one rw - fuse.gcsfuse bucket rw
25 23 0:42 / /mnt/s3 rw - fuse mountpoint-s3 rw
26 23 0:43 / /mnt/disk rw - fuse.juicefs JuiceFS:x rw
"""


@pytest.mark.parametrize(
    ("folder", "kind", "atomic"),
    [
        ("/root/x", "ext4", True),
        ("/mnt/x", "tmpfs", True),
        ("/mntx", "ext4", True),
        ("/mnt/bucket one/runs", "fuse.gcsfuse of bucket", False),
        ("/mnt/s3/runs", "fuse of mountpoint-s3", False),
        ("/mnt/disk/runs", "fuse.juicefs of JuiceFS:x", True),
    ],
)
def test_the_kind_of_a_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, kind: str, atomic: bool
) -> None:
    """By the longest mount above the folder; where a rename is many copies, that is known."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    monkeypatch.setattr(probe, "_renames", lambda _: True)
    assert probe.probe(Path(folder), mounts) == {"kind": kind, "rename": True, "atomic": atomic}
    assert bool(list(probe.doubts(probe.probe(Path(folder), mounts)))) is not atomic


def test_the_probe_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the manifest; a rename that fails, or does nothing, is seen; a disk that is full is no such."""
    assert probe.probe(folder)["rename"] is True
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *_: None)
        assert probe.probe(folder)["rename"] is False
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing(errno.ENOSYS))
        found = probe.probe(folder)
        assert (found["rename"], found["atomic"]) == (False, False)
        assert "nothing can be renamed" in next(probe.doubts(found))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", failing(errno.ENOSPC))
        assert probe.probe(folder)["rename"] is None
    assert list(folder.iterdir()) == []
    train(folder, 1)
    assert store.verify(store.found(folder)[0].path)["filesystem"]["rename"] is True


def failing(code: int) -> Any:
    """A call that fails."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_without_rename(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied, the manifest last: cut off at any file, it is no checkpoint, and the one before is good."""
    rename, copy = os.rename, shutil.copyfile

    def no_folders(old: Any, new: Any) -> None:
        failing(errno.ENOSYS)() if os.path.isdir(old) else rename(old, new)

    monkeypatch.setattr(os, "rename", no_folders)
    commit.commit(folder, 1, {"run": "r"}, driver.files(1))
    assert store.reason_of(folder / "step_00000001") is None and not list(folder.glob(".tmp*"))
    for name in ("state.pt", store.MANIFEST):
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "copyfile", lambda old, new, last=name: _copy_until(copy, last, old, new))
            with pytest.raises(KeyboardInterrupt):
                commit.commit(folder, 2, {"run": "r"}, driver.files(2))
        assert "manifest.json" in (store.reason_of(folder / "step_00000002") or "")
        shutil.rmtree(folder / "step_00000002")


def _copy_until(copy: Any, last: str, old: Path, new: Path) -> None:
    if new.name == last:
        raise KeyboardInterrupt
    copy(old, new)


def train(folder: Path, last: int, least: int = 2, **options: Any) -> None:
    """Do steps up to ``last``, from where it was, and end; ``least`` good ones of the run are there all the time."""
    given = {"every_steps": 1, "rehearse": False, **options}
    with Checkpointer(folder, model=nn.Linear(2, 2), **given) as ckpt:
        for step in range(ckpt.resume(), last):
            ckpt.step(step)
            assert len(good(folder, options.get("run"))) >= min(least, step)
            ckpt.wait()


def good(folder: Path, run: str | None = None) -> list[int]:
    """The steps of good checkpoints."""
    there = [item for item in store.found(folder) if store.reason_of(item.path) is None]
    return sorted(item.step for item in there if run in {None, store.verify(item.path)["run"]})


def test_never_fewer_than_two(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three starts, two runs in one folder, a damaged newest, and a save in flight when the old ones go."""
    train(folder, 4, run="other")
    for last in (3, 6, 9):
        train(folder, last, run="mine")
        assert good(folder, "mine") == [last - 2, last - 1] and good(folder, "other") == [2, 3]
    newest = max(path for path in folder.glob("step_*8*"))
    (newest / "state.pt").write_bytes(b"")
    train(folder, 9, least=1, run="mine")
    assert good(folder, "mine") == [7, 8] and (folder / "bad").is_dir()
    seal, may, sealing = commit.seal, threading.Event(), threading.Event()

    def slow(*words: Any) -> None:
        seal(*words)
        sealing.set()
        may.wait(10)

    monkeypatch.setattr(commit, "seal", slow)
    ckpt = Checkpointer(folder, model=nn.Linear(2, 2), run="mine", every_steps=1, rehearse=False)
    ckpt.step(ckpt.resume())
    assert sealing.wait(10) and good(folder, "mine") == [7, 8], "the old ones stay until the new one is there"
    may.set()
    ckpt.close()
    assert good(folder, "mine") == [8, 9] and good(folder, "other") == [2, 3]
