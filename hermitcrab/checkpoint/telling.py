"""What the supervisor is told of a training: its status file, written beside it and never in its way."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any, Mapping

from hermitcrab import status
from hermitcrab.checkpoint import metrics
from hermitcrab.errors import UserError
from hermitcrab.status import Status

EVERY_S = 1.0  # between two steps that are told
MEASURED = ("loss", "grad_norm")
PATIENCE_S = 2.0  # for the last word; a hung disk must not keep the program from ending


class Teller:
    """Keeps the newest status and has a thread write it; without a path it does nothing.

    Even a small file takes long on a disk that hangs, so the training's thread never writes it.
    """

    def __init__(self, path: Path | None, **fields: Any) -> None:
        self._path = path
        self._fields: dict[str, Any] = {"pid": os.getpid(), **fields}
        self._due = 0.0
        self._lock = threading.Lock()
        self._news, self._urgent, self._end = threading.Event(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def step(self, step: int, loss: Any = None, grad_norm: Any = None) -> None:
        """Tell of a step, about once a second. A value on a GPU is read by the thread: reading it waits."""
        if self._path is None:
            return
        values = {name: _held(name, value) for name, value in zip(MEASURED, (loss, grad_norm))}
        self._take({"step": step, **values})

    def tell(self, **fields: Any) -> None:
        """Tell at once."""
        if self._path is not None:
            self._take(fields)
            self._urgent.set()

    def close(self, **fields: Any) -> None:
        """Tell the last word and stop."""
        self._end.set()
        self.tell(**fields)
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
        self._path = None

    def _take(self, fields: Mapping[str, Any]) -> None:
        with self._lock:
            self._fields.update(fields)
        self._news.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_on, name="hermitcrab-status", daemon=True)
            self._thread.start()

    def _write_on(self) -> None:
        path = self._path
        assert path is not None
        while not (self._end.is_set() and not self._news.is_set()):
            self._news.wait()
            self._urgent.wait(max(0.0, self._due - time.monotonic()))
            self._urgent.clear()
            self._news.clear()
            with self._lock:
                fields = dict(self._fields)
            self._due = time.monotonic() + EVERY_S
            with contextlib.suppress(Exception):  # what cannot be told is no reason to stop a training
                measured = {name: metrics.number(fields.get(name)) for name in MEASURED}
                status.write(path, Status(**{**fields, **measured}))


def from_environment(environ: Mapping[str, str] = os.environ) -> Teller:
    """Tell where the supervisor wants it, if there is one."""
    path, attempt = environ.get(status.VARIABLE), environ.get("ATTEMPT", "")
    return Teller(Path(path) if path else None, attempt=int(attempt) if attempt.isdigit() else None)


def _held(name: str, value: Any) -> Any:
    try:
        return metrics.held(name, value)
    except UserError:
        return None  # of another trainer's values what is no number is not told
