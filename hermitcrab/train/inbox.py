"""Signals that come to the supervisor: what was asked for, and a way to wait that a signal ends at once."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from types import FrameType

STOP = (signal.SIGTERM, signal.SIGINT)  # the first asks for an orderly stop, the second for one at once
NOW = signal.SIGQUIT
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
# A lost line, a reader who left, and Ctrl-Z, which would stop nothing but the output.
IGNORED = (signal.SIGHUP, signal.SIGPIPE, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class Inbox:
    """A handler only notes what came; the supervisor's loop acts on it."""

    def __init__(self) -> None:
        self.stop = ""  # the signal that asked for it
        self.now = False
        self.closing = False  # the training has ended: only a person at the keyboard may still interrupt
        self.given_up = False
        self.passed: list[int] = []  # to be passed on to the training
        self._awake, self._alarm = os.pipe()
        for end in (self._awake, self._alarm):
            os.set_blocking(end, False)

    def install(self) -> None:
        """Take the signals over from here on."""
        signal.set_wakeup_fd(self._alarm, warn_on_full_buffer=False)
        for number in (*STOP, NOW, *PASSED_ON, signal.SIGCHLD):
            signal.signal(number, self._caught)
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)

    def wait(self, seconds: float) -> None:
        """Sleep until a signal comes, but not longer."""
        select.select([self._awake], [], [], max(0.0, seconds))
        with suppress(BlockingIOError):
            while os.read(self._awake, 512):
                pass

    def _caught(self, number: int, _: FrameType | None) -> None:
        if self.closing:
            self._caught_closing(number)
        elif number in PASSED_ON:
            self.passed.append(number)
        elif number == NOW or (number in STOP and self.stop):
            self.stop, self.now = self.stop or signal.Signals(number).name, True
        elif number in STOP:
            self.stop = signal.Signals(number).name

    def _caught_closing(self, number: int) -> None:
        # SIGTERM may come from the deadline, which wants the results copied as well.
        if number not in {signal.SIGINT, NOW}:
            return
        if self.given_up:
            raise KeyboardInterrupt
        self.given_up = True
