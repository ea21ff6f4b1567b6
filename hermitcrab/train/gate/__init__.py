"""The gate: after a run it brings the results to safety, and only then, if that was asked for, stops the box.

Order: the stop path is proven before step 0; the run ends; results are copied and compared; journal; message;
a countdown that a hold, a person or a copy stops; the stop, with retries; and loud if it failed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple

from hermitcrab.box import files
from hermitcrab.box.mask import mask
from hermitcrab.box.power import fire
from hermitcrab.box.power import preflight as power
from hermitcrab.box.power.preflight import Plan
from hermitcrab.box.power.stops import Stop
from hermitcrab.checkpoint import store
from hermitcrab.train import process
from hermitcrab.train.gate import countdown, deadline, farewell, notify
from hermitcrab.train.gate import sync as copying
from hermitcrab.train.gate.arming import Armed, Say, add_options, outside, preflight, say_aloud
from hermitcrab.train.gate.busy import Busy
from hermitcrab.train.journal import Journal, now
from hermitcrab.train.places import Run

__all__ = ["Armed", "add_options", "arm", "close", "decide", "preflight"]

EARLY = 300.0  # seconds: whoever started a run that fails sooner than this is still there
# Which ends of a run each policy takes for a reason to stop the box.
FIRES = {
    "success": {"done", "smoke"},
    "finished": {"done", "smoke", "failed"},
    "always": {"done", "smoke", "failed", "stopped"},
}
TOLD = {
    "done": "is done",
    "failed": "failed",
    "stopped": "was stopped",
    "smoke": "was tried",
    "preempted": "is cut off",
}


def arm(armed: Armed | None, run: Run, journal: Journal, environ: Mapping[str, str] = os.environ) -> None:
    """Start the deadline, by the supervisor, when the run is its own. Deadlines of this run and of ended ones go."""
    for guard in deadline.guards(environ):
        state = files.read_json(Run(Path(guard.run)).state)
        if guard.run == str(run.folder) or not process.lives(state.get("pid"), state.get("started")):
            deadline.disarm(guard)
    journal.update(deadline=None, began=deadline.clock(), poweroff={"policy": armed.policy if armed else "never"})
    if armed is None or armed.limit is None or armed.plan is None:
        return
    guard = deadline.start(
        armed.plan,
        run,
        armed.limit,
        armed.limit_why,
        grace=armed.grace,
        url=armed.url,
        results=str(run.folder),
        environ=environ,
    )
    journal.update(deadline=guard.at)
    journal.event("deadline", text=f"armed: {armed.limit_why}, in {countdown.say(armed.limit)}", pid=guard.pid)


def close(
    armed: Armed | None,
    run: Run,
    journal: Journal,
    outcome: Any,
    environ: Mapping[str, str] = os.environ,
    *,
    say: Say | None = None,
    given_up: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Do what follows a run, in the order that loses nothing; ``outcome`` has a verdict and a reason.

    False when the box was to be stopped, and could not be.
    """
    if armed is None:
        return True
    armed = armed._replace(results=(*armed.results, *_elsewhere(armed, journal)))
    end = _End(armed, run, journal, environ, say or say_aloud, sleep, clock)
    synced = end.sync()
    began = journal.state.get("began")
    up = deadline.clock() - began if isinstance(began, (int, float)) else 0.0
    fires, reason = decide(armed, run, outcome, synced, up)
    over = _is_over(armed, journal)
    if over:
        # The deadline asked for this end, and stops the box itself; but not if it ends together with us.
        fires, reason = True, f"the limit is reached ({armed.limit_why})"
    decision = {"policy": armed.policy, "decision": "fire" if fires else "stay", "reason": reason, "at": now()}
    journal.update(synced=synced, poweroff=decision)
    end.tell("poweroff", f"{'power-off' if fires else 'no power-off'}: {reason}")
    end.notify(f"{_told(outcome)}; {'powers off' if fires else 'stays up'}: {reason}")
    if not fires or armed.plan is None:
        if armed.limit is not None:
            end.tell("deadline", f"still armed ({armed.limit_why}): `crab hold {run.name}` keeps the box up")
    elif end.count_down(given_up, over=over):
        return end.fire(armed.plan, reason, synced)
    else:
        end.tell("poweroff", "given up: the box stays up, and bills on")
    return True


def decide(armed: Armed, run: Run, outcome: Any, synced: bool | None, up: float) -> tuple[bool, str]:
    """Say whether the box is to be stopped now, and why, ``up`` seconds after the start; the results come first."""
    verdict = str(outcome.verdict)
    said = f"the run {_told(outcome)}, and the policy is {armed.policy!r}"
    if armed.plan is None or armed.stop is None or armed.policy == "never":
        return False, "not asked for"
    if verdict not in FIRES[armed.policy]:
        return False, said
    if verdict == "failed" and armed.policy == "finished" and up < EARLY:
        return False, f"it failed after {countdown.say(up)}: somebody should look (policy 'always' would stop the box)"
    risk = _risk(armed, armed.stop, run, synced)
    return not risk, risk or said


