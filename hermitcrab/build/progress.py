"""What a user sees of a build: the current steps, bytes and elapsed time; plain lines where no terminal is."""

from __future__ import annotations

import base64
import re
import time
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.filesize import decimal
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

# The stages of templates/Dockerfile.j2 in a user's words; those that take no time are left out.
STAGES: Final = {
    "lists": "package lists",
    "tools": "build tools",
    "nvidia": "NVIDIA's wheels",
    "wheels": "torch and its wheels",
    "system": "system packages",
    "box": "hermitcrab",
    "image": "layers",
    "proof": "proof: versions, matmul, torch.compile",
    "exporting": "storing the image",
}
UNITS: Final = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
STEP: Final = re.compile(r"^\[(?P<stage>[a-z]+) (?P<number>\d+)/(?P<last>\d+)\]|^(?P<export>exporting) to image")
DOWNLOADING: Final = re.compile(r"Downloading (\S+) \(([\d.]+)([KMG]iB)\)")
DOWNLOADED: Final = re.compile(r"Downloaded (\S+)")


@dataclass
class Step:
    """One stage under way; bytes are what uv says it has downloaded."""

    stage: str
    started: float = 0.0
    sizes: dict[str, int] = field(default_factory=dict)
    done: int = 0
    tail: str = ""  # the start of a line whose rest is still to come: uv writes its lines in pieces

    @property
    def bytes(self) -> str:
        """Done of known, in decimal units; empty while nothing is known."""
        return f"{decimal(self.done)} of {decimal(sum(self.sizes.values()))}" if self.sizes else ""


class BuildProgress:
    """Shows BuildKit's messages as they come; use as a context manager and hand ``show`` to the build."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._steps: dict[str, Step] = {}
        self._stage_of: dict[str, str] = {}
        self._tasks: dict[str, Any] = {}
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[bytes]}"),
            TimeElapsedColumn(),
        )
        self._live = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    def __enter__(self) -> BuildProgress:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, message: dict[str, Any]) -> None:
        """Take one message of `--progress=rawjson`."""
        for vertex in message.get("vertexes") or ():
            self._vertex(vertex)
        for log in message.get("logs") or ():
            self._log(log)

    def _vertex(self, vertex: dict[str, Any]) -> None:
        found = STEP.match(vertex.get("name", ""))
        stage = (found["stage"] or found["export"]) if found else ""
        if not found or stage not in STAGES or vertex.get("cached"):
            return
        digest = vertex["digest"]
        self._stage_of[digest] = stage
        step = self._steps.setdefault(stage, Step(stage))
        if vertex.get("completed"):
            if found["number"] == found["last"]:
                self._end(step)
        elif vertex.get("started"):
            self._begin(step)

    def _log(self, log: dict[str, Any]) -> None:
        step = self._steps.get(self._stage_of.get(log.get("vertex", ""), ""))
        text = base64.b64decode(log.get("data") or "").decode(errors="replace")
        if step is None or not _count(step, text):
            return
        if step.stage in self._tasks:
            self._live.update(self._tasks[step.stage], bytes=step.bytes)

    def _begin(self, step: Step) -> None:
        if step.stage not in self._tasks:
            step.started = time.monotonic()
            self._tasks[step.stage] = self._live.add_task(STAGES[step.stage], bytes="", total=None)
            if not self._console.is_terminal:
                self._console.print(f"  {STAGES[step.stage]} ...", highlight=False)

    def _end(self, step: Step) -> None:
        if step.stage not in self._tasks:
            return
        self._live.remove_task(self._tasks.pop(step.stage))
        words = " ".join(filter(None, (STAGES[step.stage], step.bytes)))
        self._console.print(f"  {words}: {time.monotonic() - step.started:.0f} s", highlight=False)


def _count(step: Step, text: str) -> bool:
    """Take the sizes out of uv's words; True when the count moved."""
    before = (step.done, len(step.sizes))
    text, _, step.tail = (step.tail + text).rpartition("\n")
    for name, number, unit in DOWNLOADING.findall(text):
        step.sizes[name] = int(float(number) * UNITS[unit])
    step.done += sum(step.sizes.get(name, 0) for name in DOWNLOADED.findall(text))
    return (step.done, len(step.sizes)) != before
