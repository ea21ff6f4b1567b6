"""`crab attach`: look at a run. Ctrl-C leaves the view, never the run."""

from __future__ import annotations

import argparse
from typing import Sequence

from hermitcrab.train import places, view


def main(arguments: Sequence[str]) -> int:
    """Show a run until it ends; returns its status then."""
    options = _parser().parse_args(arguments)
    return view.watch(places.find(options.run), last=options.lines, stays=options.stays)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="crab attach", description="Look at a run; Ctrl-C leaves the view only.")
    parser.add_argument("run", nargs="?", default="", metavar="RUN", help="name or folder; the newest without it")
    parser.add_argument("-n", "--lines", type=int, default=view.LAST, help="how many lines to begin with")
    parser.add_argument("--stays", action="store_true", help=argparse.SUPPRESS)  # what tmux shows stays readable
    return parser
