"""One piece of work beside the training, at most; its error is kept until somebody asks."""

from __future__ import annotations

import threading
from typing import Callable


class Background:
    """A writer thread for one save at a time. A thread is enough: writing and summing let go of the GIL."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether the last work still runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        """Begin, after what may still run."""
        self.wait()
        # A daemon: a hung disk must not keep the program from ending; close() and atexit wait for a live one.
        self._thread = threading.Thread(target=self._run, args=(work,), name="hermitcrab-writer", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing runs any more."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def raise_error(self) -> None:
        """Raise what went wrong since the last call."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised again, in the thread that trains
            self._error = error
