"""What follows a failure: a restart after a while, or the end.

Restarts are a budget, and only a newly committed checkpoint refills it: a run that gets on may fail often,
one that does not must not burn the night's money.
"""

from __future__ import annotations

from typing import NamedTuple

from hermitcrab.train.failures import ALTERNATIVE, END, KINDS, SPACE, Failure

DELAYS = (1.0, 5.0, 15.0, 45.0, 135.0, 300.0)  # seconds before the 1st, 2nd … restart without a new checkpoint
RESTARTS = 4
SAME_STEP = 3  # failures at one step: the data or the code fails there, not the machine
DEADLY = 2  # starts from one checkpoint that ended before the next one


class Decision(NamedTuple):
    """Start again after ``delay`` seconds, or end with ``failure``."""

    restart: bool
    failure: Failure
    delay: float = 0.0
    wait_for_space: bool = False
    alternative: bool = False


class Policy:
    """Remembers the failures of a run, as far as they matter for the next decision."""

    def __init__(self, restarts: int = RESTARTS, *, alternatives: int = 0) -> None:
        self._restarts, self._alternatives = restarts, alternatives
        self._failures = 0
        self._steps: list[int] = []
        self._starts: dict[str, int] = {}

    def failed(self, failure: Failure, *, step: int | None, committed: bool, resumed: str = "") -> Decision:
        """Decide what follows; ``resumed`` is the checkpoint that the attempt started from, if we chose it."""
        self._count(step, committed, resumed)
        policy = KINDS[failure.kind].policy
        if policy == END or (policy == ALTERNATIVE and not self._alternatives) or not self._restarts:
            return Decision(restart=False, failure=failure)
        if policy == ALTERNATIVE:
            self._alternatives -= 1  # each is tried once
            return Decision(restart=True, failure=failure, delay=DELAYS[0], alternative=True)
        loop = self._loop()
        if loop:
            said = f"{loop}; the last: {failure.reason}"
            return Decision(restart=False, failure=failure._replace(kind="crash-loop", reason=said))
        delay = DELAYS[min(self._failures, len(DELAYS)) - 1] if self._failures else DELAYS[0]
        return Decision(restart=True, failure=failure, delay=delay, wait_for_space=policy == SPACE)

    @property
    def poisoned(self) -> frozenset[str]:
        """The checkpoints that verify, but after which the program died twice."""
        return frozenset(path for path, count in self._starts.items() if count >= DEADLY)

    def _count(self, step: int | None, committed: bool, resumed: str) -> None:
        if committed:
            self._failures = 0
            self._starts.pop(resumed, None)
        else:
            self._failures += 1
            if resumed:
                self._starts[resumed] = self._starts.get(resumed, 0) + 1
        if step is not None:
            self._steps = [*self._steps, step] if step in self._steps[-1:] else [step]

    def _loop(self) -> str:
        if self._failures > self._restarts:
            return f"{self._failures} failures without a new checkpoint"
        if len(self._steps) >= SAME_STEP:
            return f"{len(self._steps)} failures at step {self._steps[0]}"
        return ""
