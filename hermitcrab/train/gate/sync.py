"""Copies results off the box and compares them where they arrived. What was not compared counts as not copied.

DEST is ``rclone:remote:path`` or the name of a configured rclone remote, ``user@host:path`` or ``rsync://…``
for rsync, or a local folder. A run goes to DEST/<its name>/.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Callable, Mapping, NamedTuple, Sequence

from hermitcrab.errors import UserError

SSH = "ssh -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
# What changes while the supervisor still works, or means something on this box only.
LEFT_OUT = ("lock", "hold", "attached", "poweroff", "supervisor.log")
PAUSES = (2.0, 10.0, 30.0, 60.0)  # seconds between tries; the last one again and again
REHEARSAL = 60.0  # seconds
PROBE = "sync-probe.txt"
SHOWN = 300


class Target(NamedTuple):
    """Where to, and with what."""

    tool: str  # rsync or rclone
    place: str  # what the tool is given; local is an absolute path
    local: bool


class Synced(NamedTuple):
    """How it ended."""

    ok: bool
    tries: int
    said: str  # what went wrong, or what was compared


def target(dest: str, environ: Mapping[str, str] = os.environ) -> Target:
    """Read DEST; raises UserError when it is none or its tool is missing."""
    local = "/" in dest.split(":", 1)[0] or ":" not in dest
    if not dest or dest.startswith(("-", "rclone:-")) or not dest.isprintable():
        raise UserError(f"--sync {dest!r} is no place: REMOTE:path, user@host:path or a folder", code=2)
    if dest.startswith("rclone:"):
        found = Target("rclone", dest[len("rclone:") :], local=False)
    elif local:
        tool = "rclone" if _is_there("rclone", environ) and not _is_there("rsync", environ) else "rsync"
        found = Target(tool, os.path.abspath(dest), local=True)
    elif "@" not in dest.split(":", 1)[0] and f"{dest.split(':', 1)[0]}:" in _remotes(environ):
        found = Target("rclone", dest, local=False)
    else:
        found = Target("rsync", dest, local=False)
    if not _is_there(found.tool, environ):
        raise UserError(f"--sync {dest} needs {found.tool}, which is not installed here")
    return found


def rehearse(to: Target, name: str, environ: Mapping[str, str] = os.environ) -> None:
    """Copy one small file and compare it, before anything depends on it; raises UserError with what the tool said."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / PROBE).write_text("hermitcrab was here to see whether results can be brought here.\n")
        done = sync([Path(folder)], to, name, REHEARSAL, environ, most=2)
    if not done.ok:
        raise UserError(f"--sync {to.place} does not work: {done.said}")


def sync(
    sources: Sequence[Path],
    to: Target,
    name: str,
    seconds: float,
    environ: Mapping[str, str] = os.environ,
    *,
    most: int = 10_000,
    pauses: Sequence[float] = PAUSES,
    sleep: Callable[[float], None] = time.sleep,
) -> Synced:
    """Copy and compare until it is right or the time is over. The first source goes to DEST/name, others below it."""
    end, tries, said = time.monotonic() + seconds, 0, "no time for it"
    while time.monotonic() < end:
        tries += 1
        said = next(filter(None, (_try(*pair, to, end, environ) for pair in _pairs(sources, to, name))), "")
        if not said:
            return Synced(True, tries, f"compared at {to.place} by {to.tool}")
        pause = pauses[min(tries, len(pauses)) - 1]
        if tries >= most or time.monotonic() + pause >= end:
            break
        sleep(pause)
    return Synced(False, tries, said)


def _pairs(sources: Sequence[Path], to: Target, name: str) -> list[tuple[str, str]]:
    """Return what goes where, each with a last slash: the content, not the folder."""
    top = to.place.rstrip("/") if not to.place.endswith(":") else to.place
    base = f"{top}{name}" if top.endswith(":") else f"{top}/{name}"
    pairs = [(f"{sources[0]}/", f"{base}/")]
    for number, source in enumerate(sources[1:], 1):
        pairs.append((f"{source}/", f"{base}/results-{number}-{re.sub('[^A-Za-z0-9._-]+', '-', source.name)}/"))
    return pairs


def _try(source: str, dest: str, to: Target, end: float, environ: Mapping[str, str]) -> str:
    """Copy one folder and compare it; return what went wrong."""
    if to.local:
        try:
            os.makedirs(dest, exist_ok=True)
        except OSError as error:
            return f"{dest}: {error.strerror}"
    return (_rsync if to.tool == "rsync" else _rclone)(source, dest, end, environ)


def _rsync(source: str, dest: str, end: float, environ: Mapping[str, str]) -> str:
    options = ["--protect-args", "--timeout=120", "-e", SSH, *(f"--exclude=/{name}" for name in LEFT_OUT)]
    # Links are copied as what they lead to: a link into this box is nothing elsewhere.
    said, _ = _call(["rsync", "-rLt", "--partial", *options, "--", source, dest], end, environ)
    if said:
        return said
    compare = ["rsync", "-rL", "--checksum", "--dry-run", "--itemize-changes", *options, "--", source, dest]
    said, output = _call(compare, end, environ)
    differing = [line for line in output.splitlines() if line[:1] in {"<", ">", "c"}]
    return said or (f"differs at the destination: {differing[0]}" if differing else "")


def _rclone(source: str, dest: str, end: float, environ: Mapping[str, str]) -> str:
    options = ["--copy-links", "--retries", "1", "--stats", "0", *(f"--exclude=/{name}" for name in LEFT_OUT)]
    options += [f"--exclude=/{name}/**" for name in LEFT_OUT]
    said, _ = _call(["rclone", "copy", *options, source, dest], end, environ)
    if said:
        return said
    said, output = _call(["rclone", "check", "--one-way", *options, source, dest], end, environ)
    # A store without checksums was compared by size alone: then its content is read back.
    if not said and re.search(r"hash(es)? could not be checked|[Nn]o common hash", output):
        said, _ = _call(["rclone", "check", "--one-way", "--download", *options, source, dest], end, environ)
    return said


def _call(argv: Sequence[str], end: float, environ: Mapping[str, str]) -> tuple[str, str]:
    """Run a tool until the time is over; return what went wrong, and what it printed."""
    try:
        process = subprocess.Popen(
            argv,
            env={**environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return f"{argv[0]} cannot be run: {error.strerror}", ""
    try:
        data, _ = process.communicate(timeout=max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=5)
        return f"{argv[0]} did not end in time", ""
    text = data.decode("utf-8", "replace")
    if process.returncode:
        last = "; ".join(text.strip().splitlines()[-2:])[:SHOWN]
        return f"{argv[0]}: status {process.returncode}: {last}", text
    return "", text


def _remotes(environ: Mapping[str, str]) -> list[str]:
    if not _is_there("rclone", environ):
        return []
    _, output = _call(["rclone", "listremotes"], time.monotonic() + 10, environ)
    return output.split()


def _is_there(tool: str, environ: Mapping[str, str]) -> bool:
    return shutil.which(tool, path=environ.get("PATH")) is not None
