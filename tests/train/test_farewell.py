"""Claims: after a power-off the next login is told once why, when, and where the results are; nothing is armed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hermitcrab.box import shipped
from hermitcrab.train.gate import deadline, farewell
from hermitcrab.train.places import Run


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A user who was powered off."""
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "TERM": "dumb"}
    run = Run(tmp_path / "runs/exp")
    run.folder.mkdir(parents=True)
    farewell.leave(run, "the run is done\nand well", str(run.folder), environ)
    return environ


def login(environ: dict[str, str], flag: str, tmp_path: Path) -> str:
    """Read the profile twice, as a login does, and once more in a shell below it."""
    profile = tmp_path / "profile.sh"
    profile.write_bytes(shipped.text("profile.sh"))
    line = f'. "{profile}"; . "{profile}"; bash --norc {flag} -c ". {profile}"'
    done = subprocess.run(
        ["bash", "--norc", "-eu", *flag.split(), "-c", line],
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    return done.stdout + done.stderr


def test_a_login_is_told_once_and_a_command_is_not(environ: dict[str, str], tmp_path: Path) -> None:
    """`ssh box command` and scp must get no line that they did not ask for."""
    said = login(environ, "-i", tmp_path)
    assert said.count("hermitcrab: powered off at 20") == 1
    assert f"the run is done?and well; results: {tmp_path}/runs/exp" in said
    assert login(environ, "", tmp_path) == ""


def test_it_goes_when_somebody_is_at_work_again(environ: dict[str, str], tmp_path: Path) -> None:
    """And the run keeps its own copy of the line."""
    farewell.clear(environ)
    assert "powered off" not in login(environ, "-i", tmp_path)
    assert (tmp_path / "runs/exp/poweroff").exists()


def test_it_arms_nothing(environ: dict[str, str]) -> None:
    """It is a line of text."""
    assert deadline.guards(environ) == []
