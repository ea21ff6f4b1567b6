"""What `crab train` trains without a command: the bundled example, so that a first run needs no program."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from typing import Callable

from hermitcrab.errors import UserError

NAME = "digits-example"  # of the run
MODULE = "hermitcrab.examples.digits"
TOLD = (
    f"no command, so this trains the bundled example, python -m {MODULE} (handwritten digits, under a minute); "
    "yours: crab train -- python train.py …"
)
USAGE = "no command: crab train [OPTIONS] -- python train.py …"
# Any other option is meant for a program of one's own: power-off after an example would be a surprise.
OPTIONS = {"again", "foreground", "name", "no_tmux", "runs", "smoke"}


def command(options: argparse.Namespace, default: Callable[[str], object], *, marked: bool) -> list[str]:
    """Return the example's command; UserError where a command was meant, or where the example cannot run.

    ``marked``: there was a ``--``, with nothing behind it, as an empty variable leaves it.
    """
    if marked:
        raise UserError(f"{USAGE} (nothing follows the --)", code=2)
    others = sorted(name for name, value in vars(options).items() if value != default(name) and name not in OPTIONS)
    if others:
        raise UserError(f"{USAGE} (the bundled example runs without --{others[0].replace('_', '-')})", code=2)
    missing = [name for name in ("torch", MODULE) if not _is_there(name)]
    if missing:
        raise UserError(f"{USAGE} (the bundled example needs {missing[0]}, which {sys.executable} has not)", code=2)
    return [sys.executable, "-m", MODULE]


def _is_there(module: str) -> bool:
    """Say whether a module can be imported, without doing so."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
