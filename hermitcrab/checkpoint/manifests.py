"""What a checkpoint's manifest says besides its files, and what of it the log says once."""

from __future__ import annotations

import time
from typing import Any, Callable, Mapping

from hermitcrab.checkpoint import exactness


class Describer:
    """Knows where this run computes, how it was resumed, and which doubts were told already."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.environment: dict[str, Any] = {}
        self.notes: list[str] = []  # what was not as it was when the run was resumed
        self._say, self._told = say, set()  # type: tuple[Callable[[str], None], set[str]]

    def describe(self, parts: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the manifest of a state that is saved now."""
        inexact = [*self.notes, *exactness.reasons(parts, self.environment)]
        for reason in inexact:
            if reason not in self._told and reason not in self.notes:
                self._say(f"a resume will not be exact: {reason}")
            self._told.add(reason)
        exact = {"exact": not inexact, "inexact": inexact}
        told = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
        position = exactness.position(parts.get("sampler"))
        return {**self.environment, **position, **exact, "metrics": told, "time": time.time()}
