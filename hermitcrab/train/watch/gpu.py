"""The cards, asked through NVML by a process of our own.

With a card that is lost the driver's answer may never come, so nobody waits for it: the process is asked by a
line on its input and answers by a line on its output, or does not. It ends when its input does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

SILENT = 120.0  # seconds without an answer that are no slow driver any more
MOST_STARTS = 3
DEVICES = ("dev/nvidiactl", "dev/dxg")  # of the driver, and of WSL's: without one there is nobody to ask
PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from hermitcrab.train.watch.nvml import serve; serve(sys.argv[2])"
)

# Xid numbers that are the machine's fault; the others are most often the program's.
XIDS = {
    48: "uncorrectable memory error",
    63: "a page of the card's memory was retired",
    64: "the card's memory cannot be repaired",
    74: "NVLink error",
    79: "the card fell off the bus",
    92: "many memory errors",
    94: "memory error, contained to one program",
    95: "memory error, not contained",
    119: "the card's processor does not answer",
    120: "the card's processor failed",
    140: "memory error that was not recovered",
    143: "the card could not be started",
    154: "the card needs a reset or a reboot",
}
LOST = {79, 119, 120, 143}


class Card(NamedTuple):
    """One card as it is now; None is unknown."""

    number: int
    util: int | None = None
    memory: int | None = None
    total: int | None = None
    temperature: int | None = None
    throttle: int | None = None
    ecc: int | None = None
    lost: bool = False


class Gpu:
    """Asks and never waits. Without a driver it stays without cards."""

    def __init__(
        self, environ: Mapping[str, str], root: Path, *, command: Sequence[str] = (), silent: float = SILENT
    ) -> None:
        folder = str(Path(__file__).parents[3])
        self._command = list(command) or [sys.executable, "-E", "-s", "-c", PROGRAM, folder, str(root)]
        self._environ, self._silent = dict(environ), silent
        self._visible = _visible(environ.get("CUDA_VISIBLE_DEVICES", ""))
        self._process: subprocess.Popen[bytes] | None = None
        self._starts, self._said = 0, b""
        self._asked: float | None = None
        self.cards: tuple[Card, ...] = ()
        self.xids: list[tuple[int, int]] = []  # card and number, as they came
        self.error = "" if any((root / device).exists() for device in DEVICES) else "no NVIDIA driver here"

    @property
    def pid(self) -> int | None:
        """The process that asks, which is not one of the training's."""
        return self._process.pid if self._process else None

    def ask(self, now: float) -> None:
        """Ask, unless an answer is still awaited."""
        if self._asked is not None or not self._start():
            return
        assert self._process
        assert self._process.stdin
        try:
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
            self._asked = now
        except OSError:
            self._ended()

    def poll(self) -> bool:
        """Take an answer that has come; say whether one has."""
        if self._process is None or self._process.stdout is None:
            return False
        try:
            data = os.read(self._process.stdout.fileno(), 65536)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._ended()
            return False
        *whole, self._said = (self._said + data).split(b"\n")
        for line in whole[-1:]:
            self._asked = None
            self._take(line)
        return bool(whole)

    def silent(self, now: float) -> bool:
        """Say whether the driver has not answered for so long that something is wrong."""
        return self.waited(now) >= self._silent

    def waited(self, now: float) -> float:
        """Return the seconds since the question that is not answered yet."""
        return 0.0 if self._asked is None else now - self._asked

    def lost(self) -> str:
        """Say which card is gone and how that is known; nothing while all are there."""
        for card, xid in self.xids:
            if xid in LOST:
                return f"GPU {card}: Xid {xid}, {XIDS[xid]}"
        for one in self.cards:
            if one.lost:
                return f"GPU {one.number}: the driver says that it is lost"
        return ""

    def close(self) -> None:
        """End the process; one that hangs in the driver is left to its fate."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        for stream in (process.stdin, process.stdout):
            if stream:
                with suppress(OSError):
                    stream.close()

    def _start(self) -> bool:
        if self._process is not None:
            return True
        if self.error or self._starts >= MOST_STARTS:
            return False
        self._starts += 1
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # Out of the user's folder, where a file named json.py may lie.
                cwd="/",
                env=self._environ,
                start_new_session=True,
            )
        except OSError as error:
            self.error = f"cannot start: {error.strerror}"
            return False
        assert self._process.stdout
        os.set_blocking(self._process.stdout.fileno(), False)
        return True

    def _take(self, line: bytes) -> None:
        try:
            said = json.loads(line)
            self.error = str(said["error"])
            cards = tuple(Card(**card) for card in said["cards"])
            self.xids += [(int(card), int(xid)) for card, xid in said["xids"] if self._sees(int(card))]
        except (ValueError, TypeError, KeyError) as error:
            self.error = f"answers nonsense: {error}"
            cards = ()
        self.cards = tuple(card for card in cards if self._sees(card.number))
        if self.error:
            self.close()

    def _sees(self, card: int) -> bool:
        """Say whether the training may use a card."""
        return self._visible is None or card in self._visible or card < 0

    def _ended(self) -> None:
        """It was killed, or the driver crashed it: the next question starts another."""
        self._asked, self._said, self.cards = None, b"", ()
        self.close()


def figures(cards: Sequence[Card]) -> dict[str, Any]:
    """Put the cards together for samples.jsonl: the mean of the work, the sum of the memory, the hottest."""
    return {
        "gpu_util": _mean([card.util for card in cards if card.util is not None]),
        "gpu_memory": _sum([card.memory for card in cards]),
        "gpu_memory_total": _sum([card.total for card in cards]),
        "gpu_temperature": max((card.temperature for card in cards if card.temperature is not None), default=None),
    }


def _mean(values: Sequence[int]) -> float | None:
    return round(sum(values) / len(values), 1) if values else None


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _visible(text: str) -> set[int] | None:
    """Read CUDA_VISIBLE_DEVICES as numbers; anything else means all that NVML sees."""
    words = [word.strip() for word in text.split(",")]
    return {int(word) for word in words} if words and all(word.isdigit() for word in words) else None