def _is_over(armed: Armed, journal: Journal) -> bool:
    at = journal.state.get("deadline")
    return armed.plan is not None and isinstance(at, (int, float)) and deadline.clock() >= at


def _risk(armed: Armed, stop: Stop, run: Run, synced: bool | None) -> str:
    """Say what a stop would lose; nothing when the results are safe."""
    lost = [
        str(path)
        for path in armed.results
        if path.exists() and not (synced and path.is_dir()) and not power.keeps(stop, path, armed.root)
    ]
    if lost:
        return f"results are not safe: {', '.join(lost)} would be lost"
    if synced or not stop.destroys:
        return ""
    if armed.target:
        return "results are not verified off the box, and this stop destroys it"
    if not any(map(_is_verified, (run.checkpoints, *armed.results))):
        return "no verified checkpoint is on the disk that stays, and this stop destroys the instance"
    return ""


def _elsewhere(armed: Armed, journal: Journal) -> list[Path]:
    """Return where the newest checkpoint lies, if the program keeps its own somewhere else."""
    newest = journal.state.get("checkpoint")
    if not isinstance(newest, str) or not os.path.isabs(newest) or not outside(Path(newest), armed.results):
        return []
    # Of ours the folder of all; of a single file only that, since what is beside it may be anything.
    return [Path(newest).parent if os.path.isdir(newest) else Path(newest)]


def _is_verified(checkpoints: Path) -> bool:
    for item in store.found(checkpoints):
        try:
            store.verify(item.path)
        except store.BadError:
            continue
        return True
    return False


class _End(NamedTuple):
    """The end of one run: each step tells the journal and whoever listens."""

    armed: Armed
    run: Run
    journal: Journal
    environ: Mapping[str, str]
    say: Say
    sleep: Callable[[float], None]
    clock: Callable[[], float]

    def tell(self, kind: str, text: str) -> None:
        self.journal.event(kind, text=text)
        self.say(text)

    def notify(self, text: str) -> None:
        if self.armed.url:
            wrong = notify.send(self.armed.url, f"hermitcrab: {self.run.name}", text, self.environ)
            self.journal.event("notify", text=f"not sent: {wrong}" if wrong else "sent")

    def sync(self) -> bool | None:
        """Copy and compare; None when that was not asked for."""
        target = self.armed.target
        if target is None:
            return None
        place = mask(target.place)
        self.journal.update(sync_to=place)
        self.tell("sync", f"copies results to {place}")
        sources = [path for path in self.armed.results if path.is_dir()]
        done = copying.sync(sources, target, self.run.name, self.armed.sync_time, self.environ, sleep=self.sleep)
        self.tell("sync", f"{'verified' if done.ok else 'FAILED, results are not synced'}: {mask(done.said)}")
        return done.ok

    def count_down(self, given_up: Callable[[], bool], *, over: bool) -> bool:
        """Wait the grace, and for whoever is at work; past the limit for nobody but a hold."""
        grace = 0.0 if over else self.armed.grace
        busy = Busy(self.run, ssh=self.armed.ssh, environ=self.environ)
        if grace:
            self.tell("countdown", f"{countdown.say(grace)} until power-off; `crab hold {self.run.name}` stops it")
        return countdown.run(
            grace,
            busy.held if over else busy,
            lambda text: self.tell("hold", text),
            given_up=(lambda: False) if over else given_up,
            clock=self.clock,
            sleep=self.sleep,
        )

    def fire(self, plan: Plan, reason: str, synced: bool | None) -> bool:
        """Stop the box; what comes after it is only for a box that did not."""
        copied = f", copied to {mask(self.armed.target.place)}" if self.armed.target and synced else ""
        missing = " (NOT synced)" if synced is False else ""
        farewell.leave(self.run, reason, f"{self.run.folder}{copied}{missing}", self.environ)
        self.journal.update(fired=now())  # a box that is started again is not stopped again for that
        self.tell("poweroff", f"stops {plan.name}: {reason}")
        if fire.fire(plan, lambda text: self.tell("poweroff", text), sleep=self.sleep):
            return True
        farewell.clear(self.environ)
        decision = {"decision": "failed", "reason": fire.still_billing(plan), "at": now()}
        self.journal.update(poweroff={"policy": self.armed.policy, **decision})
        self.notify(fire.still_billing(plan))
        return False


def _told(outcome: Any) -> str:
    word = TOLD.get(str(outcome.verdict), str(outcome.verdict))
    return word + (f" ({outcome.reason})" if outcome.reason and outcome.verdict != "done" else "")
