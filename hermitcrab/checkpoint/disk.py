"""A file on its way to the disk, past the page cache where its file system allows that.

Through the cache a checkpoint would push out what the data loader reads, take the training's cores for copies, and
wait for memory: a virtual machine gives idle memory back to its host, and up to 17 s per GiB were seen to get it again.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os

BLOCK = 1 << 23  # bytes written at once; O_DIRECT wants round numbers of them, at round places in memory and file
DIRECT = getattr(os, "O_DIRECT", 0)
_advise = getattr(os, "posix_fadvise", None)


class Disk:
    """What takes the bytes of one file, in order."""

    def __init__(self, handle: int) -> None:
        """Write to a new file that is open."""
        self._handle, self._flags = handle, fcntl.fcntl(handle, fcntl.F_GETFL)
        self._direct, self._may = False, bool(DIRECT)
        # Shared memory, since a fork (of a data loader) must not move its pages during a write.
        self._block, self._filled = mmap.mmap(-1, BLOCK), 0

    def write(self, data: memoryview) -> None:
        """Take bytes."""
        while data:
            count = min(len(data), BLOCK - self._filled)
            self._block[self._filled : self._filled + count] = data[:count]
            self._filled, data = self._filled + count, data[count:]
            if self._filled == BLOCK:
                self._empty()

    def flush(self) -> None:
        """Do nothing: torch calls this."""

    def sync(self) -> None:
        """Return when all is on the disk."""
        self._empty()
        os.fsync(self._handle)

    def close(self) -> None:
        """Give the memory back, also after an error whose traceback is kept."""
        self._block.close()

    def _empty(self) -> None:
        done = 0
        with memoryview(self._block) as block:
            while done < self._filled:
                with block[done : self._filled] as rest:
                    done += self._put(rest)
        self._filled = 0

    def _put(self, rest: memoryview) -> int:
        self._switch(on=self._may and len(rest) == BLOCK)
        try:
            count = os.write(self._handle, rest)
        except OSError:
            if not (self._direct and self._may):
                raise
            self._may = False  # what is truly wrong shows itself again
            return self._put(rest)
        if not self._direct and _advise and len(rest) == BLOCK:
            with contextlib.suppress(OSError):  # for what is not on the disk yet it means: begin to write it
                _advise(self._handle, 0, 0, os.POSIX_FADV_DONTNEED)
        return count

    def _switch(self, *, on: bool) -> None:
        if on == self._direct:
            return
        try:
            fcntl.fcntl(self._handle, fcntl.F_SETFL, self._flags | DIRECT if on else self._flags)
            self._direct = on
        except OSError:
            self._may = False
