"""A run from its first attempt to its end: restarts by the table of failures, then the gate."""

from __future__ import annotations

import os
import shlex
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, NamedTuple

from hermitcrab.box import files
from hermitcrab.box.mask import mask_words
from hermitcrab.status import Status
from hermitcrab.train import process, resume
from hermitcrab.train.attempt import Attempt, Setting, Watcher, say
from hermitcrab.train.failures import KINDS, Ended, Failure, classify, shell_status
from hermitcrab.train.inbox import Inbox
from hermitcrab.train.journal import Journal, now
from hermitcrab.train.policy import Decision, Policy
from hermitcrab.train.pump import Copy, Log
from hermitcrab.train.resume import Mark

VERDICTS = {"done": "done", "stopped": "stopped", "preempted": "preempted", "smoke-done": "smoke"}
SPACE_SECONDS = 3600.0  # how long a full disk is waited for
SPACE_LEAST = 1 << 30
TICK = 1.0


class Plan(NamedTuple):
    """What is to be run, and how; everything of the command line that the supervisor itself needs."""

    argv: tuple[str, ...]
    places: tuple[Path, ...]  # where its checkpoints may be
    identity: str  # RUN_ID: the same for all attempts
    words: tuple[str, ...] = ()  # those of --resume-args
    preset: str = ""
    resume: str = resume.AUTO
    grace: float = 120.0
    restarts: int = 4
    alternatives: tuple[dict[str, str], ...] = ()  # of --on-oom, each tried once
    done_file: Path | None = None
    start_at: float | None = None  # seconds since the epoch
    piped: bool = False


class Outcome(NamedTuple):
    """How a run ended."""

    verdict: str  # done, failed, stopped, preempted or smoke
    failure: str  # a class of failures.KINDS
    reason: str
    advice: tuple[str, ...]
    status: int  # for whoever waits for `crab train`


