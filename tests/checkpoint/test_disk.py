"""Claim: a big file reaches the disk past the page cache where that can be, and whole wherever it cannot."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from hermitcrab.checkpoint import disk, tee
from hermitcrab.checkpoint.disk import BLOCK

PAGE: Final = mmap.PAGESIZE
SIZES: Final = (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5)


def data(size: int) -> bytes:
    """Bytes of which no two blocks are alike."""
    return b"".join(number.to_bytes(8, "big") for number in range(size // 8 + 1))[:size]


def write(path: Path, content: bytes, piece: int = BLOCK // 3 + 1) -> tee.Sum:
    """Write it in pieces that fit nothing."""

    def work(file: object) -> None:
        for start in range(0, len(content), piece):
            file.write(content[start : start + piece])  # type: ignore[attr-defined]

    return tee.write(path, work)


def cached(path: Path) -> int:
    """How many bytes of a file are in the page cache."""
    size = path.stat().st_size
    pages = (ctypes.c_ubyte * -(-size // PAGE))()
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as its,
    ):
        first = ctypes.addressof(ctypes.c_char.from_buffer(its))
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(first), ctypes.c_size_t(size), pages) == 0
    return sum(page & 1 for page in pages) * PAGE


@pytest.fixture
def direct(tmp_path: Path) -> None:
    """The disk of these tests lets the page cache be passed by; tmpfs takes the word, and has nothing else."""
    path, flags = tmp_path / "try", os.O_WRONLY | os.O_CREAT | disk.DIRECT
    try:
        handle = os.open(path, flags)
        with mmap.mmap(-1, BLOCK) as block:
            os.write(handle, block)
        os.close(handle)
    except OSError:
        pytest.skip("the file system of the temporary folder knows no O_DIRECT")
    if cached(path):
        pytest.skip("the file system of the temporary folder is a cache")


@pytest.mark.parametrize("size", SIZES)
def test_every_byte_is_there(tmp_path: Path, size: int) -> None:
    """Of files below, at and above the size of a block; size and sum are told."""
    told = write(tmp_path / "file", data(size))
    assert (tmp_path / "file").read_bytes() == data(size)
    assert told == tee.measure(tmp_path / "file")


@pytest.mark.usefixtures("direct")
def test_it_passes_the_page_cache_by(tmp_path: Path) -> None:
    """Nothing that others read is pushed out: at most the end of the file, below one block, is there."""
    write(tmp_path / "file", data(4 * BLOCK + 5))
    assert cached(tmp_path / "file") <= PAGE
    (tmp_path / "other").write_bytes(data(4 * BLOCK))
    assert cached(tmp_path / "other") == 4 * BLOCK  # or the look would prove nothing


def refusing(direct: int) -> Callable[[int, memoryview], int]:
    """A write that a file system refuses when it is to pass the page cache by."""
    real = os.write

    def write(handle: int, view: memoryview) -> int:
        if fcntl.fcntl(handle, fcntl.F_GETFL) & disk.DIRECT:
            raise OSError(direct, os.strerror(direct))
        return real(handle, view)

    return write


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO, errno.EOPNOTSUPP])
def test_a_file_system_that_takes_it_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """As some over a network do: through the cache then, whole."""
    monkeypatch.setattr(os, "write", refusing(code))
    write(tmp_path / "file", data(3 * BLOCK + 5))
    assert (tmp_path / "file").read_bytes() == data(3 * BLOCK + 5)


def test_a_file_system_that_does_not_know_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tmpfs before Linux 6.6; and a system without the word for it, as macOS."""
    real = fcntl.fcntl

    def refuse(handle: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & disk.DIRECT:
            raise OSError(errno.EINVAL, "planted")
        return real(handle, command, flags)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    write(tmp_path / "file", data(2 * BLOCK + 5))
    monkeypatch.setattr(disk, "DIRECT", 0)
    write(tmp_path / "other", data(2 * BLOCK + 5))
    assert (tmp_path / "file").read_bytes() == (tmp_path / "other").read_bytes() == data(2 * BLOCK + 5)


def test_a_write_that_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal, or a disk that is nearly full: the rest follows, though no place is round any more."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, view: real(handle, view[: 1 + len(view) // 2]))
    write(tmp_path / "file", data(2 * BLOCK + 5))
    assert (tmp_path / "file").read_bytes() == data(2 * BLOCK + 5)


def failing(code: int) -> Callable[..., int]:
    """A call that fails."""

    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the error of the system, also where the first try was past the cache."""
    monkeypatch.setattr(os, "write", failing(errno.ENOSPC))
    for size in (1, 2 * BLOCK):
        with pytest.raises(OSError, match="No space left") as error:
            write(tmp_path / str(size), data(size))
        assert error.value.errno == errno.ENOSPC


def test_the_memory_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, also where an error is kept: a full disk fails again and again, and some switch the GC off."""
    monkeypatch.setattr(os, "write", failing(errno.ENOSPC))
    errors = []
    for number in range(3):
        with pytest.raises(OSError, match="No space left") as error:
            write(tmp_path / str(number), data(2 * BLOCK))
        errors.append(error.value)
    assert Path("/proc/self/maps").read_text().count("/dev/zero") == 0


def test_a_hint_is_no_more_than_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox that knows no such call: the bytes are written."""
    monkeypatch.setattr(disk, "DIRECT", 0)
    monkeypatch.setattr(disk, "_advise", failing(errno.ENOSYS))
    write(tmp_path / "file", data(2 * BLOCK))
    assert (tmp_path / "file").read_bytes() == data(2 * BLOCK)
