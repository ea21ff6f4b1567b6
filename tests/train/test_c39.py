"""Case C39: the status of the training decides over the power-off. A common script gets all of that wrong.

`crab train` is run as it is, on a box of AutoDL whose stop command is a stub that ends its caller.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from hermitcrab.box.files import read_json
from tests import rented
from tests.rented import put

ROOT = Path(__file__).parents[2]
CASE = ROOT / "tests/cases/C39.txt"
# The box is an argument of the code, not of its user: no variable may say that this is a rented machine.
CRAB = """
import functools, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from hermitcrab.train.gate import busy
from hermitcrab.train import command, gate
gate.preflight = functools.partial(gate.preflight, root=Path(sys.argv[2]))
busy.PROC = Path(sys.argv[2]) / "no-proc"
sys.exit(command.main(sys.argv[3:]))
"""


class Ended(NamedTuple):
    """How `crab train` ended, and whether the box was stopped."""

    status: int
    off: bool
    output: str
    state: dict[str, object]
    done: bool


def train(tmp_path: Path, options: list[str], command: list[str]) -> Ended:
    """Train on a rented box."""
    box = rented.autodl(tmp_path / "root", shutdown="kill -9 $PPID")
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TMUX_TMPDIR": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    given = ["--foreground", "--name", "exp", "--max-restarts", "0", "--grace", "1", *options, "--", *command]
    done = subprocess.run(
        [sys.executable, "-c", CRAB, str(ROOT), str(box.root), *given],
        env=environ,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    folder = tmp_path / "runs/exp"
    off, finished = (box.root / "calls").exists(), (folder / "done").exists()
    return Ended(done.returncode, off, done.stdout, read_json(folder / "run.json"), finished)


def failing(tmp_path: Path) -> Path:
    """A training that fails."""
    return put(tmp_path, "train.py", "print('step 1')\nraise RuntimeError('loss is bad')\n")


def test_the_script_of_the_case_powers_off_after_a_failure(tmp_path: Path) -> None:
    """It counts nothing, takes the failure for a success, and asks a question whose answer does not matter."""
    failing(tmp_path)
    put(tmp_path, "configs.txt", "a\nb\n")
    put(tmp_path / "bin", "sudo", f'#!/bin/sh\necho "$*" > "{tmp_path}/off"\n', 0o755)
    put(tmp_path / "bin", "python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', 0o755)
    done = subprocess.run(
        ["bash", str(CASE)],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"},
        input="no\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "finished: 0, failed: 0" in done.stdout
    assert (tmp_path / "off").read_text() == "shutdown -h now\n"


PIPED = ["bash", "-o", "pipefail", "-c", f"{sys.executable} train.py 2>&1 | tee log"]
PLAIN = [sys.executable, "train.py"]


@pytest.mark.parametrize("command", [PLAIN, PIPED], ids=["plain", "piped"])
@pytest.mark.parametrize("policy", ["success", "finished"])
def test_a_failure_in_the_first_minutes_leaves_the_box_up(command: list[str], policy: str, tmp_path: Path) -> None:
    """The status is the training's own, and there is no done-marker."""
    failing(tmp_path)
    ended = train(tmp_path, ["--poweroff", policy], command)
    assert (ended.status, ended.off, ended.done) == (1, False, False), ended.output
    assert ended.state["verdict"] == "failed"


def test_success_powers_off_once(tmp_path: Path) -> None:
    """After the marker and the journal are written."""
    put(tmp_path, "train.py", "print('step 1')\n")
    ended = train(tmp_path, ["--poweroff", "success"], PLAIN)
    assert (ended.off, ended.done, ended.state["verdict"]) == (True, True, "done"), ended.output
    assert "powered off at" in (tmp_path / ".local/state/hermitcrab/poweroff").read_text()


def test_a_swallowed_exception_is_no_success(tmp_path: Path) -> None:
    """A program that ends with 0 has still not written what a finished one writes."""
    put(tmp_path, "train.py", "try:\n    raise RuntimeError\nexcept Exception:\n    pass\n")
    ended = train(tmp_path, ["--poweroff", "success", "--done-file", "final.pt"], PLAIN)
    assert (ended.off, ended.done) == (False, False), ended.output


def test_without_the_option_nothing_is_powered_off(tmp_path: Path) -> None:
    """Whatever the machine is."""
    put(tmp_path, "train.py", "print('step 1')\n")
    ended = train(tmp_path, [], PLAIN)
    assert (ended.status, ended.off, ended.done) == (0, False, True), ended.output
