"""A child process for what may hang, crash or hold GPU memory: drivers, kernels, network disks.

It is forked before anything touches CUDA, serves one question after another (torch is imported
once), and leaves nothing behind: the driver frees what it held. After a crash or a hang the next
question gets a new child.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Callable, NamedTuple

MOST_DEATHS = 2  # then the rest is not asked: each new child costs an import of torch
LAST_WORDS = 4000


class Failure(NamedTuple):
    """Why a question got no answer, and what was said meanwhile."""

    why: str
    said: str = ""


class Child:
    """Answers questions in a process of its own; use as a context manager."""

    def __init__(self) -> None:
        self._process: Any = None
        self._deaths = 0

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def ask(self, function: Callable[..., Any], *arguments: object, seconds: float) -> Any:
        """Return what the function returns, or a Failure: it raised, crashed or took too long."""
        if self._deaths >= MOST_DEATHS:
            return Failure("not run, since two checks before it crashed or hung")
        if self._process is None:
            self._start()
        try:
            self._connection.send((function, arguments))
            if self._connection.poll(seconds):
                return self._connection.recv()
            why = f"no answer in {seconds:g} s"
        except (EOFError, OSError):
            self._process.join(5)
            why = _death(self._process.exitcode)
        self._deaths += 1
        return Failure(why, self._end())

    def _start(self) -> None:
        self._said = tempfile.TemporaryFile()
        # fork, since the parent holds no threads: no second start of Python, and a fake root travels along.
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._connection, self._said.fileno()))
        self._process.start()
        theirs.close()

    def _end(self) -> str:
        """End the child with all it started, and return its last words."""
        if self._process is None:
            return ""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()  # not yet in a group of its own, when it was only just started
        self._process.join(5)  # in a driver that hangs even SIGKILL may wait
        self._process = None
        self._connection.close()
        with self._said as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS))
            return file.read().decode(errors="replace").strip()


def _serve(connection: Connection, parents: Connection, said: int) -> None:
    """Answer until the parent is gone."""
    os.setsid()
    parents.close()  # or the end of the parent would never be seen
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


def _death(exitcode: int | None) -> str:
    if exitcode is None or exitcode >= 0:
        return f"the process ended with status {exitcode}"
    with suppress(ValueError):
        return f"the process was killed by {signal.Signals(-exitcode).name}"
    return f"the process was killed by signal {-exitcode}"
