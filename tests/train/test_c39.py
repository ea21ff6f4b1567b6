"""Case C39: the status of the training decides over the power-off. A common script gets all of that wrong.

`crab train` is run as it is, on a box of AutoDL whose stop command is a stub that ends its caller.
"""

from __future__ import annotations

import os
import signal
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
from hermitcrab.box.power import fire
from hermitcrab.train.gate import busy
from hermitcrab.train import command, gate
fire.PAUSE = 0.1
gate.preflight = functools.partial(gate.preflight, root=Path(sys.argv[2]))
busy.PROC = Path(sys.argv[2]) / "no-proc"
sys.exit(command.main(sys.argv[3:]))
"""


class Ended(NamedTuple):
    """How `crab train` ended, and whether the box was stopped."""

    status: int
    off: int  # how often its stop command was called
    output: str
    state: dict[str, object]
    done: bool
    failed: bool


def start(tmp_path: Path, options: list[str], command: list[str], stop: str) -> subprocess.Popen[str]:
    """Start `crab train` on a rented box."""
    root = tmp_path / "root"
    if not root.exists():
        rented.autodl(root, shutdown=stop)
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TMUX_TMPDIR": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    given = ["--foreground", "--name", "exp", "--max-restarts", "0", *options, "--", *command]
    return subprocess.Popen(
        [sys.executable, "-c", CRAB, str(ROOT), str(root), *given],
        env=environ,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read_until(process: subprocess.Popen[str], word: str) -> None:
    """Read what it prints until a word comes."""
    assert process.stdout
    before, line = "", " "
    while word not in line:
        line = process.stdout.readline()
        assert line, before
        before += line


def train(tmp_path: Path, options: list[str], command: list[str], stop: str = "kill -9 $PPID") -> Ended:
    """Train on a rented box; `stop` is the body of its stop command, which ends its caller."""
    process = start(tmp_path, ["--grace", "1", *options], command, stop)
    output, _ = process.communicate(timeout=60)
    folder, calls = tmp_path / "runs/exp", tmp_path / "root/calls"
    off = len(calls.read_text().splitlines()) if calls.exists() else 0
    markers = [(folder / name).exists() for name in ("done", "failed")]
    return Ended(process.returncode, off, output, read_json(folder / "run.json"), *markers)


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


SAVES = """
import signal, sys, time
def save(*_):
    open("saved", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("rea" + "dy", flush=True)
time.sleep(60)
"""
PIPED = ["bash", "-o", "pipefail", "-c", f"{sys.executable} train.py 2>&1 | tee log"]
PLAIN = [sys.executable, "train.py"]


@pytest.mark.parametrize("command", [PLAIN, PIPED], ids=["plain", "piped"])
@pytest.mark.parametrize("policy", ["success", "finished"])
def test_a_failure_in_the_first_minutes_leaves_the_box_up(command: list[str], policy: str, tmp_path: Path) -> None:
    """The status is the training's own, and the marker says that it failed."""
    failing(tmp_path)
    ended = train(tmp_path, ["--poweroff", policy], command)
    assert (ended.status, ended.off, ended.done, ended.failed) == (1, 0, False, True), ended.output
    assert ended.state["verdict"] == "failed"


def test_success_powers_off_once(tmp_path: Path) -> None:
    """After the marker and the journal are written."""
    put(tmp_path, "train.py", "print('step 1')\n")
    ended = train(tmp_path, ["--poweroff", "success"], PLAIN)
    assert (ended.off, ended.done, ended.failed, ended.state["verdict"]) == (1, True, False, "done"), ended.output
    assert "powered off at" in (tmp_path / ".local/state/hermitcrab/poweroff").read_text()


def test_a_swallowed_exception_is_no_success(tmp_path: Path) -> None:
    """A program that ends with 0 has still not written what a finished one writes."""
    put(tmp_path, "train.py", "try:\n    raise RuntimeError\nexcept Exception:\n    pass\n")
    ended = train(tmp_path, ["--poweroff", "success", "--done-file", "final.pt"], PLAIN)
    assert (ended.off, ended.done, ended.failed) == (0, False, True), ended.output


def test_without_the_option_nothing_is_powered_off(tmp_path: Path) -> None:
    """Whatever the machine is."""
    put(tmp_path, "train.py", "print('step 1')\n")
    ended = train(tmp_path, [], PLAIN)
    assert (ended.status, ended.off, ended.done) == (0, 0, True), ended.output


def test_a_failed_marker_goes_with_the_next_start(tmp_path: Path) -> None:
    """It says how the run stands, not how it once stood."""
    failing(tmp_path)
    assert train(tmp_path, [], PLAIN).failed
    put(tmp_path, "train.py", "print('mended')\n")
    ended = train(tmp_path, [], PLAIN)
    assert (ended.done, ended.failed) == (True, False), ended.output


def test_a_box_that_could_not_be_stopped_is_no_success(tmp_path: Path) -> None:
    """All ways were tried: it says "still billing", and the status is not 0 though the training's is."""
    put(tmp_path, "train.py", "print('step 1')\n")
    ended = train(tmp_path, ["--poweroff", "success"], PLAIN, stop="exit 1")
    assert (ended.status, ended.off, ended.done) == (69, 3, True), ended.output
    assert "STILL BILLING" in ended.output
    assert ended.state["exit"] == 69
    assert "STILL BILLING" in str(ended.state["poweroff"])


def test_a_closing_that_was_killed_is_done_by_the_next_start(tmp_path: Path) -> None:
    """A container that is restarted in the countdown: the training is done, its box is still to be stopped, once."""
    put(tmp_path, "train.py", "print('trained', flush=True)\n")
    killed = start(tmp_path, ["--poweroff", "success", "--grace", "600"], PLAIN, "kill -9 $PPID")
    read_until(killed, "until power-off")
    killed.kill()
    killed.communicate(timeout=10)
    assert not train(tmp_path, [], PLAIN).off, "nothing was asked for"
    state = tmp_path / "runs/exp/run.json"
    times = state.stat().st_mtime
    os.utime(state, (times - 9000, times - 9000))
    assert not train(tmp_path, ["--poweroff", "success"], PLAIN).off, "somebody came back to the box"
    os.utime(state, (times, times))
    ended = train(tmp_path, ["--poweroff", "success"], PLAIN)
    assert ended.off == 1, ended.output
    assert "its closing was cut off" in ended.output
    assert "trained" not in ended.output
    again = train(tmp_path, ["--poweroff", "success"], PLAIN)
    assert "already finished" in again.output, again.output
    assert again.off == 1, "a box that was started again must not be stopped for an old reason"


@pytest.mark.parametrize("line", ["{} train.py 2>&1 | tee log", "{} train.py; touch after", "exec {} train.py"])
def test_sigterm_reaches_the_program_under_a_shell(line: str, tmp_path: Path) -> None:
    """C40: a wrapper shell would die of it alone, and the program would run on unsaved; it has announced nothing."""
    put(tmp_path, "train.py", SAVES)
    command = ["bash", "-o", "pipefail", "-c", line.format(sys.executable)]
    process = start(tmp_path, [], command, "exit 0")
    read_until(process, "ready")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert (tmp_path / "saved").exists(), output
    assert not (tmp_path / "after").exists(), output
    assert read_json(tmp_path / "runs/exp/run.json")["verdict"] == "stopped"
