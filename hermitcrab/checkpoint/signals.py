"""SIGTERM and SIGUSR2 mean "save at the next step boundary".

A handler only sets a flag: one that saved would run in the middle of a step, inside locks. After SIGTERM
the program ends as SIGTERM would have ended it, once the save is on disk; after SIGUSR2 it goes on.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

PATIENCE = 3  # a second SIGTERM does not disturb the save, the third ends the program
SIGNALS = (signal.SIGTERM, signal.SIGUSR2)


class Signals:
    """Catches both signals from ``install`` to ``restore``; a handler the program had is called as well."""

    def __init__(self) -> None:
        self.save = False
        self.stop = False
        self._before: dict[int, Any] = {}
        self._terms = 0

    @property
    def caught(self) -> tuple[str, ...]:
        """The names of the signals that are caught now: no others may be sent for a save."""
        return tuple(signal.Signals(number).name for number in self._before)

    def install(self, *, alone: bool = False) -> None:
        """Catch the signals, ``alone`` instead of the handlers there are; Python allows it in the main thread only."""
        if threading.current_thread() is threading.main_thread() and not self._before:
            for number in SIGNALS:
                before = signal.signal(number, self._caught)
                self._before[number] = signal.SIG_DFL if alone else before

    def restore(self) -> None:
        """Give the signals back, if nobody else has taken them since."""
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._caught:
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}

    def _caught(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number)
        self.save = True
        if callable(before):
            before(number, frame)
        elif number == signal.SIGTERM:
            self.stop = before != signal.SIG_IGN
            self._terms += 1
        if self._terms >= PATIENCE:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
