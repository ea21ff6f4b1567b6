"""`docker buildx`: found on the PATH, run, and its progress read as it comes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from hermitcrab.errors import UserError

Message = dict[str, Any]

OLDEST: Final = (0, 13)  # the first that reports its progress as JSON
MISSING: Final = (
    "no docker command here has BuildKit (docker buildx 0.13 or newer) - install the package docker-buildx "
    "(Debian, Ubuntu) or docker-buildx-plugin (Docker's own packages)"
)


def command(environment: Mapping[str, str]) -> str:
    """The first docker command on the PATH whose buildx is new enough.

    Raises UserError saying what to install when there is none.
    """
    for directory in environment.get("PATH", "").split(os.pathsep):
        program = shutil.which("docker", path=directory) if directory else None
        if program and _version(program, environment) >= OLDEST:
            return program
    raise UserError(MISSING)


def run(
    arguments: Sequence[str], environment: Mapping[str, str], show: Callable[[Message], None]
) -> tuple[int, list[str]]:
    """Run a build; return its exit status and all it said, for a diagnosis."""
    said: list[str] = []
    with subprocess.Popen(
        arguments, env=dict(environment), text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            for item in messages(process.stderr or ()):
                if isinstance(item, str):
                    said.append(item)
                    continue
                show(item)
                said += _words(item)
        except BaseException:
            process.terminate()
            raise
    return process.returncode, said


def messages(lines: Iterable[str]) -> Iterator[Message | str]:
    """The JSON messages in a stream, each on one line or spread over many, and the plain lines between them."""
    pending = ""
    for line in lines:
        if pending and line.startswith("{"):  # a message begins: what stood before was none
            yield pending
            pending = ""
        if not pending and not line.startswith("{"):
            yield line.rstrip("\n")
            continue
        pending += line
        closed = line.startswith("}")
        found = _parsed(pending) if closed or pending == line else None
        if closed or found is not None:
            yield pending if found is None else found
            pending = ""
    if pending:
        yield pending


def _parsed(text: str) -> Message | None:
    try:
        message = json.loads(text)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def _words(message: Message) -> Iterator[str]:
    """The log lines and errors of a message."""
    for log in message.get("logs") or ():
        yield from base64.b64decode(log.get("data") or "").decode(errors="replace").splitlines()
    for vertex in message.get("vertexes") or ():
        if vertex.get("error"):
            yield vertex["error"]


def _version(program: str, environment: Mapping[str, str]) -> tuple[int, ...]:
    """The version of its buildx plugin; empty when it has none."""
    asked = [program, "buildx", "version"]
    try:
        done = subprocess.run(asked, env=dict(environment), capture_output=True, text=True, check=False)
    except OSError:  # made for another machine, or no program at all
        return ()
    words = [word.lstrip("v") for word in done.stdout.split()]
    if done.returncode or "buildx" not in done.stdout:  # podman's docker answers with buildah's version
        return ()
    numbers = next((word for word in words if word[:1].isdigit()), "")
    return tuple(int(part) for part in numbers.split(".")[:2] if part.isdigit())
