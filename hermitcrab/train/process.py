"""The processes of a training: who descends from it, how it is started, and how no one of it is left.

Launchers give their workers sessions of their own, and daemons leave their parents. The supervisor is a
subreaper: whoever loses its parent becomes its child, and is known by the variable that marks the run.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Callable, Iterable, Mapping, NamedTuple, Sequence

MARK = "CRAB_RUN"  # the folder of the run, in the environment of all that a training starts
SUBREAPER = 36  # prctl's PR_SET_CHILD_SUBREAPER
LINGER = 5.0  # seconds that what is left may take once the training itself has ended
BOUND = 10.0  # seconds until a process counts as held by the kernel, after SIGKILL
PAUSE = 0.05
SHELLS = {b"ash", b"bash", b"dash", b"ksh", b"sh", b"zsh"}


class Process(NamedTuple):
    """A line of the kernel's table; pid and start time together are never used twice."""

    pid: int
    parent: int
    session: int
    state: str
    started: int


def become_subreaper() -> None:
    """Become the parent of every descendant that loses its own; on a kernel without it, of those in the tree only."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0)


def start(argv: Sequence[str], environ: Mapping[str, str], output: int) -> subprocess.Popen[bytes]:
    """Start a command as it stands, without a shell, in a session of its own; raises OSError."""
    return subprocess.Popen(
        list(argv), stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(environ), start_new_session=True
    )


def read(pid: int) -> Process | None:
    """Read one process; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # read hundreds of times a minute
            data = file.read()
    except OSError:
        return None
    words = data.rpartition(b")")[2].split()  # the name before it may hold anything
    return Process(pid, int(words[1]), int(words[3]), words[0].decode("ascii"), int(words[19]))


def lives(pid: object, started: object) -> bool:
    """Say whether this very process is alive, and not another that got its number."""
    found = read(pid) if isinstance(pid, int) and pid > 0 else None
    return found is not None and found.state not in "ZX" and found.started == started


def table() -> dict[int, Process]:
    """Read all processes that can be seen."""
    found = (read(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process}


def below(roots: Iterable[int], processes: Mapping[int, Process]) -> set[int]:
    """Return all descendants of some processes."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    waiting = [child for root in roots for child in children.get(root, ())]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, ())
    return found


def is_marked(pid: int, folder: Path) -> bool:
    """Say whether a process carries the mark of a run; one that may not be read does not."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return os.fsencode(f"{MARK}={folder}") in words


def marked(folder: Path) -> list[Process]:
    """Find whatever is alive of a run, whoever its parent is."""
    found = [one for one in table().values() if one.state not in "ZX" and is_marked(one.pid, folder)]
    return [one for one in found if one.pid != os.getpid()]


class Tree:
    """All that one training started and that lives; ``look`` often, so that it sees whoever leaves its parent."""

    def __init__(self, child: int, folder: Path) -> None:
        self.child, self.folder = child, folder
        self._seen: set[tuple[int, int]] = set()

    def look(self) -> list[Process]:
        """Return the living ones."""
        processes = table()
        mine = below([os.getpid()], processes)
        seen = {pid for pid, started in self._seen if pid in processes and processes[pid].started == started}
        tree = {self.child} | seen
        tree |= below(tree, processes)
        # Not all children are of the training: as PID 1 the supervisor gets whatever the container loses.
        sessions = {processes[pid].session for pid in tree if pid in processes} | {self.child}
        tree |= {pid for pid in mine - tree if processes[pid].session in sessions or is_marked(pid, self.folder)}
        found = [processes[pid] for pid in sorted(tree & set(processes))]
        self._seen = {(one.pid, one.started) for one in found}
        return [one for one in found if one.state not in "ZX"]


class Reaper:
    """Buries adopted children. Those that wait longer than a sweep only: others have a caller who will ask."""

    def __init__(self) -> None:
        self._before: set[tuple[int, int]] = set()

    def sweep(self, keep: int) -> None:
        """Bury whoever was dead at the last sweep already, except ``keep``."""
        mine = os.getpid()
        dead = {(one.pid, one.started) for one in table().values() if one.parent == mine and one.state == "Z"}
        for pid, _ in dead & self._before:
            if pid != keep:
                bury(pid)
        self._before = dead


def bury(pid: int) -> None:
    """Take a dead child out of the kernel's table."""
    with suppress(OSError):
        os.waitpid(pid, os.WNOHANG)


def stop(tree: Tree, announcer: int | None, grace: float, hurry: Callable[[], bool]) -> list[Process]:
    """Stop a training: SIGTERM, time to save, SIGKILL; returns whom even that did not end.

    ``announcer`` is the process that said it saves on SIGTERM: then it is asked, and the shells above it that
    would go on to their next line, but no one else: a signal to its data loaders would break the step that it
    wants to finish. ``hurry`` cuts the grace short.
    """
    asked = _asked(tree.look(), announcer)
    for one in asked:
        send(one, signal.SIGTERM)
    limit = time.monotonic() + grace
    left = tree.look()
    while left and time.monotonic() < limit and not hurry():
        if asked and not any(lives(one.pid, one.started) for one in asked):
            limit, asked = min(limit, time.monotonic() + LINGER), []
            for one in left:
                send(one, signal.SIGTERM)
        time.sleep(PAUSE)
        left = tree.look()
    return kill(tree)


def linger(tree: Tree, seconds: float, hurry: Callable[[], bool]) -> bool:
    """Wait for what the training left behind; says whether it is gone."""
    limit = time.monotonic() + seconds
    while tree.look():
        if time.monotonic() > limit or hurry():
            return False
        time.sleep(PAUSE)
    return True


def kill(tree: Tree) -> list[Process]:
    """End what is left, at once; returns those that the kernel holds."""
    limit = time.monotonic() + BOUND
    left = tree.look()
    while left and time.monotonic() < limit:
        for one in left:
            send(one, signal.SIGKILL)
        time.sleep(PAUSE)
        left = tree.look()
    return left


def send(process: Process, number: int) -> bool:
    """Send a signal to this very process; a stopped one is woken to take it."""
    if not lives(process.pid, process.started):
        return False
    try:
        os.kill(process.pid, number)
        if number != signal.SIGKILL:
            os.kill(process.pid, signal.SIGCONT)
    except OSError:
        return False
    return True


def name(process: Process) -> str:
    """Name a process by its command, for people."""
    return _command(process.pid).replace(b"\0", b" ").decode("utf-8", "replace").strip()[:100] or "?"


def _asked(members: Sequence[Process], announcer: int | None) -> list[Process]:
    by_pid = {one.pid: one for one in members}
    commands = {one.pid: _command(one.pid) for one in members}
    if announcer not in by_pid:
        return [one for one in members if not _is_helper(one, commands)]
    asked = [by_pid[announcer]]
    above = by_pid.get(asked[0].parent)
    while above:
        asked += [above] if _is_shell(commands[above.pid]) else []
        above = by_pid.get(above.parent)
    return asked


def _is_shell(command: bytes) -> bool:
    return os.path.basename(command.split(b"\0")[0]).lstrip(b"-") in SHELLS


def _is_helper(process: Process, commands: Mapping[int, bytes]) -> bool:
    """Say whether a process is a worker of its parent's: a fork of it, or one of Python's multiprocessing."""
    own = commands[process.pid]
    return b"multiprocessing" in own or (bool(own) and own == commands.get(process.parent))


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
