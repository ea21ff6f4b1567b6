"""The journal of a run: ``run.json`` says how it stands, ``events.jsonl`` what happened, in order."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Iterator

from hermitcrab.box import files
from hermitcrab.train.places import Run


class Journal:
    """Written by the supervisor alone; each method returns when the disk has it.

    A full disk must not end a run: what cannot be written is kept in memory and tried again at the next call.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.state: dict[str, Any] = files.read_json(run.state)
        self._unwritten: list[str] = []
        self._behind = False

    def event(self, kind: str, **fields: Any) -> None:
        """Append what happened: ``{"time": ..., "kind": kind, ...fields}``."""
        self._unwritten.append(_line({"time": now(), "kind": kind, **fields}))
        if _append(self.run.events, "".join(self._unwritten)):
            self._unwritten.clear()

    @property
    def waits(self) -> bool:
        """Whether something waits for room on the disk."""
        return bool(self._unwritten or self._behind)

    def update(self, **fields: Any) -> None:
        """Merge fields into ``run.json``."""
        self.state.update(fields)
        text = json.dumps(self.state, indent=1, sort_keys=True, default=str) + "\n"
        try:
            files.write(self.run.state, text.encode("utf-8", "backslashreplace"))
            self._behind = False
        except OSError:
            self._behind = True

    def sample(self, **fields: Any) -> None:
        """Append one measurement to ``samples.jsonl``; a lost one is no loss."""
        _append(self.run.samples, _line({"time": now(), **fields}), sync=False)


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Read events or samples; a line cut by a kill is passed over."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def now() -> str:
    """The time for people: UTC, to the millisecond."""
    seconds = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}Z"


def _line(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, default=str) + "\n"


def _append(path: Path, text: str, *, sync: bool = True) -> bool:
    try:
        # One write, so that a kill leaves whole lines; a cut last line is ended first by its newline.
        with open(path, "ab") as file:
            file.write(_mend(path) + text.encode("utf-8", "backslashreplace"))
            file.flush()
            if sync:
                os.fsync(file.fileno())
    except OSError:
        return False
    return True


def _mend(path: Path) -> bytes:
    with open(path, "rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return b""
        file.seek(-1, os.SEEK_END)
        return b"" if file.read(1) == b"\n" else b"\n"
