"""The programs in docs/checkpoint.md run as they are printed, and go on where they were."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from hermitcrab import cli
from hermitcrab.checkpoint import store

ROOT: Final = Path(__file__).parents[2]
TEXT: Final = (ROOT / "docs/checkpoint.md").read_text()
PROGRAMS: Final = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
SHOWN: Final = re.findall(r"^```console\n(\$ python train\.py\n.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS: Final = re.findall(r"^\$ crab (ckpt .*)", TEXT, re.MULTILINE)
STEP: Final = "    ckpt.step(step, loss=loss)"


def run(place: Path, program: str) -> tuple[int, str]:
    """Run a program as a newcomer does; its status and all it said."""
    place.mkdir(exist_ok=True)
    (place / "train.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-B", "-W", "ignore", "train.py"],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("number", range(1, len(PROGRAMS)))
def test_it_runs_twice(tmp_path: Path, number: int) -> None:
    """To its end, and again from there."""
    needed = set(re.findall(r"^(?:import|from) (\w+)", PROGRAMS[number], re.MULTILINE))
    missing = sorted(name for name in needed - {"hermitcrab"} if importlib.util.find_spec(name) is None)
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed here")
    for _ in range(2):
        status, said = run(tmp_path, PROGRAMS[number])
        assert status == 0, said
    assert [path for path in tmp_path.rglob(store.MANIFEST) if store.reason_of(path.parent) is None]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Where the first program ran twice, and what that looked like."""
    place = tmp_path_factory.mktemp("trained")
    said = [line for _ in range(2) for line in ["$ python train.py", *run(place, PROGRAMS[0])[1].splitlines()]]
    return place, said


def test_it_prints_what_is_shown(trained: tuple[Path, list[str]]) -> None:
    """Each line in its place; […] stands for what differs from machine to machine, and a slow one saves more often."""
    _, said = trained
    left = iter(said)
    for line in SHOWN[0].splitlines():
        pattern = ".*".join(map(re.escape, line.split("[…]")))
        assert any(re.fullmatch(pattern, printed) for printed in left), (line, said)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_run(trained: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """On what the program saved."""
    monkeypatch.chdir(trained[0])
    assert cli.main(shlex.split(command, comments=True)) == 0


def test_it_is_exact(tmp_path: Path) -> None:
    """Killed in the middle, the printed program comes to the loss of an undisturbed one."""
    whole = run(tmp_path / "whole", PROGRAMS[0])[1].splitlines()[-1]
    dying = re.sub(
        rf"{re.escape(STEP)}.*",
        f"{STEP}\n    if step == 123: ckpt.save(); import os; os.kill(os.getpid(), 9)",
        PROGRAMS[0],
    )
    assert dying != PROGRAMS[0] and run(tmp_path / "killed", dying)[0] == -9
    status, said = run(tmp_path / "killed", PROGRAMS[0])
    assert status == 0 and said.splitlines()[-1] == whole.replace("from step 0", "from step 124")
