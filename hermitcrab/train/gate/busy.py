"""Who is at work on this box beside the run: whoever it is, a power-off waits for him.

Looked at are a hold, attached clients, copies, installs, images being saved, and other runs; by /proc, since a
container may have no ps.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import Iterator, Mapping, NamedTuple

from hermitcrab.box.files import read_json
from hermitcrab.train import places, process
from hermitcrab.train.places import Run

TMUX_LIMIT = 5.0  # seconds
FRESH = 600.0  # seconds; a view renews its mark every five, by the clock of whatever disk that is
PROC = Path("/proc")


class Kind(NamedTuple):
    """Programs that do one kind of work: their names, the words that make it that work, those that do not."""

    what: str
    names: tuple[str, ...]
    words: str = ""
    not_words: str = ""
    if_moving: bool = False  # counts only while it reads or writes


KINDS = (
    Kind("a copy", ("rsync",), not_words=r"--daemon"),
    Kind("a copy", ("rclone",), words=r"copy|copyto|sync|bisync|move|moveto|check|cat|rcat", not_words=r"mount|serve"),
    Kind("a copy", ("scp", "s5cmd", "ossutil", "ossutil64", "coscli", "coscmd", "azcopy", "gsutil", "obsutil", "oss")),
    Kind("a copy", ("aws",), words=r"s3|s3api"),
    Kind("a copy", ("huggingface-cli", "hf"), words=r"upload|upload-large-folder|download"),
    # An open window of a file manager or an editor has one of these, too, and may be idle for days.
    Kind("a copy", ("sftp-server",), if_moving=True),
    Kind("an install", ("apt", "apt-get", "dpkg", "aptitude", "unattended-upgrade", "yum", "dnf", "apk")),
    Kind("an install", ("pip", "pip3", "uv", "conda", "mamba", "micromamba"), words=r"install|sync|add|create|update"),
    Kind("an image being saved", ("docker", "podman", "nerdctl"), words=r"save|commit|push|export|build"),
    Kind("an image being saved", ("vastai",), words=r"snapshot"),
)
# `python -m pip`, `/opt/venv/bin/python /opt/venv/bin/pip`, `bash script`: what runs is a later word.
INTERPRETER = re.compile(r"python[\d.]*|pypy[\d.]*|bash|sh|dash")


class Busy:
    """Looks who is at work; one object for a whole countdown, since some are seen only by what they move."""

    def __init__(
        self,
        run: Run,
        *,
        ssh: bool = False,
        tmux: bool = True,
        environ: Mapping[str, str] = os.environ,
        proc: Path | None = None,
    ) -> None:
        self.run, self.ssh, self.tmux, self.environ, self.proc = run, ssh, tmux, environ, proc or PROC
        self._moved: dict[str, str] = {}

    def __call__(self) -> list[str]:
        """Say who holds, a few words each; nothing when nobody does."""
        found = [*self.held(), *self._attached(), *self._programs(), *self._other_runs()]
        return list(dict.fromkeys([*found, *(_tmux(self.environ) if self.tmux else ())]))

    def held(self) -> list[str]:
        """Say whether somebody asked for it to wait."""
        return [f"held: `crab hold {self.run.name} --off` lets it go"] if os.path.lexists(self.run.hold) else []

    def _attached(self) -> Iterator[str]:
        for mark in _names(self.run.attached):
            # A view that was killed leaves its mark, and its number may be another's by now.
            if mark.isdigit() and (self.proc / mark).exists() and _age(self.run.attached / mark) < FRESH:
                yield f"somebody is attached (process {mark})"

    def _programs(self) -> Iterator[str]:
        for pid in _names(self.proc):
            words = _words(self.proc / pid) if pid.isdigit() and int(pid) != os.getpid() else []
            if self.ssh and re.match(r"sshd(-session)?: .+@", " ".join(words)):
                yield "an SSH session"
            kind = kind_of(words)
            if kind and (not kind.if_moving or self._moves(pid)):
                yield f"{kind.what} runs ({os.path.basename(words[0])}, process {pid})"

    def _moves(self, pid: str) -> bool:
        try:
            now = (self.proc / pid / "io").read_text(encoding="ascii", errors="replace")
        except OSError:
            return False
        before, self._moved[pid] = self._moved.get(pid), now
        return before != now

    def _other_runs(self) -> Iterator[str]:
        for other in places.known(self.environ):
            if os.path.realpath(other.folder) == os.path.realpath(self.run.folder):
                continue
            state = read_json(other.state)
            if state.get("state") != "ended" and process.lives(state.get("pid"), state.get("started")):
                yield f"another run goes on ({other.name})"


def kind_of(words: list[str]) -> Kind | None:
    """Say what kind of work a command line is, if it is one that a power-off must not cut."""
    name, rest = _program(words)
    for kind in KINDS:
        if name in kind.names:
            fits = not kind.words or any(re.fullmatch(kind.words, word) for word in rest)
            if fits and not (kind.not_words and any(re.fullmatch(kind.not_words, word) for word in rest)):
                return kind
    return None


def _program(words: list[str]) -> tuple[str, list[str]]:
    """Return a command's name and arguments, past an interpreter in front of it."""
    name, rest = os.path.basename(words[0]) if words else "", words[1:]
    if INTERPRETER.fullmatch(name):
        while rest and rest[0].startswith("-") and rest[0] not in {"-m", "-c"}:
            rest = rest[1:]
        if rest[:1] == ["-m"]:
            rest = rest[1:]
        if rest and rest[0] != "-c":
            name, rest = os.path.basename(rest[0]), rest[1:]
    return name, rest


def _tmux(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield whether somebody sits at one of this user's tmux servers."""
    folder = Path(environ.get("TMUX_TMPDIR") or "/tmp") / f"tmux-{os.geteuid()}"  # noqa: S108 - where tmux has them
    for socket in _names(folder):
        try:
            done = subprocess.run(
                ["tmux", "-S", str(folder / socket), "list-clients", "-F", "#{client_tty}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=TMUX_LIMIT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout.strip():
            yield "a tmux client is attached"


def _words(folder: Path) -> list[str]:
    try:
        data = (folder / "cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in data.rstrip(b"\0").split(b"\0")] if data else []


def _age(path: Path) -> float:
    try:
        return abs(time.time() - path.stat().st_mtime)
    except OSError:
        return float("inf")


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
