"""`crab`, the face on the box: one row per command, imported only when it is called."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from typing import NamedTuple, Sequence

from hermitcrab import __version__
from hermitcrab.errors import UserError


class Command(NamedTuple):
    """What one word after `crab` does; the module's ``main(arguments)`` returns the exit status."""

    module: str
    help: str


COMMANDS = {
    "check": Command("hermitcrab.box.check", "does this GPU train? a verdict with cause and remedy"),
    "ckpt": Command("hermitcrab.checkpoint.ckpt", "list, verify, show and prune checkpoints"),
    "entry": Command("hermitcrab.box.entry", "set up SSH, then be the given command (the entrypoint)"),
    "hold": Command("hermitcrab.train.gate.hold", "keep the box up: no power-off and no deadline until --off"),
    "platform": Command("hermitcrab.box.platform", "say which machine this is: disks, limits, what stops its bill"),
    "poweroff": Command(
        "hermitcrab.train.gate.poweroff", "show how this box is stopped and what is billed on; --yes does it"
    ),
    "setup": Command("hermitcrab.box.setup", "set up tmux, git, SSH, shell and caches; --undo takes it back"),
    "report": Command("hermitcrab.train.report", "write one page about a run: curves, cost, events, how it ended"),
    "seal": Command("hermitcrab.box.seal", "make the box ready to be saved as a custom image"),
    "attach": Command("hermitcrab.train.attach", "look at a run; Ctrl-C leaves the view only"),
    "logs": Command("hermitcrab.train.logs", "print what a run has printed; -f follows it"),
    "status": Command("hermitcrab.train.show", "how a run stands, on one screen"),
    "stop": Command("hermitcrab.train.stop", "end a run; it may save, and is not started again"),
    "train": Command("hermitcrab.train.command", "a training that survives, resumes and ends by its gate"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a user's error becomes one line on stderr and an exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # By hand, since argparse would take away a "--" that belongs to the command.
    command = COMMANDS.get(given[0]) if given else None
    if command is None:
        _parser().parse_args(given or ["--help"])
        return 0
    try:
        status: int = importlib.import_module(command.module).main(given[1:])
        sys.stdout.flush()
    except UserError as error:
        print(f"crab: {error}", file=sys.stderr)
        return error.code
    except BrokenPipeError:
        # `crab check | head`: nobody reads any more; Python would complain once again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


def _parser() -> argparse.ArgumentParser:
    rows = "\n".join(f"  {name:<10}{command.help}" for name, command in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="crab",
        description="The machine changes, the training run goes on.",
        epilog=f"commands:\n{rows}\n\ncrab COMMAND --help says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"crab {__version__}")
    parser.add_argument("command", choices=sorted(COMMANDS), metavar="COMMAND")
    return parser


if __name__ == "__main__":
    sys.exit(main())
