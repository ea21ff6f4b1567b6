"""`crab hold`: keeps the box up. A held run is not powered off, by no policy and no deadline, until it is let go."""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import Sequence

from hermitcrab.box import files
from hermitcrab.errors import UserError
from hermitcrab.train import places
from hermitcrab.train.journal import now


def main(arguments: Sequence[str]) -> int:
    """Hold a run's power-off, or let it go."""
    options = _parser().parse_args(arguments)
    run = places.find(options.run)
    try:
        if options.off:
            with suppress(FileNotFoundError):
                run.hold.unlink()
            print(f"{run.name}: not held; its power-off may go on, after a full countdown")
        else:
            files.write(run.hold, f"{now()}\n".encode())
            print(f"{run.name}: held; nothing powers this box off for it until `crab hold {run.name} --off`")
    except OSError as error:
        raise UserError(f"{run.hold}: {files.because(error)}") from None
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="crab hold", description="Keep the box up: no power-off and no deadline until --off. It bills on."
    )
    parser.add_argument("run", nargs="?", default="", metavar="RUN", help="name or folder; the newest without it")
    parser.add_argument("--off", action="store_true", help="let it go: the countdown begins anew")
    return parser
