"""A child process for what may hang, crash or hold GPU memory: drivers, kernels, network disks.

It is forked before anything touches CUDA, serves one question after another (torch is imported
once), and leaves nothing behind: the driver frees what it held. After a crash or a hang the next
question gets a new child.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Callable, NamedTuple

MOST_DEATHS = 2  # then the rest is not asked: each new child costs an import of torch
LAST_WORDS = 4000
PATIENCE = 5.0  # in a driver that hangs even SIGKILL may wait, and the check must not


class Failure(NamedTuple):
    """Why a question got no answer, and what was said meanwhile."""

    why: str
    said: str = ""


class Child:
    """Answers questions in a process of its own; use as a context manager."""

    def __init__(self) -> None:
        self._pid = 0
        self._deaths = 0

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pid:
            self._end()

    def ask(self, function: Callable[..., Any], *arguments: object, seconds: float) -> Any:
        """Return what the function returns, or a Failure: it raised, crashed or took too long."""
        if self._deaths >= MOST_DEATHS:
            return Failure("not run, since two checks before it crashed or hung")
        if not self._pid:
            self._start()
        try:
            self._connection.send((function, arguments))
            if self._connection.poll(seconds):
                return self._connection.recv()
            why = f"no answer in {seconds:g} s"
        except (EOFError, OSError):
            why = _death(self._pid) or "the process closed its connection"
        self._deaths += 1
        return Failure(why, self._end())

    def _start(self) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the child ends
        self._connection, theirs = Pipe()
        # By hand and not by multiprocessing, which at exit waits for ever for a child that cannot die.
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._connection.close()  # or the child would never see the end of its parent
                _serve(theirs, self._said.fileno())
            finally:
                os._exit(1)
        theirs.close()

    def _end(self) -> str:
        """End the child with all it started, and return its last words."""
        for kill in (os.killpg, os.kill):  # the second for one that had no time to make its group
            with suppress(ProcessLookupError, PermissionError):
                kill(self._pid, signal.SIGKILL)
        if _death(self._pid):
            os.waitpid(self._pid, 0)
        self._pid = 0
        self._connection.close()
        with self._said as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS))
            return file.read().decode(errors="replace").strip()


def _serve(connection: Connection, said: int) -> None:
    """Answer until the parent is gone."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(said, stream)
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        connection.send(_answer(function, arguments))


def _answer(function: Callable[..., Any], arguments: tuple[object, ...]) -> Any:
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - torch raises whatever it likes
        return Failure(f"{type(error).__name__}: {error}")


def _death(pid: int) -> str:
    """Wait for a process to end and say how it did; empty when it goes on. Its number stays taken."""
    end = time.monotonic() + PATIENCE
    while True:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if ended and ended.si_code == os.CLD_EXITED:
            return f"the process ended with status {ended.si_status}"
        if ended:
            names = {signum.value: signum.name for signum in signal.Signals}
            return f"the process was killed by {names.get(ended.si_status, ended.si_status)}"
        if time.monotonic() >= end:
            return ""
        time.sleep(0.01)
