"""A file that is summed while it is written."""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict

from hermitcrab.checkpoint import sums
from hermitcrab.checkpoint.disk import Disk

CHUNK = 1 << 22  # the training's thread gets the interpreter between two of them
Write = Callable[[BinaryIO], Any]
Sum = Dict[str, int]


class Tee:
    """A binary file that keeps the size and the checksum of what passes through."""

    def __init__(self, file: Any) -> None:
        self.file, self.size, self.crc32 = file, 0, 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Pass the bytes on; torch hands over views of any element size."""
        view = memoryview(data).cast("B")
        self.crc32 = zlib.crc32(view, self.crc32)
        return self._pass(view)

    def write_summed(self, view: memoryview, crc32: int) -> int:
        """Pass bytes on whose checksum is known."""
        self.crc32 = sums.combine(self.crc32, crc32, len(view))
        return self._pass(view)

    def flush(self) -> None:
        """Pass it on; torch calls this."""
        self.file.flush()

    def _pass(self, view: memoryview) -> int:
        try:
            for start in range(0, len(view), CHUNK):
                part = view[start : start + CHUNK]
                self.file.write(part)
                self.size += len(part)
        except OSError as error:
            self.error = error
            raise
        return len(view)


def write(path: Path, work: Write, *, mode: str = "xb") -> Sum:
    """Write a file to the disk by ``work``; returns its size and checksum."""
    with open(path, mode, buffering=0) as file, contextlib.closing(Disk(file.fileno())) as disk:
        tee: Any = Tee(disk)
        try:
            work(tee)
        except Exception:
            if tee.error:  # torch tells of "unexpected pos 704 vs 598" instead of a full disk
                raise tee.error from None
            raise
        disk.sync()
    return {"size": tee.size, "crc32": tee.crc32}


def measure(path: Path) -> Sum:
    """Read a file to its end; returns its size and checksum."""
    size = crc32 = 0
    buffer = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        count = file.readinto(buffer)
        while count:
            crc32, size = zlib.crc32(buffer[:count], crc32), size + count
            count = file.readinto(buffer)
    return {"size": size, "crc32": crc32}


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk; some mounts of object stores know no such thing."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}:
            raise
    finally:
        os.close(handle)
