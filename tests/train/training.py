"""Starts `crab train` as a user does: a process of its own, in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from hermitcrab.train.places import Run

ROOT: Final = Path(__file__).parents[2]
CRAB: Final = (sys.executable, "-m", "hermitcrab.cli")
LIMIT: Final = 30.0


class Folder:
    """A user's folder, with what was started in it; ``close`` leaves nothing alive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.started: list[subprocess.Popen[bytes]] = []
        self.environ = {
            **{name: value for name, value in os.environ.items() if name not in {"TMUX", "RUN_ID", "CKPT_DIR"}},
            "XDG_STATE_HOME": str(path / ".state"),
            "PYTHONPATH": str(ROOT),
        }

    def script(self, text: str, name: str = "train.py") -> str:
        """Write a program; returns its name."""
        (self.path / name).write_text(text)
        return name

    def start(self, *command: str, options: tuple[str, ...] = (), **more: Any) -> subprocess.Popen[bytes]:
        """Start `crab train`, with its output in a pipe and no terminal."""
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        argv = [*CRAB, "train", "--name", "run", *options, "--", *command]
        process = subprocess.Popen(argv, cwd=self.path, env=self.environ, **{**given, **more})
        self.started.append(process)
        return process

    def train(self, *command: str, options: tuple[str, ...] = (), status: int | None = 0) -> str:
        """Run `crab train` to its end; returns what it printed."""
        process = self.start(*command, options=options)
        output, _ = process.communicate(timeout=60)
        text = output.decode("utf-8", "replace")
        assert status is None or process.returncode == status, text
        return text

    def crab(self, *words: str, status: int = 0) -> str:
        """Run another command of crab's."""
        done = subprocess.run(
            [*CRAB, *words], cwd=self.path, env=self.environ, capture_output=True, timeout=60, check=False
        )
        text = (done.stdout + done.stderr).decode("utf-8", "replace")
        assert done.returncode == status, text
        return text

    @property
    def run(self) -> Run:
        """The run that is started here."""
        return Run(self.path / "runs" / "run")

    def state(self) -> dict[str, Any]:
        """What run.json says; empty before it is there."""
        try:
            found: dict[str, Any] = json.loads(self.run.state.read_text())
        except (OSError, ValueError):
            return {}
        return found

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        """The events of the run, or those of a kind."""
        try:
            lines = [json.loads(line) for line in self.run.events.read_text().splitlines()]
        except OSError:
            return []
        return [line for line in lines if kind in {"", line["kind"]}]

    def log(self) -> str:
        """What the run has logged."""
        try:
            return self.run.log.read_text()
        except OSError:
            return ""

    def wait(self, true: Callable[[], Any], what: str = "it") -> None:
        """Wait until something is so."""
        limit = time.monotonic() + LIMIT
        while not true():
            assert time.monotonic() < limit, f"{what} did not come: {self.log()}"
            time.sleep(0.02)

    def close(self) -> None:
        """End what is left, by the mark of this folder's run."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for pid in alive(self.run.folder):
            os.kill(pid, signal.SIGKILL)


def alive(run: Path) -> list[int]:
    """Everything that carries the mark of a run, wherever it has gone."""
    mark = f"CRAB_RUN={run}".encode()
    found = []
    for name in os.listdir("/proc"):
        try:
            marked = name.isdigit() and mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            state = (
                Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] if marked else "Z"
            )
        except OSError:
            continue
        if marked and state not in "ZX":
            found.append(int(name))
    return found


def finished(process: subprocess.Popen[bytes], seconds: float = LIMIT) -> tuple[int, str]:
    """Wait for a process; returns its status and what it printed."""
    output, _ = process.communicate(timeout=seconds)
    return process.returncode, output.decode("utf-8", "replace")


def environ_of(pid: int) -> Mapping[str, str]:
    """The environment that a process was started with."""
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(word.decode().split("=", 1) for word in words if b"=" in word)
