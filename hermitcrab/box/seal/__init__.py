"""`crab seal`: makes the box ready to be saved as the platform's custom image.

Without an option it only says what it would do. What is waste or secret goes with ``--yes``; what
may be the user's work is asked about and stays unless ``--include`` names it.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path
from typing import Iterable, Mapping, NamedTuple, Sequence

from hermitcrab.box.platform import Platform, detect
from hermitcrab.box.power import armed
from hermitcrab.box.seal import places, report, waste
from hermitcrab.box.seal.clean import clean_item
from hermitcrab.box.seal.plan import Plan, decide, fails
from hermitcrab.box.seal.rows import Row
from hermitcrab.box.seal.scan import scan
from hermitcrab.errors import UserError

# Who makes new host keys at the next start: without one of these, a box without keys is out of reach.
OUR_IMAGE = "/etc/hermitcrab/manifest.json"  # its entrypoint does
SYSTEMD = "/run/systemd/system"  # only where it runs: a container has its files, too, and starts sshd without it
BY_SYSTEMD = (
    "/usr/bin/cloud-init",
    "/usr/lib/systemd/system/sshd-keygen*",
    "/lib/systemd/system/sshd-keygen*",
)

DISARM = "`crab poweroff --disarm` ends it"
# There the home is the user's real one, with the only copy of his keys.
NOT_SAVED = ("slurm", "apptainer")


class Outcome(NamedTuple):
    """What one call found and did."""

    mode: str  # dry-run, apply or check
    plan: Plan
    used: int
    failures: tuple[str, ...]
    off_disk: str  # the Python environment, when no image will hold it
    passed: bool
    armed: tuple[str, ...] = ()  # deadlines: each would stop the box while it is being saved


def main(arguments: Sequence[str], root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> int:
    """Look, decide, and do what the options say; 1 when something remains that should not."""
    options = _parser().parse_args(arguments)
    box = detect(root, environ)
    outcome = seal(options, box, root, environ)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    print(report.as_json(outcome, box) if options.json else report.as_text(outcome, box))
    return 0 if outcome.passed else 1


def seal(options: argparse.Namespace, box: Platform, root: Path, environ: Mapping[str, str]) -> Outcome:
    """Scan the system disk, decide, and clean if that was asked for."""
    if options.yes and box.kind in NOT_SAVED:
        raise UserError(f"{box.name} saves no image, and this home is not the box's: nothing is removed here")
    deadlines = tuple(map(armed.text, armed.armed(root)))
    if options.yes and deadlines:
        # Its record would go, and it would fire all the same: in the middle of the saving, or unseen after it.
        raise UserError(f"{'; '.join(deadlines)} would power this box off while it is saved: {DISARM}, then seal")
    place = places.find(root, environ, [box.data.path] if box.data else [])
    found = scan(place, _rows(place, waste.ROWS))
    keep = [*options.keep, *(["authorized-keys"] if options.keys == "keep" else [])]
    plan = decide(found, include=options.include, keep=keep)
    mode = "check" if options.check else "apply" if options.yes else "dry-run"
    failures: list[str] = []
    if mode == "apply":
        spared = {item.path for item in (*plan.asked, *plan.kept)}
        for item in plan.chosen:
            failures += clean_item(place, item, spared)
    passed = not ((deadlines or fails(plan)) if mode == "check" else failures)
    off_disk = sys.prefix if _is_beyond(sys.prefix, place.beyond) else ""
    return Outcome(mode, plan, found.used, tuple(failures), off_disk, passed, deadlines)


def _rows(place: places.Place, rows: Iterable[Row]) -> tuple[Row, ...]:
    """Ask about the host keys where nobody would make new ones."""
    by_systemd = os.path.isdir(place.real(SYSTEMD)) and any(places.matches(place, pattern) for pattern in BY_SYSTEMD)
    made = by_systemd or places.matches(place, OUR_IMAGE)
    return tuple(row if made or row.id != "host-keys" else row._replace(ask=True) for row in rows)


def _is_beyond(path: str, beyond: Iterable[str]) -> bool:
    return any(f"{path}/".startswith(f"{folder}/") for folder in beyond)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="crab seal",
        description="Makes the box ready to be saved as a custom image. Without an option nothing is changed.",
        epilog="NAME is the name of a row, such as checkpoints, or one path.",
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--dry-run", action="store_true", help="only say what would be done (the default)")
    mode.add_argument("--yes", "--apply", action="store_true", help="remove what is waste or secret")
    mode.add_argument("--check", action="store_true", help="exit 1 and name what remains")
    for option, help_text in (
        ("--include", "remove this too, though it was asked about"),
        ("--keep", "leave this, though it would be removed"),
    ):
        parser.add_argument(option, help=help_text, action="append", default=[], metavar="NAME")
    parser.add_argument("--keys", choices=("keep", "remove"), default="keep", help="authorized_keys (keep)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser
