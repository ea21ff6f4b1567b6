"""Every call of the operating system may fail, before its work or after it: training goes on, nothing is lost."""

from __future__ import annotations

import errno
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch
from torch import nn

from hermitcrab import Checkpointer
from hermitcrab.checkpoint import saver, store
from hermitcrab.errors import UserError

ROOT: Final = Path(__file__).parents[2]
NAMES: Final = "write fsync mkdir rename replace unlink rmdir statvfs scandir listdir stat"
# Where each is found when it is called.
CALLS: Final[dict[str, Any]] = {
    "open": (io, "open"),
    **{name: (os, name) for name in NAMES.split()},
}

REMOVING: Final = {"mkdir", "unlink", "rmdir", "scandir", "stat"}


@contextmanager
def every(names: tuple[str, ...], around: Callable[[str, Any, tuple[Any, ...], dict[str, Any]], Any]) -> Iterator[None]:
    """Let some calls of the operating system go through a function."""
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            owner, attribute = CALLS[name]
            work = getattr(owner, attribute)

            def call(*words: Any, name: str = name, work: Any = work, **options: Any) -> Any:
                return around(name, work, words, options)

            patch.setattr(owner, attribute, call)
            if name == "open":
                patch.setattr("builtins.open", call)
        yield


@contextmanager
def failing(name: str, number: int, *, after: bool) -> Iterator[list[int]]:
    """Let one call fail, the ``number``-th; how many there were is in the list."""
    count = [0]

    def around(_: str, work: Any, words: tuple[Any, ...], options: dict[str, Any]) -> Any:
        count[0] += 1
        if count[0] != number:
            return work(*words, **options)
        result: Any = work(*words, **options) if after else None
        if hasattr(result, "close"):
            result.close()
        raise OSError(errno.EIO, "planted")

    with every((name,), around):
        yield count


class Training:
    """A model that holds the number of its step."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.model = folder, nn.Linear(3, 3)
        # Not beside the training, so that each call fails in its place.
        self.ckpt = Checkpointer(folder, model=self.model, every_steps=1, rehearse=False, asynchronous=False)
        self.step = self.ckpt.resume()

    def go_on(self) -> None:
        """Do a step."""
        nn.init.constant_(self.model.weight, self.step)
        self.ckpt._saver.clock.last -= 1000  # after a failure it tries again within a minute
        self.ckpt.step(self.step, loss=0.5)
        self.step += 1


def look(folder: Path) -> list[int]:
    """The steps with a checkpoint's name, the newest first: all of them are whole."""
    found = store.found(folder)
    for item in found:
        store.verify(item.path)
        assert float(saver.load(item.path)["model"]["weight"][0, 0]) == item.step
    return [item.step for item in found]


@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_fails(folder: Path, name: str, after: bool) -> None:
    """Each call of a save in turn: the loop goes on, what was safe is safe, the next save comes, a resume finds it."""
    training = Training(folder)
    for _ in range(3):
        training.go_on()
    number, reached = 1, True
    while reached:
        safe = training.ckpt.saved
        assert safe is not None
        with failing(name, number, after=after) as count:
            training.go_on()
        steps = look(folder)
        assert len(steps) >= 2 and training.ckpt.saved in steps and training.ckpt.saved >= safe
        assert name != "replace" or training.ckpt.saved == training.step - 1, "latest is a hint only"
        training.go_on()
        assert training.ckpt.saved == training.step - 1 == look(folder)[0], "the next one is saved"
        number, reached = number + 1, count[0] >= number
    assert number > 2 or (name == "stat" and number > 1), "the call is one of a save"
    training.ckpt.close()
    again = Training(folder)
    assert again.step == training.step and torch.equal(again.model.weight, training.model.weight)
    # Where removing it is what fails, a part stays until the next start.
    assert name in REMOVING or not list(folder.glob(".tmp_step*"))


