"""One start of the user's command: run, watched, and ended so that nothing of it is left."""

from __future__ import annotations

import math
import os
import resource
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Protocol, Sequence

from hermitcrab import status as statuses
from hermitcrab.status import Status
from hermitcrab.train import oom, process
from hermitcrab.train.failures import Ended
from hermitcrab.train.inbox import Inbox
from hermitcrab.train.journal import Journal
from hermitcrab.train.process import Process, Reaper, Tree
from hermitcrab.train.pump import Copy, Log, Pump
from hermitcrab.train.watch.finding import Finding

TICK = 1.0
LOOK_SECONDS = 5.0  # between two looks at the processes
SAMPLE_SECONDS = 10.0
DUMP_SECONDS = 3.0  # for a stack dump to appear in the log
FULL = "The training goes on; lines of its log are lost, the journal waits for room: make some"
HUNG_GRACE = 20.0  # what hangs rarely saves; the GPU waits for somebody else


class Watcher(Protocol):
    """What is told of an attempt while it runs."""

    def begin(self, attempt: int, pid: int | None = None) -> None:
        """Begin with a new attempt."""

    def line(self, text: str) -> None:
        """Take one line of output."""

    def tick(self, status: Status, now: float) -> Sequence[Finding]:
        """Say what is to be said now."""

    def sample(self) -> dict[str, Any]:
        """Return the measurements."""

    def state(self) -> dict[str, Any]:
        """Return what run.json tells of it."""

    def verdict(self) -> Finding | None:
        """Return the verdict over a short run that ended by itself; None where none was asked for."""


class Setting(NamedTuple):
    """What an attempt is to run, and as which one of its run."""

    argv: Sequence[str]
    environ: Mapping[str, str]
    number: int
    grace: float  # seconds to save after SIGTERM


