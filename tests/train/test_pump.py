"""Claims: all that is printed is kept as a person would have seen it, bounded, and at nobody's cost."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hermitcrab.train import pump
from hermitcrab.train.pump import Copy, Lines, Log, Pump, clean


class Clock:
    """Shows the time that it was given."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def whole(data: bytes, size: int) -> list[str]:
    """Feed bytes in pieces of a size."""
    lines = Lines(Clock())
    found = [line for start in range(0, len(data), size) for line in lines.feed(data[start : start + size])]
    return found + lines.end()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\r 10%|#  |\r 50%|## |\r100%|###|\nend\n", ["100%|###|", "end"]),
        (b"10%\r20%\r", ["20%"]),
        (b"busy\r    \r", ["busy"]),
        ("schön 🦀\n".encode(), ["schön 🦀"]),
        (b"\xff\xfe\n", ["\ufffd\ufffd"]),
        (b"\x1b[31mred\x1b[0m\x1b[A \x1b]0;title\x07x\n", ["red x"]),
        (b"\x00a\x08\tb\n", ["a\tb"]),
    ],
)
def test_lines_are_cut_the_same_in_any_pieces(data: bytes, expected: list[str], size: int) -> None:
    """A pipe may break anywhere, also in a letter or in the end of a line."""
    assert whole(data, size) == expected


def test_a_bar_that_never_ends_is_told_now_and_then() -> None:
    """An epoch takes hours, and the log is to show where it is; the watch sees every state."""
    clock = Clock()
    lines = Lines(clock)
    assert lines.feed(b"\r 1%") == [] and lines.bar == " 1%"
    clock.now = 11
    assert lines.feed(b"\r 2%") == [" 2%"]
    assert lines.feed(b"\r 3%") == [] and lines.bar == " 3%"
    assert lines.feed(b"\r100%\n") == ["100%"]


def test_a_line_without_an_end_is_cut() -> None:
    """Memory is not for whoever prints a gigabyte without a newline."""
    found = whole(b"x" * 300_000, 1000)
    assert "".join(found) == "x" * 300_000 and max(map(len, found)) <= pump.LONGEST


def test_a_long_bar_keeps_its_last_states_only() -> None:
    """Hours of drawing over itself are one line."""
    lines = Lines(Clock())
    for number in range(20_000):
        lines.feed(b"\r%d%%" % number)
    assert len(lines._rest) < 100


def test_the_log_is_turned_over(tmp_path: Path) -> None:
    """Bounded in all, and no line is cut or lost between two files."""
    log = Log(tmp_path / "log.txt", limit=1000)
    for number in range(300):
        log.write(f"line {number}")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["log.txt", *(f"log.txt.{number}" for number in range(1, pump.KEPT + 1))]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    text = "".join((tmp_path / name).read_text() for name in [*reversed(names[1:]), "log.txt"])
    numbers = [int(line.rpartition(" ")[2]) for line in text.splitlines()]
    assert numbers == list(range(numbers[0], 300))


def test_a_log_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    """What was lost is counted, and told once there is room again; here a folder is in its place."""
    (tmp_path / "log.txt").mkdir()
    log = Log(tmp_path / "log.txt")
    log.write("one", "two")
    (tmp_path / "log.txt").rmdir()
    log.write("three")
    text = (tmp_path / "log.txt").read_text()
    assert "2 lines are lost" in text and text.endswith("three\n")


def test_a_copy_to_nobody_is_no_copy() -> None:
    """A reader who is gone, and one who does not read."""
    read, write = os.pipe()
    copy = Copy(write)
    begun = time.monotonic()
    for _ in range(2000):
        copy.put(b"x" * 1000)
    copy.close(0.2)
    assert time.monotonic() - begun < 20
    os.close(read)
    copy._thread.join(5)
    assert not copy._thread.is_alive()
    copy.put(b"x")
    os.close(write)


def test_a_pump_ends_although_somebody_holds_the_pipe(tmp_path: Path) -> None:
    """A daemon that inherited the output must not hold the supervisor."""
    found = Pump(Log(tmp_path / "log.txt"), None)
    held = os.dup(found.sink)
    os.write(held, b"last words")
    found.start()
    begun = time.monotonic()
    found.finish(0.3)
    assert time.monotonic() - begun < 20
    os.close(held)
    found.finish()
    assert list(found.tail) == ["last words"] == found.take()


def test_nothing_seen_is_nothing() -> None:
    """An empty line stays one."""
    assert clean(b"") == "" and clean(b"\r") == ""
