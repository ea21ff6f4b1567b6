"""One run of the bootstrap: what it was asked, where it writes, and how it speaks and starts programs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Iterator, Mapping, NamedTuple, Sequence

from hermitcrab.box import mask
from hermitcrab.box.home import home
from hermitcrab.errors import UserError

HEARTBEAT_S = 15.0
SYSTEM_VENV = "/opt/venv"  # where the image has it; the profile and the SSH server know it
# What would bend an installation from a lock: another target, or a version held back that the lock decides.
BENDING = (
    *("PIP_CONSTRAINT", "UV_CONSTRAINT", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV"),
    *("PIP_NO_INDEX", "PIP_DRY_RUN", "UV_SYSTEM_PYTHON", "UV_PYTHON", "UV_TORCH_BACKEND", "VIRTUAL_ENV"),
    *("CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "UV_EXCLUDE_NEWER", "UV_RESOLUTION", "UV_PROJECT_ENVIRONMENT"),
)


class Places(NamedTuple):
    """Where things go: the system's places with root's rights, else the user's own."""

    home: Path
    settings: Path  # the stamp and the constraint file
    venv: Path

    @property
    def stamp(self) -> Path:
        """What tells that a bootstrap came to its end."""
        return self.settings / "bootstrap.json"

    @property
    def constraints(self) -> Path:
        """What later installations may not move."""
        return self.settings / "constraints.txt"


class Run(NamedTuple):
    """What the steps share."""

    root: bool
    places: Places
    work: Path
    environ: Mapping[str, str]
    log: str = ""
    quiet: bool = False
    verbose: bool = False

    def say(self, text: str) -> None:
        """Tell the user, and the log."""
        self.note(text)
        if not self.quiet:
            print(text, flush=True)

    def warn(self, text: str) -> None:
        """Tell the user also with --quiet."""
        self.note(f"warning: {text}")
        print(f"bootstrap: warning: {mask.mask(text)}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Tell the log; one that cannot be written is none."""
        if self.log:
            try:
                with open(self.log, "a", encoding="utf-8", errors="replace") as file:
                    file.write(f"{mask.mask(text)}\n")
            except OSError:
                return

    def call(self, *command: str, environ: Mapping[str, str] | None = None, watch: str = "") -> str:
        """Run a program to its end and return what it said; UserError has its last words when it fails."""
        done, said = self.attempt(*command, environ=environ, watch=watch)
        if done:
            lines = [line for line in said.splitlines() if line.strip()]
            raise UserError(f"{Path(command[0]).name} failed: {mask.mask(' '.join(lines[-4:])[-600:]) or done}")
        return said

    def attempt(self, *command: str, environ: Mapping[str, str] | None = None, watch: str = "") -> tuple[int, str]:
        """Run a program to its end, with a sign of life now and then: return its status and what it said."""
        self.note(f"+ {' '.join(command)}")
        path = self.work / "said"
        with path.open("wb") as file:
            try:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=dict(self.environ if environ is None else environ),
                    cwd="/",
                )
            except OSError as error:
                return 127, f"{command[0]}: {error.strerror}"
            status = _wait(child, self._pulse(watch))
        said = path.read_text(encoding="utf-8", errors="replace")
        self.note(said.rstrip())
        if self.verbose and said:
            print(mask.mask(said.rstrip()), flush=True)
        return status, said

    def _pulse(self, watch: str) -> Callable[[float], None]:
        """Return what tells how much was written so far to the disk of a folder."""
        free = _free(watch) if watch else 0

        def tell(seconds: float) -> None:
            if watch and not self.quiet:
                print(f"      {seconds:.0f} s, {max(0, free - _free(watch)) / 1e9:.1f} GB written", flush=True)

        return tell


def places(*, root: bool, at: Path = Path("/")) -> Places:
    """Say where things go."""
    own = Path(home())
    if root:
        return Places(own, at / "etc/hermitcrab", at / SYSTEM_VENV.lstrip("/"))
    return Places(own, own / ".config/hermitcrab", own / ".local/share/hermitcrab/venv")


@contextlib.contextmanager
def alone(run: Run) -> Iterator[None]:
    """Hold off a second bootstrap of the same place; it ends with this process, however that ends."""
    handle = os.open("/etc" if run.root else str(run.places.home), os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            run.say("waiting for another bootstrap of this box to end")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def clean(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for installers: the user's own index, proxies and certificates, nothing that bends."""
    return {name: value for name, value in environ.items() if name not in BENDING}


def _wait(child: subprocess.Popen[bytes], tell: Callable[[float], None]) -> int:
    begun = time.monotonic()
    while True:
        try:
            return child.wait(timeout=HEARTBEAT_S)
        except subprocess.TimeoutExpired:
            tell(time.monotonic() - begun)


def _free(path: str) -> int:
    try:
        figures = os.statvfs(path)
    except OSError:
        return 0
    return figures.f_bavail * figures.f_frsize


def first_line(said: str, *starts: str) -> str:
    """Return the line that says why, by how such lines begin; else the last."""
    lines: Sequence[str] = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith(starts)), lines[-1] if lines else "no word of why")
