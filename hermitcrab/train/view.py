"""A view onto a run: its log as it grows. Whoever leaves it leaves the run alone."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Iterator

import hermitcrab
from hermitcrab.box import files
from hermitcrab.train import owner
from hermitcrab.train.places import Run

POLL = 0.3
LOOK_SECONDS = 5.0  # between two looks whether somebody sits before this view
LAST = 20  # lines to begin with
START_SECONDS = 10.0  # for a supervisor to begin its log


class Follow:
    """Reads a log as it grows, over the turns of its files."""

    def __init__(self, path: Path, last: int) -> None:
        self._path, self._last = path, last
        self._file: BinaryIO | None = None  # opened when it is there
        self._rest = b""

    def lines(self) -> Iterator[bytes]:
        """Yield what was added since the last call, whole lines only."""
        while True:
            if self._file is None and not self._open():
                return
            assert self._file is not None
            data = self._file.read()
            if not data:
                if not self._is_turned():
                    return
                self.close()
                continue
            *whole, self._rest = (self._rest + data).split(b"\n")
            yield from (line + b"\n" for line in whole)

    def close(self) -> None:
        """Follow it no longer."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> bool:
        try:
            file = open(self._path, "rb")  # noqa: SIM115 - it stays open while it is followed
        except OSError:
            return False
        if self._last >= 0:
            file.seek(_start_of_last(self._path, self._last))
            self._last = -1
        self._file = file
        return True

    def _is_turned(self) -> bool:
        assert self._file is not None
        try:
            return os.stat(self._path).st_ino != os.fstat(self._file.fileno()).st_ino
        except OSError:
            return False


def open_view(run: Run, *, tmux: bool) -> int:
    """Show a run that was just started: in tmux, if there is one and this is none, else here."""
    if tmux and not os.environ.get("TMUX") and shutil.which("tmux"):
        if not _in_tmux(run):
            return watch(run)
        if owner.is_locked(run):
            print(f"crab: {run.name} goes on; crab attach {run.name} shows it, crab stop {run.name} ends it")
            return 0
        return _told(run)
    return watch(run)


def watch(run: Run, *, last: int = LAST, stays: bool = False) -> int:
    """Follow a run to its end, or until Ctrl-C; returns its status, or 0 if it goes on."""
    # A script that runs in the background hands on a SIGINT that is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    follow, mark = Follow(run.log, last), run.attached / str(os.getpid())
    print(f"crab: {run.name}: Ctrl-C leaves this view, the run goes on", flush=True)
    look_at, limit = 0.0, time.monotonic() + START_SECONDS
    try:
        while True:
            going = owner.is_locked(run)
            _show(follow)
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + LOOK_SECONDS
                _mark(mark, present=_is_seen())
            if not going and (files.read_json(run.state).get("state") == "ended" or time.monotonic() > limit):
                break
            time.sleep(POLL)
    except (KeyboardInterrupt, BrokenPipeError):
        with suppress(OSError):
            print(f"\ncrab: {run.name} goes on; crab attach {run.name} shows it again", flush=True)
        return 0
    finally:
        _mark(mark, present=False)
    status = _told(run)
    if stays:
        print("crab: Enter closes this window", flush=True)
        with suppress(EOFError, KeyboardInterrupt):
            input()
    return status


def _show(follow: Follow) -> None:
    for line in follow.lines():
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _told(run: Run) -> int:
    """Say how it ended; returns its status."""
    state = files.read_json(run.state)
    if not state.get("verdict"):
        print(f"crab: {run.name} has no supervisor any more; the same command goes on with it")
        return 1
    reason = str(state.get("reason", "")).partition("\n")[0]
    print(f"crab: {run.name}: {state['verdict']}: {reason}", flush=True)
    status = state.get("exit")
    return status if isinstance(status, int) else 1


def _in_tmux(run: Run) -> bool:
    """Open a session of tmux with the view in it; it only looks, so nothing depends on it."""
    root = Path(hermitcrab.__file__).resolve().parents[1]
    words = ["env", f"PYTHONPATH={root}", sys.executable, "-m", "hermitcrab.cli", "attach", "--stays", str(run.folder)]
    name = "crab-" + re.sub(r"[^A-Za-z0-9_-]", "-", run.name)
    # One word, as tmux of all ages gives it to a shell; `exec` leaves no shell behind.
    done = subprocess.run(["tmux", "new-session", "-A", "-s", name, f"exec {shlex.join(words)}"], check=False)
    return done.returncode == 0


def _is_seen() -> bool:
    """Say whether somebody sits here: a session of tmux lives on without anybody."""
    if not os.environ.get("TMUX"):
        return True
    try:
        done = subprocess.run(
            ["tmux", "display-message", "-p", "#{session_attached}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return True
    return done.stdout.strip() != b"0"


def _mark(path: Path, *, present: bool) -> None:
    """Say in the run's folder that somebody is looking: its power-off waits for that."""
    with suppress(OSError):
        if present:
            path.parent.mkdir(exist_ok=True)
            path.touch()
        else:
            path.unlink()


def _start_of_last(path: Path, count: int) -> int:
    """Return where the last lines of a file begin; only its end is read."""
    size = path.stat().st_size
    start = max(0, size - (256 << 10))
    with open(path, "rb") as file:
        file.seek(start)
        data = file.read()
    ends = [match.end() for match in re.finditer(b"\n", data)]
    return start + (ends[-count - 1] if len(ends) > count else 0)