def test_the_order_on_the_disk(folder: Path) -> None:
    """Data, manifest, their folder, the name, the folder of the name, and only then an old one goes.

    A power cut keeps what was synced: SIGKILL, which keeps all that was written, cannot show that.
    """
    training = Training(folder)
    for _ in range(2):
        training.go_on()
    done: list[str] = []

    def short(path: Any) -> str:
        return re.sub(r"(\.tmp_\w+)\.[^/]*", r"\1", os.path.relpath(path, folder))

    def around(name: str, work: Any, words: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if name in {"write", "fsync"}:
            said = f"{name.lstrip('f')} {short(os.readlink(f'/proc/self/fd/{words[0]}'))}"
        else:
            said = f"{name} " + " to ".join(short(word) for word in words)
        if done[-1:] != [said]:
            done.append(said)
        return work(*words, **options)

    with every(("write", "fsync", "rename", "replace"), around):
        training.go_on()
    assert done == [
        "write .tmp_step_00000002/state.pt",
        "sync .tmp_step_00000002/state.pt",
        "write .tmp_step_00000002/manifest.json",
        "sync .tmp_step_00000002/manifest.json",
        "sync .tmp_step_00000002",
        "rename .tmp_step_00000002 to step_00000002",
        "sync .",
        "write .tmp_latest",
        "sync .tmp_latest",
        "replace .tmp_latest to latest",
        "rename step_00000000 to .del_step_00000000",
    ]


REAL: Final = """
import os, subprocess, sys, torch
from hermitcrab import Checkpointer
from hermitcrab.checkpoint import saver
disk, how = sys.argv[1:]
def mount(*words):
    subprocess.run(["mount", *words, disk], check=True)
mount("-t", "tmpfs", "-o", "size=8m", "tmpfs")
saver.RESERVE = 0
if how == "full at the write":
    saver._free = lambda _: 1 << 40  # as when others fill it meanwhile
ckpt = Checkpointer(disk + "/run", model=torch.nn.Linear(512, 512), every_steps=1, rehearse=False)
ckpt.resume()
for step in range(5):
    if step == 2 and how == "read-only":
        mount("-o", "remount,ro")
    elif step == 2:
        with open(disk + "/ballast", "wb", buffering=0) as file, __import__("contextlib").suppress(OSError):
            while True:
                file.write(bytes(1 << 18))
    if step == 4:
        mount("-o", "remount,rw") if how == "read-only" else os.unlink(disk + "/ballast")
    ckpt._saver.clock.last -= 1000
    ckpt.step(step)
    ckpt.wait()
    print(ckpt.saved, end=" ")
ckpt.close()
print(sorted(os.listdir(disk + "/run")))
"""
DISKS: Final = {
    "full": "No space left on device",
    "full at the write": "No space left on device",
    "read-only": "Read-only file system",
}


@pytest.mark.parametrize("how", DISKS)
def test_a_real_disk(tmp_path: Path, how: str) -> None:
    """A small one of its own, full or read-only for two steps: these are not saved, all others are."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    alone = ["unshare", "--mount", "--propagation", "private", *user]
    try:
        probe = subprocess.run(
            [*alone, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], capture_output=True, check=False
        )
    except OSError as error:
        pytest.skip(f"no disk of our own can be mounted here: {error}")
    if probe.returncode:
        pytest.skip(f"no disk of our own can be mounted here: {probe.stderr.decode().strip()}")
    command = [*alone, sys.executable, "-B", "-c", REAL, str(tmp_path), how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split()[:5] == ["0", "1", "1", "1", "4"], done.stdout + done.stderr
    assert "['latest', 'step_00000001', 'step_00000004']" in done.stdout
    said = [f"step {step} is NOT saved: " for step in (2, 3)]
    assert all(line in done.stderr for line in said) and DISKS[how].split()[0].lower() in done.stderr.lower()
    assert (done.returncode, done.stderr.count("NOT saved")) == (0, 2)


def test_the_end_is_tried_again(folder: Path) -> None:
    """The disk may have space by then: close() saves what the last step could not, or says that it is lost."""
    training = Training(folder)
    training.go_on()
    with failing("fsync", 1, after=False):
        training.go_on()
    assert look(folder) == [0]
    with failing("fsync", 1, after=False), pytest.raises(UserError, match=r"the last save failed: .*planted.* step 0"):
        training.ckpt.save()
    training.ckpt.close()
    assert look(folder) == [1, 0]


def test_a_disk_that_is_gone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not even the space on it can be asked for: said, and the loop goes on."""
    training = Training(folder)
    training.go_on()
    for _ in range(2):
        with every(("statvfs", "mkdir", "open"), _gone):
            training.go_on()
    assert "step 1 is NOT saved: " in capsys.readouterr().err
    training.go_on()
    training.ckpt.close()
    assert look(folder) == [3, 0]


def test_no_room_for_one_more_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """File storage counts files as well as bytes: free space beside "No space left" would puzzle."""
    training = Training(folder)

    def around(name: str, *_: Any) -> Any:
        if name == "mkdir":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return SimpleNamespace(f_bavail=1 << 20, f_frsize=4096, f_files=200_000, f_favail=0)

    with every(("mkdir", "statvfs"), around):
        training.go_on()
    assert (
        "NOT saved: No space left on device" in (said := capsys.readouterr().err) and "Free: not one more file" in said
    )
    training.ckpt._drain()


def _gone(*_: Any) -> None:
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


def test_nobody_reads_what_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal or a pipe that is gone ends no training."""

    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(sys, "stderr", Gone())
    training = Training(folder)
    training.go_on()
    with failing("fsync", 1, after=False):
        training.go_on()
    training.ckpt.close()
    assert look(folder) == [1, 0]


@pytest.mark.parametrize("how", ["step", "close"])
def test_what_goes_wrong_beside_the_training_surfaces(folder: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """At the next call, or at close(): once, and nothing half-written stays."""

    def broken(*_: Any) -> None:
        raise RuntimeError("planted")

    model = nn.Linear(3, 3)
    ckpt = Checkpointer(folder, model=model, every_steps=1, rehearse=False)
    ckpt.resume()
    with monkeypatch.context() as patch:
        patch.setattr("hermitcrab.checkpoint.archive.save", broken)
        ckpt.step(0)
        ckpt._saver.background.wait()
    with pytest.raises(RuntimeError, match="planted"):
        ckpt.step(1) if how == "step" else ckpt.close()
    assert list(folder.iterdir()) == []
    if how == "step":
        ckpt.step(1)
        ckpt.close()
        assert [item.step for item in store.found(folder)] == [1]