class Attempt:
    """Starts a command and follows it to its end."""

    def __init__(
        self, setting: Setting, journal: Journal, inbox: Inbox, watch: Watcher, *, log: Log, copy: Copy | None
    ) -> None:
        self.setting, self.journal, self.inbox, self.watch = setting, journal, inbox, watch
        self.status = Status()
        self.step: int | None = None  # the newest of this attempt
        self._log, self._copy = log, copy
        self._pump = Pump(log, copy)
        self._reaper = Reaper()
        self._asked: Finding | None = None
        self._stamp: tuple[int, int] | None = None
        self._look_at = self._sample_at = 0.0
        self._broken: set[str] = set()
        self._full = False

    def run(self) -> Ended:
        """Run it to its end; returns all that is known about that."""
        begun, kills = time.monotonic(), oom.kills()
        with suppress(OSError):
            os.unlink(self.journal.run.status)
        try:
            child = process.start(self.setting.argv, self.setting.environ, self._pump.sink)
        except OSError as error:
            self._pump.start()
            return Ended(code=127, tail=[f"{self.setting.argv[0]}: {error.strerror}"])
        self._pump.start()
        started = process.read(child.pid)
        self.journal.update(child=child.pid, child_started=started and started.started)
        self._guard("watch.begin", self.watch.begin, self.setting.number, child.pid)
        tree = Tree(child.pid, self.journal.run.folder)
        try:
            self._follow(child, tree)
            self._clear(child, tree)
        except BaseException:
            # A training without a supervisor is worse than none: it has its checkpoints, and nobody to end it.
            self._stop(tree)
            raise
        self._pump.finish()
        self._look(time.monotonic())
        self._update()
        self.journal.update(child=None, child_started=None)
        return Ended(
            code=child.wait(),
            tail=list(self._pump.tail),
            seconds=time.monotonic() - begun,
            killed_for_memory=oom.since(kills, oom.kills()),
            asked=self._asked.kind if self._asked else "",
            said=self._asked.text if self._asked else "",
            advice=self._asked.advice if self._asked else (),
        )

    def say(self, *lines: str) -> None:
        """Tell it in the log, and to whoever reads."""
        say(self._log, self._copy, *lines)

    def _follow(self, child: subprocess.Popen[bytes], tree: Tree) -> None:
        while child.poll() is None and not self._asked:
            self.inbox.wait(TICK)
            self._pass_on()
            if self.inbox.stop:
                self._asked = Finding("stopped", fatal=True, text=f"stopped by {self.inbox.stop}")
                self.journal.event("signal", name=self.inbox.stop)
                self.say(f"crab: {self.inbox.stop}: it may save and end; once more ends it at once")
            elif child.poll() is None:
                self._tick(child, tree)

    def _tick(self, child: subprocess.Popen[bytes], tree: Tree) -> None:
        now = time.monotonic()
        for finding in self._look(now):
            self._tell(finding)
        self._tell_of_full_disk()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            tree.look()
            self._reaper.sweep(child.pid)
        if now >= self._sample_at:
            self._sample_at = now + SAMPLE_SECONDS
            self.journal.sample(**(self._guard("watch.sample", self.watch.sample) or {}))
            self._update()

    def _look(self, now: float) -> Sequence[Finding]:
        """Hand over what is new; returns what the watch says to it."""
        self._read_status()
        for line in self._pump.take():
            self._guard("watch.line", self.watch.line, line)
        return self._guard("watch.tick", self.watch.tick, self.status, now) or ()

    def _update(self) -> None:
        """Tell the journal how far it is: as the program says it, else as it was read from its output."""
        status = self.status
        told = {"step": status.step, "total": status.total, "loss": _plain(status.loss)}
        told.update(committed=status.committed, checkpoint=status.checkpoint or None)
        seen = self._guard("watch.state", self.watch.state) or {}
        fields = {**seen, **{name: value for name, value in told.items() if value is not None}}
        self.step = fields.get("step")
        # What is not known any more, as after a restart, was still true.
        self.journal.update(**{name: value for name, value in fields.items() if value not in {None, ""}})

    def _tell(self, finding: Finding) -> None:
        kind = "preemption" if finding.kind == "preempted" else "warning"
        self.journal.event(kind, what=finding.kind, text=finding.text, advice=list(finding.advice))
        self.say(f"crab: {finding.text}", *(f"crab:   try: {advice}" for advice in finding.advice))
        if finding.kind == "nan" and self.status.finished:
            return  # it is over anyhow, and its end says more
        if finding.fatal and not self._asked:
            self._asked = finding

    def _tell_of_full_disk(self) -> None:
        """Say once that log and journal stand still; the log has it with the count of its lost lines, later."""
        full, before = bool(self._log.lost or self.journal.waits), self._full
        self._full = full
        if full and not before:
            self.say(f"crab: WARNING: {self.journal.run.folder} cannot be written to, is its disk full? {FULL}")

    def _clear(self, child: subprocess.Popen[bytes], tree: Tree) -> None:
        """End what has to be ended; a training that ended well may leave something that still saves or uploads."""
        if child.poll() is None:
            left = self._stop(tree)
            with suppress(subprocess.TimeoutExpired):
                child.wait(process.BOUND)
        else:
            left = tree.look()
            if left and child.returncode == 0:
                names = ", ".join(process.name(one) for one in left[:3])
                self.say(f"crab: it ended, but left {len(left)} processes ({names}): they may take a while")
                process.linger(tree, self.setting.grace, lambda: bool(self.inbox.stop))
            left = process.stop(tree, None, process.LINGER, lambda: self.inbox.now)
        self._reaper.sweep(child.pid)
        if left:
            names = ", ".join(f"{one.pid} {process.name(one)}" for one in left)
            self._asked = Finding("gpu-lost", fatal=True, text=f"even SIGKILL does not end {names}")

    def _stop(self, tree: Tree) -> list[Process]:
        self._read_status()
        grace, asked = self.setting.grace, self._asked
        if asked and asked.until is not None:
            grace = min(grace, max(1.0, asked.until - time.time() - 3))
        if asked and asked.kind == "hang":
            grace = min(grace, HUNG_GRACE)
            self._dump(tree)
        announcer = self.status.pid if "SIGTERM" in self.status.signals else None
        return process.stop(tree, announcer, grace, lambda: self.inbox.now)

    def _dump(self, tree: Tree) -> None:
        """Have the stacks of a hung training written to its log, by the gentlest way there is."""
        writer = next((one for one in tree.look() if one.pid == self.status.pid), None)
        if writer and "SIGUSR1" in self.status.signals:
            process.send(writer, signal.SIGUSR1)
            time.sleep(DUMP_SECONDS)
        elif shutil.which("py-spy"):
            for one in tree.look()[:16]:
                with suppress(OSError, subprocess.SubprocessError):
                    done = subprocess.run(
                        ["py-spy", "dump", "--pid", str(one.pid)], capture_output=True, timeout=10, check=False
                    )
                    self.say(*done.stdout.decode("utf-8", "replace").splitlines())
        else:
            # faulthandler is on: SIGABRT prints all stacks, and ends what is about to be ended anyhow.
            self.say(*(_where(one) for one in tree.look()[:16]))
            if resource.getrlimit(resource.RLIMIT_CORE)[0] == 0:
                for one in tree.look():
                    if b"python" in _executable(one.pid):
                        process.send(one, signal.SIGABRT)
                time.sleep(DUMP_SECONDS)

    def _pass_on(self) -> None:
        """Pass signals on to the program, if it says that it handles them: they end any other."""
        if self.inbox.passed:
            self._read_status()
        while self.inbox.passed:
            name = signal.Signals(self.inbox.passed.pop(0)).name
            found = process.read(self.status.pid or 0) if name in self.status.signals else None
            if found and process.send(found, signal.Signals[name]):
                self.journal.event("signal", name=name)
            else:
                self.say(f"crab: {name} is not passed on: the program has not said that it handles it")

    def _read_status(self) -> None:
        path = self.journal.run.status
        try:
            found = os.stat(path)
        except OSError:
            return
        if (found.st_mtime_ns, found.st_ino) == self._stamp:
            return
        self._stamp = (found.st_mtime_ns, found.st_ino)
        status = statuses.read(path)
        if status.attempt not in {None, self.setting.number}:
            return
        if status.committed is not None and status.committed != self.status.committed:
            self.journal.event("checkpoint", step=status.committed, path=status.checkpoint)
        self.status = status

    def _guard(self, what: str, work: Any, *arguments: Any) -> Any:
        """Call a part that only looks: its faults must never end a training."""
        try:
            return work(*arguments)
        except Exception as error:  # noqa: BLE001 - as above
            if what not in self._broken:
                self._broken.add(what)
                self.journal.event("warning", what="bug", text=f"{what}: {error!r}")
                self.say(f"crab: a fault of crab's own, the training goes on: {what}: {error!r}")
            return None


def say(log: Log, copy: Copy | None, *lines: str) -> None:
    """Tell it in the log, and to whoever reads."""
    parts = [part for line in lines for part in line.splitlines() or [""]]
    if parts:
        log.write(*parts)
    if parts and copy:
        copy.put("".join(f"{part}\n" for part in parts).encode("utf-8", "backslashreplace"))


def _plain(value: float | None) -> float | str | None:
    """JSON has no number for NaN and the infinities."""
    return value if value is None or math.isfinite(value) else str(value)


def _where(one: Process) -> str:
    """Say what the kernel knows of a process that stands still."""
    try:
        channel = Path(f"/proc/{one.pid}/wchan").read_text(encoding="ascii", errors="replace")
    except OSError:
        channel = ""
    return f"crab: {one.pid} {process.name(one)}: state {one.state}, waits in {channel.strip('0') or '?'}"


def _executable(pid: int) -> bytes:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).encode()
    except OSError:
        return b""
