"""Everything `invoke test` runs, in order of cost; what cannot run here is named with its reason.

Two checks run at a time: one that is shown as it goes, and beside it one that is shown when all is done.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
    beside: bool = False  # runs while others do, since it mostly waits or has work for one core only


PYTHON: Final = (sys.executable, "-m")  # a script's first line breaks when the checkout's path holds a quote
IN_IMAGE: Final = "tests/image/test_checkpoint.py"  # a whole suite in one test, some minutes long
CHECKS: Final = (
    Check(name="lint", command=(*PYTHON, "ruff", "check", ".")),
    Check(name="lint", command=(*PYTHON, "ruff", "format", "--check", ".")),
    Check(name="lint", command=(*PYTHON, "mypy")),
    Check(name="lint", command=(f"{BIN}/hadolint", "--no-color", "images/*/Dockerfile")),
    # -rs prints what was skipped and why: an engine, an image or a right that this machine lacks.
    Check(name="unit", command=(*PYTHON, "pytest", "-rs", "tests/unit")),
    Check(name="shell", command=(*PYTHON, "pytest", "-rs", "tests/shell")),
    Check(name="train", command=(*PYTHON, "pytest", "-rs", "tests/train"), beside=True),
    Check(name="image", command=(*PYTHON, "pytest", "-rs", "tests/image", f"--ignore={IN_IMAGE}")),
    Check(name="image", command=(*PYTHON, "pytest", "-rs", IN_IMAGE), beside=True),
    Check(name="box", command=(*PYTHON, "pytest", "-rs", "tests/box")),
    Check(name="gpu", command=(*PYTHON, "pytest", "-rs", "tests/gpu")),
)
NIGHTLY: Final = "HERMITCRAB_NIGHTLY"  # read by tests that have a short and a whole form
NAMES: Final = tuple(dict.fromkeys(check.name for check in CHECKS))


def run(only: str = "", *, nightly: bool = False) -> None:
    """Run all checks, or the kinds named, to the end; raises UserError naming those that failed."""
    wanted = [name.strip() for name in only.split(",") if name.strip()] or list(NAMES)
    if unknown := [name for name in wanted if name not in NAMES]:
        raise UserError(f"--only {unknown[0]!r} is none of {', '.join(NAMES)}", code=2)
    if nightly:
        os.environ[NIGHTLY] = "1"
    chosen = [check for check in CHECKS if check.name in wanted]
    beside = [check for check in chosen if check.beside and len(chosen) > 1]  # one alone is shown as it goes
    with _started(beside) as ends:
        failed = [check for check in chosen if check not in beside and not _passes(check)]
        failed += [check for check, end in zip(beside, ends, strict=True) if not _shown(check, end)]
    if failed:
        raise UserError("failed: " + ", ".join(" ".join(check.command) for check in failed))


def _passes(check: Check) -> bool:
    print("+", _line(check), flush=True)
    return subprocess.run(_arguments(check.command), cwd=ROOT, check=False).returncode == 0


@contextlib.contextmanager
def _started(checks: Sequence[Check]) -> Iterator[list[Future[tuple[bool, bytes]]]]:
    """Run checks one after the other, beside what the caller does; whoever leaves early ends them."""
    running: list[subprocess.Popen[bytes]] = []
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in the background of a script; programs inherit that
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with ThreadPoolExecutor(max_workers=1) as pool:
        for check in checks:
            print("+ beside the others, shown after them:", _line(check), flush=True)
        try:
            yield [pool.submit(_kept, check, running) for check in checks]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                _end(process)
            raise


def _kept(check: Check, running: list[subprocess.Popen[bytes]]) -> tuple[bool, bytes]:
    """Whether a check passes, and all that it says."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            _arguments(check.command),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        running.append(process)
        status = process.wait()
        said.seek(0)
        return status == 0, said.read()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-C, of which a session of its own has heard nothing: pytest then removes its containers."""
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(30)
    process.kill()


def _shown(check: Check, end: Future[tuple[bool, bytes]]) -> bool:
    passed, said = end.result()
    print("+", _line(check))
    print(said.decode(errors="replace"), flush=True)
    return passed


def _line(check: Check) -> str:
    return " ".join(word.removeprefix(f"{BIN}/") for word in check.command)


def _arguments(words: Sequence[str]) -> list[str]:
    """The words, with patterns replaced by the files they stand for."""
    return [name for word in words for name in (sorted(map(str, ROOT.glob(word))) if "*" in word else [word])]
