"""What a user is told when something cannot be done: one line, and an exit code."""

from __future__ import annotations


class UserError(Exception):
    """A failure with a cause the user can act on; shown as one line, never as a traceback.

    The message says what is wrong, what is valid, and what to do next. ``code`` becomes the
    exit status: 2 for wrong input, 1 for anything that failed while it was done.
    """

    def __init__(self, message: str, *, code: int = 1) -> None:
        super().__init__(message)
        self.code = code
