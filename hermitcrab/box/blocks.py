"""Managed blocks: crab's few lines in a file of the user's, between two markers, at its top.

At the top because whatever the user wrote then comes later and wins (in sshd_config, whose first value
wins, because the end of the file may belong to a Match). Every other byte of the file stays as it is,
so that taking the block out again gives back the file that was.
"""

from __future__ import annotations

import re

BEGIN = b"# >>> hermitcrab >>> (`crab setup --undo` takes these lines out)"
END = b"# <<< hermitcrab <<<"
_BOM = b"\xef\xbb\xbf"  # stays first: git takes it nowhere else
_START = rb"(?:^|(?<=\A\xef\xbb\xbf))"
_MARK = _START + rb"# (?:>>> hermitcrab >>>|<<< hermitcrab <<<)"
# No marker between the two: a block that lost its end must not swallow what is the user's.
_BLOCK = re.compile(
    _START + rb"# >>> hermitcrab >>>[^\n]*\n(?:(?!# >>> hermitcrab >>>|# <<< hermitcrab <<<)[^\n]*\n)*"
    rb"# <<< hermitcrab <<<[^\n]*(?:\n|\Z)",
    re.MULTILINE,
)


class DamagedBlockError(ValueError):
    """A marker has lost its other half, so nobody can tell crab's lines from the user's."""


def put(old: bytes, body: bytes) -> bytes:
    """Return a file with the block: in its old place when there is one, at the top otherwise."""
    block = BEGIN + b"\n" + body.rstrip(b"\n") + b"\n" + END + b"\n"
    taken = take(old)
    found = _BLOCK.search(old)
    at = found.start() if found else len(_BOM) if old.startswith(_BOM) else 0
    return taken[:at] + block + taken[at:]


def take(old: bytes) -> bytes:
    """Return a file without the block; the rest byte for byte."""
    rest = _BLOCK.sub(b"", old)
    if re.search(_MARK, rest, re.MULTILINE):
        raise DamagedBlockError("holds half a block of hermitcrab's: take its marker line out by hand")
    return rest


def body(data: bytes | None) -> bytes:
    """Return the block of a file, markers included; nothing when it has none."""
    found = _BLOCK.search(data or b"")
    return found[0] if found else b""
