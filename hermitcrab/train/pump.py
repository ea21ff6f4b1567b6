"""What a training prints: cut into lines, written to its log with the time, copied on as long as somebody reads."""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Callable

LIMIT = 20 << 20  # bytes of one log file
KEPT = 4  # older ones: log.txt.1 is the newest of them
TAIL = 200  # lines kept for the record of a failure
FRESH = 10_000  # lines that wait for the watch; beyond, the oldest are passed over
LONGEST = 64 << 10  # bytes of one line
BAR_SECONDS = 10.0  # how often a progress bar that never ends its line is written down
CHUNK = 64 << 10
GATHER = 0.05  # seconds in which lines gather: fewer wakes leave more of the CPU to the training
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
CONTROLS = dict.fromkeys((*range(9), *range(10, 32), 127))


class Log:
    """``log.txt``, turned over when it is full. What a full disk takes is counted, and told when there is room."""

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self.path, self.limit, self.lost = path, limit, 0
        self._lock = threading.Lock()

    def write(self, *lines: str) -> None:
        """Append lines with the time; never raises."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime())
        with self._lock:
            told = [f"crab: {self.lost} lines are lost: the disk was full"] if self.lost else []
            text = "".join(f"{stamp} {line}\n" for line in (*told, *lines))
            try:
                self._append(text.encode("utf-8", "replace"))
                self.lost = 0
            except OSError:
                self.lost += len(lines)

    def _append(self, data: bytes) -> None:
        with open(self.path, "ab", buffering=0) as file:
            if file.tell() and file.tell() + len(data) > self.limit:
                self._turn()
                return self._append(data)
            if file.write(data) < len(data):
                raise OSError("a part of it was written")
        return None

    def _turn(self) -> None:
        for number in range(KEPT, 0, -1):
            newer = self.path if number == 1 else Path(f"{self.path}.{number - 1}")
            with suppress(FileNotFoundError):
                os.replace(newer, f"{self.path}.{number}")


class Lines:
    """Cuts bytes into lines; of a progress bar, which draws over itself, the last state stays."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.bar = ""  # the newest state of a bar, until it was taken
        self._rest = b""
        self._clock, self._bar_at = clock, clock()

    def feed(self, data: bytes) -> list[str]:
        """Take what was printed; returns the lines that are complete, and now and then the state of a bar."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        lines = [clean(line) for line in whole]
        if b"\r" in self._rest:
            lines += self._bar()
        while len(self._rest) > LONGEST:
            lines.append(clean(self._rest[:LONGEST]))
            self._rest = self._rest[LONGEST:]
        return lines

    def end(self) -> list[str]:
        """Return what was never ended by a newline."""
        rest, self._rest = self._rest, b""
        return [clean(rest)] if rest.strip() else []

    def _bar(self) -> list[str]:
        # The states that were drawn over are gone; the last whole one is kept until the next is whole.
        drawn, _, rest = self._rest.rpartition(b"\r")
        self._rest = _last(drawn) + b"\r" + rest
        self.bar = clean(self._rest)
        if not self.bar.strip() or self._clock() - self._bar_at < BAR_SECONDS:
            return []
        self._bar_at = self._clock()
        return [self.bar]


def clean(line: bytes) -> str:
    """Return the text a person would see at the end, without colours and what else moves a terminal."""
    text = _last(line).decode("utf-8", "replace")
    if "\x1b" in text:
        text = ESCAPES.sub("", text)
    return text.translate(CONTROLS)


def _last(line: bytes) -> bytes:
    """Return the last state of a line that draws over itself."""
    return next((part for part in reversed(line.split(b"\r")) if part.strip()), b"")


class Copy:
    """Copies to a file descriptor from a thread of its own: a reader who is slow or gone never stops the training."""

    def __init__(self, descriptor: int) -> None:
        self._queue: queue.Queue[bytes] = queue.Queue(maxsize=256)
        self._descriptor = descriptor
        self._thread = threading.Thread(target=self._run, name="crab-copy", daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> None:
        """Hand over bytes; dropped where nobody takes them."""
        if self._thread.is_alive():
            with suppress(queue.Full):
                self._queue.put_nowait(data)

    def close(self, seconds: float = 2.0) -> None:
        """Wait for a reader, but not long."""
        with suppress(queue.Full):
            self._queue.put_nowait(b"")
            self._thread.join(seconds)

    def _run(self) -> None:
        data = self._queue.get()
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except OSError:
                return
            data = data or self._queue.get()


class Pump:
    """Reads the output of one attempt in a thread of its own, so that the training never waits for its supervisor."""

    def __init__(self, log: Log, copy: Copy | None) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL)
        self.fresh: deque[str] = deque(maxlen=FRESH)
        self._log, self._copy = log, copy
        self._source, self.sink = os.pipe()
        self._thread = threading.Thread(target=self._run, name="crab-pump", daemon=True)

    def start(self) -> None:
        """Begin, once the training holds the other end."""
        os.close(self.sink)
        self._thread.start()

    def take(self) -> list[str]:
        """Return the lines since the last call."""
        return [self.fresh.popleft() for _ in range(len(self.fresh))]

    def finish(self, seconds: float = 5.0) -> None:
        """Wait for the end of the output; whoever still holds it must not hold the supervisor."""
        self._thread.join(seconds)

    def _run(self) -> None:
        lines = Lines()
        data = self._read()
        while data:
            if self._copy:
                self._copy.put(data)
            self._keep(lines.feed(data))
            if lines.bar:
                self.fresh.append(lines.bar)
                lines.bar = ""
            if len(data) < CHUNK:  # a flood is read at once, before it fills the pipe
                time.sleep(GATHER)
            data = self._read()
        self._keep(lines.end())
        os.close(self._source)

    def _read(self) -> bytes:
        try:
            return os.read(self._source, CHUNK)
        except OSError:
            return b""

    def _keep(self, lines: list[str]) -> None:
        if lines:
            self.tail.extend(lines)
            self.fresh.extend(lines)
            self._log.write(*lines)
