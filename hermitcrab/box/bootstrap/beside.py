"""crab beside a torch that is adopted: in its Python where that may be written to, else in a venv that sees it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from hermitcrab.box import files
from hermitcrab.box.bootstrap import own, wheels
from hermitcrab.box.bootstrap.adopt import Torch
from hermitcrab.box.bootstrap.run import Run

COMMANDS = Path("/usr/local/bin/crab")  # `ssh box crab …` has no conda on its PATH


class Home(NamedTuple):
    """Where crab is, or will be."""

    python: str
    site: Path
    scripts: Path
    venv: Path | None = None


def home(run: Run, found: Torch) -> Home:
    """Say where crab goes: never past a distribution's mark that its Python is not to be changed (PEP 668)."""
    if not found.managed and os.access(str(found.site), os.W_OK) and os.access(str(found.scripts), os.W_OK):
        return Home(found.python, found.site, found.scripts)
    venv = run.places.venv
    return Home(str(venv / "bin/python"), venv / f"lib/python{found.version}/site-packages", venv / "bin", venv)


def install(run: Run, found: Torch, wheel: bytes) -> str:
    """Install crab; return where."""
    to = home(run, found)
    if to.venv and not (wheels.is_installed(wheel, to.site) and os.access(to.python, os.X_OK)):
        own.claim(to.venv)
        run.call(found.python, "-m", "venv", "--without-pip", "--system-site-packages", str(to.venv))
    if not wheels.is_installed(wheel, to.site):
        wheels.install(wheel, to.site, to.scripts, to.python)
    if run.root and not to.venv and not os.path.lexists(str(COMMANDS)):
        files.make_folder(COMMANDS.parent)
        COMMANDS.symlink_to(to.scripts / "crab")
    return f"crab in {to.scripts}"


def remove(site: Path, scripts: Path) -> None:
    """Take crab out again."""
    wheels.remove(site)
    if COMMANDS.is_symlink() and os.readlink(str(COMMANDS)) == str(scripts / "crab"):
        COMMANDS.unlink()
