"""What a row of the seal's tables is, and how its patterns are read."""

from __future__ import annotations

from typing import Callable, NamedTuple

MB = 10**6
ANYWHERE = "**/"


class Row(NamedTuple):
    """One kind of thing that a saved image should not hold.

    A pattern begins with ``/``, with ``~`` (each user's home), with ``$NAME`` (a folder that a
    variable names) or with ``**/`` (the end of any path outside the system's and Python's own
    folders; a last ``/`` means a folder). ``*`` stands for a part of one name.
    """

    id: str
    kind: str  # cache, list, log, temp, history, token, key, identity, state or data
    what: str
    patterns: tuple[str, ...]
    clean: str = "delete"  # delete, truncate, name (only said, never touched), or one of edits.EDITS
    ask: bool = False  # not obviously waste: stays unless included by name
    holds: Callable[[bytes], bool] | None = None  # only files whose content is this
    at_least: int = 0  # bytes; less is not worth a question


def paths(*texts: str) -> tuple[str, ...]:
    """Return the patterns of a row, written as words."""
    return tuple(word for text in texts for word in text.split())


SECRETS = ("token", "key", "identity")
# What of these is still there is the user's decision, and no reason for --check to fail.
CHOICES = ("data",)
