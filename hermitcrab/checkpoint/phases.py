"""What a training does that is no step: told to who watches, and without a trace in its random numbers."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator

from hermitcrab.checkpoint import rng
from hermitcrab.checkpoint.telling import Teller


class Phases:
    """The phase a training is in, and the random state it had when it left its last step for it."""

    def __init__(self) -> None:
        self.teller = Teller(None)
        self.drawn: rng.State | None = None  # what a save within a phase has to keep
        self._name = ""

    @contextlib.contextmanager
    def enter(self, name: str, progress: Callable[[], Any]) -> Iterator[None]:
        """Be in a phase. What it draws is given back at its end, unless ``progress`` says that steps were done in it.

        Else a run that is resumed between the last save and the phase would go on with other numbers.
        """
        before, done, drawn = self._name, progress(), rng.capture()
        self._name, self.drawn = name, self.drawn or drawn
        self.teller.tell(phase=name)
        try:
            yield
        finally:
            if progress() == done:
                rng.restore(drawn)
            self._name, self.drawn = before, self.drawn if before else None
            self.teller.tell(phase=before)

    @contextlib.contextmanager
    def waiting(self, why: str) -> Iterator[None]:
        """Tell that the training waits; nothing is drawn meanwhile."""
        self.teller.tell(phase=why)
        try:
            yield
        finally:
            self.teller.tell(phase=self._name)
