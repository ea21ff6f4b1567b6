"""A block goes in and out of any file, and every other byte stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermitcrab.box import blocks

CASES = Path(__file__).parents[1] / "cases"
FILES = {
    "empty": b"",
    "plain": b"set -g mouse on\n",
    "no last newline": b"alias ll='ls -l'",
    "CRLF": b"alias ll='ls -l'\r\nexport A=1\r\n",
    "CR and no newline": b"a\rb",
    "only a newline": b"\n",
    "not UTF-8": b"# \xff\xfe caf\xe9\n",
    "byte order mark": b"\xef\xbb\xbf[user]\n\tname = me\n",
    "another tool's block": b"# >>> conda initialize >>>\n. conda.sh\n# <<< conda initialize <<<\n",
    "C25": (CASES / "C25.txt").read_bytes(),
}
each_file = pytest.mark.parametrize("old", FILES.values(), ids=FILES)


@each_file
def test_in_and_out_gives_back_every_byte(old: bytes) -> None:
    """What is taken out leaves the file that was, and what was put in stands before the user's lines."""
    new = blocks.put(old, b"include ours\n")

    assert blocks.take(new) == old
    assert new.endswith(old.removeprefix(b"\xef\xbb\xbf"))
    assert b"\ninclude ours\n" in new
    assert new.startswith(b"\xef\xbb\xbf") == old.startswith(b"\xef\xbb\xbf")


@each_file
def test_twice_is_once(old: bytes) -> None:
    """The second time nothing changes."""
    once = blocks.put(old, b"include ours")

    assert blocks.put(once, b"include ours") == once
    assert once.count(blocks.BEGIN) == 1


def test_a_new_body_takes_the_old_ones_place() -> None:
    """Where the user moved the block to, it stays."""
    old = b"first\n" + blocks.put(b"", b"old") + b"last"

    assert blocks.put(old, b"new") == b"first\n" + blocks.put(b"", b"new") + b"last"


def test_two_blocks_become_one() -> None:
    """A file that was pasted into itself gets one block back."""
    old = b"a\n" + blocks.put(b"", b"x") + b"b\n" + blocks.put(b"", b"y") + b"c\n"

    assert blocks.put(old, b"z") == b"a\n" + blocks.put(b"", b"z") + b"b\nc\n"
    assert blocks.take(old) == b"a\nb\nc\n"


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_a_block_that_an_editor_saved_is_still_found(end: bytes) -> None:
    """With CRLF for all line ends, and without the last one."""
    block = blocks.put(b"", b"x").replace(b"\n", end)

    assert blocks.take(b"a" + end + block + b"b" + end) == b"a" + end + b"b" + end
    assert blocks.take(b"a" + end + block[: -len(end)]) == b"a" + end


@pytest.mark.parametrize(
    "old",
    [
        blocks.BEGIN + b"\nuser's own\n",
        b"user's own\n" + blocks.END,
        blocks.BEGIN + b"\nours\n" + b"user's own\n" + blocks.put(b"", b"x"),
        blocks.put(b"", b"x") + b"user's own\n" + blocks.END + b"\n",
    ],
)
def test_half_a_block_is_not_touched(old: bytes) -> None:
    """Without its other half nobody knows where the user's lines begin."""
    for change in (blocks.take, lambda data: blocks.put(data, b"new")):
        with pytest.raises(blocks.DamagedBlockError, match="half a block"):
            change(old)


def test_a_block_is_told_from_talk_about_it() -> None:
    """A marker counts at the start of a line only."""
    old = b"echo '" + blocks.BEGIN + b"'\n  " + blocks.END + b"\n"

    assert blocks.body(old) == blocks.body(None) == b""
    assert blocks.take(blocks.put(old, b"x")) == old
    assert blocks.body(blocks.put(old, b"x")) == blocks.BEGIN + b"\nx\n" + blocks.END + b"\n"
