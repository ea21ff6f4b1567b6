"""Everything `invoke test` runs, in order of cost; what cannot run here is named with its reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hermitcrab.errors import UserError

ROOT: Final = Path(__file__).resolve().parents[2]
BIN: Final = Path(sys.executable).parent


@dataclass(frozen=True, kw_only=True)
class Check:
    """One command that must end with 0."""

    name: str
    command: tuple[str, ...]


PYTHON: Final = (sys.executable, "-m")  # a script's first line breaks when the checkout's path holds a quote
CHECKS: Final = (
    Check(name="lint", command=(*PYTHON, "ruff", "check", ".")),
    Check(name="lint", command=(*PYTHON, "ruff", "format", "--check", ".")),
    Check(name="lint", command=(*PYTHON, "mypy")),
    Check(name="lint", command=(f"{BIN}/hadolint", "--no-color", "images/*/Dockerfile")),
    # -rs prints what was skipped and why: an engine, an image or a right that this machine lacks.
    Check(name="unit", command=(*PYTHON, "pytest", "-rs", "tests/unit")),
    Check(name="shell", command=(*PYTHON, "pytest", "-rs", "tests/shell")),
    Check(name="train", command=(*PYTHON, "pytest", "-rs", "tests/train")),
    Check(name="image", command=(*PYTHON, "pytest", "-rs", "tests/image")),
    Check(name="box", command=(*PYTHON, "pytest", "-rs", "tests/box")),
    Check(name="gpu", command=(*PYTHON, "pytest", "-rs", "tests/gpu")),
)
NAMES: Final = tuple(dict.fromkeys(check.name for check in CHECKS))


def run(only: str = "") -> None:
    """Run all checks, or the kinds named, to the end; raises UserError naming those that failed."""
    wanted = [name.strip() for name in only.split(",") if name.strip()] or list(NAMES)
    if unknown := [name for name in wanted if name not in NAMES]:
        raise UserError(f"--only {unknown[0]!r} is none of {', '.join(NAMES)}", code=2)
    failed = [check for check in CHECKS if check.name in wanted and not _passes(check)]
    if failed:
        raise UserError("failed: " + ", ".join(" ".join(check.command) for check in failed))


def _passes(check: Check) -> bool:
    print("+", *(word.removeprefix(f"{BIN}/") for word in check.command), flush=True)
    return subprocess.run(_arguments(check.command), cwd=ROOT, check=False).returncode == 0


def _arguments(words: Sequence[str]) -> list[str]:
    """The words, with patterns replaced by the files they stand for."""
    return [name for word in words for name in (sorted(map(str, ROOT.glob(word))) if "*" in word else [word])]