class Supervisor:
    """Runs a plan. Its journal, log and lock are its own; nobody else writes them."""

    def __init__(
        self, plan: Plan, journal: Journal, inbox: Inbox, watch: Watcher, *, log: Log, copy: Copy | None
    ) -> None:
        self.plan, self.journal, self.inbox, self.watch = plan, journal, inbox, watch
        self.run = journal.run
        self._log, self._copy = log, copy
        self._policy = Policy(plan.restarts, alternatives=len(plan.alternatives))
        self._alternatives = list(plan.alternatives)
        self._environ = dict(os.environ)
        self._progressed = False
        self._known = _number(journal.state.get("committed"))

    def train(self, arm: Callable[[], None] = lambda: None) -> Outcome:
        """Run attempts until it is decided; ``arm`` is called before the first."""
        with suppress(OSError):
            self.run.failed.unlink()
        outcome = self._wait_for_start()
        if outcome is None:
            arm()
            outcome = self._attempts()
        return self.end(outcome)

    def end(self, outcome: Outcome) -> Outcome:
        """Write down how it ended, with a marker for scripts: `done`, or `failed`."""
        marker = {"done": self.run.done, "failed": self.run.failed}.get(outcome.verdict)
        if marker:
            try:
                files.write(marker, f"{now()} {outcome.reason}\n".encode("utf-8", "replace"))
            except OSError:
                with suppress(OSError):  # a full disk still has room for a name
                    marker.touch()
        self.journal.update(
            state="closing",
            verdict=outcome.verdict,
            failure=outcome.failure,
            reason=outcome.reason,
            advice=list(outcome.advice),
            exit=outcome.status,
        )
        self.journal.event("ended", verdict=outcome.verdict, failure=outcome.failure, reason=outcome.reason)
        return outcome

    def say(self, *lines: str) -> None:
        """Tell it in the log, and to whoever reads."""
        say(self._log, self._copy, *lines)

    def _attempts(self) -> Outcome:
        number = int(self.journal.state.get("attempt") or 0)
        passed_over: frozenset[str] = frozenset()
        wanted = self.plan.resume
        while True:
            number += 1
            before = resume.newest(self.plan.places, self.plan.preset)
            attempt, mark = self._prepare(number, wanted, passed_over)
            ended = attempt.run()
            decision = self._judge(attempt, ended, before, mark)
            if not decision.restart or not self._pause(decision):
                return self._outcome(ended, decision.failure)
            passed_over, wanted = self._policy.poisoned, resume.AUTO

    def _prepare(self, number: int, wanted: str, passed_over: frozenset[str]) -> tuple[Attempt, Mark | None]:
        """Put an attempt together: its words, its variables, and the checkpoint that it goes on from."""
        plan = self.plan
        mark = self._checkpoint(wanted, passed_over)
        argv = resume.command(plan.argv, plan.words, mark)
        environ = resume.environment(
            self.run,
            folder=plan.places[0],
            identity=plan.identity,
            attempt=number,
            resume=str(mark.path) if mark else wanted,
            grace=plan.grace,
            base=self._environ,
        )
        shown = mask_words(argv)
        self.journal.update(state="running", attempt=number)
        self.journal.event("attempt", number=number, argv=shown, resume=environ["RESUME"])
        told = f", from {mark.path}" if mark else ""
        self.say(f"crab: attempt {number}{told}: {shlex.join(shown)}")
        setting = Setting(argv, environ, number, plan.grace)
        return Attempt(setting, self.journal, self.inbox, self.watch, log=self._log, copy=self._copy), mark

    def _checkpoint(self, wanted: str, passed_over: frozenset[str]) -> Mark | None:
        """Choose the checkpoint for a program that does not choose itself."""
        plan = self.plan
        if wanted == resume.NONE:
            return None
        if wanted != resume.AUTO:
            return Mark(Path(wanted), None, 0)
        first = resume.newest(plan.places, plan.preset)
        if first is None or (resume.is_own(first) and not plan.words):
            return None  # the library reads all of it anyhow, and steps back by itself
        mark = resume.verified(plan.places, plan.preset, passed_over)
        if mark != first:
            self.say(f"crab: WARNING: {first.path} is passed over: it is not whole, or the program died after it")
        return mark

    def _judge(self, attempt: Attempt, ended: Ended, before: Mark | None, mark: Mark | None) -> Decision:
        """Say why it ended, tell everybody, and decide what follows."""
        status = attempt.status
        committed = self._committed(status, before)
        ended = ended._replace(
            committed=committed,
            progressed=self._progressed,
            finished=_finished(status, self.run.status),
            done_file=self.plan.done_file.exists() if self.plan.done_file else None,
            piped=self.plan.piped,
        )
        self._progressed |= committed or attempt.step is not None
        failure = self._smoke(ended) or classify(ended)
        if failure.kind not in KINDS or failure.kind == "done":  # a short run is over, however it went
            if failure.kind != "done" and not ended.asked:
                self.say(f"crab: {failure.reason}")
            return Decision(restart=False, failure=failure)
        resumed = str(mark.path) if mark else ""
        decision = self._policy.failed(failure, step=attempt.step, committed=committed, resumed=resumed)
        self._record(attempt.setting.number, ended, decision.failure)
        return decision

    def _committed(self, status: Status, before: Mark | None) -> bool:
        """Say whether a new checkpoint is safe: the program's own word, else what lies where checkpoints are."""
        if status.committed is None:
            return resume.got_on(before, resume.newest(self.plan.places, self.plan.preset))
        known, self._known = self._known, status.committed
        return status.committed != known

    def _smoke(self, ended: Ended) -> Failure | None:
        """Return the verdict of a short run, whether it was ended or ended by itself."""
        if ended.asked == "smoke-done":
            return Failure("smoke-done", ended.said, "", ended.advice)
        found = self.watch.verdict() if not ended.asked and ended.code == 0 else None
        return Failure("smoke-done", found.text, "", found.advice) if found else None

    def _record(self, number: int, ended: Ended, failure: Failure) -> None:
        """Tell what happened, what shows it, and what to try; the last lines go into a file of their own."""
        if failure.kind == "stopped":
            self.say(f"crab: {failure.reason}")
            return
        path = self.run.folder / f"failure-{number}.txt"
        with suppress(OSError):
            files.write(path, "".join(f"{line}\n" for line in ended.tail).encode("utf-8", "replace"))
        advice = list(failure.advice)
        self.journal.event(
            "failure",
            what=failure.kind,
            reason=failure.reason,
            evidence=failure.evidence,
            advice=advice,
            tail=path.name,
        )
        self.say(f"crab: attempt {number} ended after {ended.seconds:.0f} s: {failure.kind}: {failure.reason}")
        self.say(f"crab:   evidence: {failure.evidence or 'none'}; its last lines: {path}")
        self.say(*(f"crab:   try: {line}" for line in advice))

    def _pause(self, decision: Decision) -> bool:
        """Wait before the next attempt; says whether there is to be one."""
        if decision.alternative:
            self._environ.update(self._alternatives.pop(0))
        self.journal.update(state="restarting")
        self.journal.event("restart", delay=decision.delay, reason=decision.failure.reason)
        self.say(f"crab: starts again in {decision.delay:.0f} s")
        self._sleep(lambda: False, decision.delay)
        if decision.wait_for_space and not self.inbox.stop:
            return self._sleep(self._has_space, SPACE_SECONDS)
        return not self.inbox.stop

    def _has_space(self) -> bool:
        folder = next(path for path in (*self.plan.places[:1], self.run.folder) if path.exists())
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize > min(SPACE_LEAST, found.f_blocks * found.f_frsize // 20)

    def _sleep(self, over: Callable[[], bool], seconds: float) -> bool:
        """Sleep until it is over, the time has passed or a stop is asked for; says whether it is over."""
        limit = time.monotonic() + seconds
        while not self.inbox.stop and time.monotonic() < limit:
            if over():
                return True
            self.inbox.wait(min(TICK, limit - time.monotonic()))
        return False

    def _wait_for_start(self) -> Outcome | None:
        """Wait for the hour of --start-at; an outcome only when it was stopped before."""
        start = self.plan.start_at
        if start is not None:
            self.journal.update(state="waiting")
            told = time.strftime("%Y-%m-%d %H:%M", time.localtime(start))
            self.journal.event("waiting", until=told)
            self.say(f"crab: waits until {told}")
            self._sleep(lambda: time.time() >= start, float("inf"))
        if not self.inbox.stop:
            return None
        return Outcome("stopped", "stopped", f"stopped by {self.inbox.stop} before it began", (), 143)

    def _outcome(self, ended: Ended, failure: Failure) -> Outcome:
        if self.inbox.stop and failure.kind not in VERDICTS:
            # While it waited for a restart: what failed is known, and that nobody wants another try.
            failure = Failure("stopped", f"stopped by {self.inbox.stop}; before: {failure.reason}")
        verdict = VERDICTS.get(failure.kind, "failed")
        status = shell_status(ended.code)
        if verdict in {"failed", "preempted"} and status == 0:
            status = 1
        if verdict == "smoke":
            status = int(not failure.reason.startswith("smoke: in order"))
        return Outcome(verdict, failure.kind, failure.reason, tuple(failure.advice), status)


def _finished(status: Status, path: Path) -> bool | None:
    """Say whether the program reached its end, if it speaks of it at all."""
    if "finished" not in files.read_json(path) or status.step is None:
        return None
    at_end = status.total is not None and status.step + 1 >= status.total
    return bool(status.finished or at_end or status.committed == status.step)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def start_time() -> dict[str, Any]:
    """Return who supervises: a process id alone says nothing after a restart of the box."""
    me = process.read(os.getpid())
    boot = files.read(Path("/proc/sys/kernel/random/boot_id")) or b""
    return {"pid": os.getpid(), "started": me and me.started, "boot": boot.decode("ascii", "replace").strip()}


assert set(VERDICTS) - {"smoke-done"} <= set(KINDS)
