"""`invoke test` runs everything it can, to the end, and fails when one check does."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from hermitcrab.build import quality
from hermitcrab.errors import UserError


class Tools:
    """Stands in for the programs: remembers what was run, and fails where it is told to."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing: tuple[str, ...] = ()

    def run(self, command: Sequence[str], *, cwd: Path, check: bool) -> subprocess.CompletedProcess[bytes]:
        assert (cwd, check) == (quality.ROOT, False)
        line = " ".join(command)
        self.calls.append(line)
        return subprocess.CompletedProcess(command, int(any(word in line for word in self.failing)))


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Tools:
    """Programs that all succeed."""
    made = Tools()
    monkeypatch.setattr(subprocess, "run", made.run)
    return made


def test_all_checks_run_and_are_shown(tools: Tools, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command is printed before it runs."""
    quality.run()

    assert len(tools.calls) == len(quality.CHECKS)
    assert capsys.readouterr().out.count("+ ") == len(quality.CHECKS)


def test_patterns_become_files(tools: Tools) -> None:
    """Hadolint gets every rendered Dockerfile."""
    quality.run("lint")

    hadolint = next(line for line in tools.calls if "hadolint" in line)
    found = sorted(quality.ROOT.glob("images/*/Dockerfile"))
    assert found
    assert all(str(path) in hadolint for path in found)


@pytest.mark.parametrize("only", ["unit", "unit,shell", " shell , unit ,", "image"])
def test_only_what_was_named_runs(only: str, tools: Tools) -> None:
    """Several with commas."""
    quality.run(only)

    wanted = {name.strip() for name in only.split(",")}
    assert len(tools.calls) == sum(check.name in wanted for check in quality.CHECKS)


def test_a_failure_is_named_and_the_rest_still_runs(tools: Tools) -> None:
    """The first failure hides no other."""
    tools.failing = ("mypy", "tests/shell")

    with pytest.raises(UserError) as caught:
        quality.run()
    assert caught.value.code == 1
    assert str(caught.value).startswith("failed: ")
    assert "mypy" in str(caught.value) and "tests/shell" in str(caught.value)
    assert "tests/unit" not in str(caught.value)
    assert len(tools.calls) == len(quality.CHECKS)


@pytest.mark.parametrize("only", ["units", "unit,cards", "--"])
def test_an_unknown_kind_is_wrong_input(only: str, tools: Tools) -> None:
    """Nothing runs, and the kinds are named."""
    with pytest.raises(UserError, match=f"is none of {', '.join(quality.NAMES)}") as caught:
        quality.run(only)
    assert caught.value.code == 2
    assert tools.calls == []


def test_a_check_ends_as_its_program_does() -> None:
    """For once with real programs."""
    assert quality._passes(quality.Check(name="x", command=("true",)))
    assert not quality._passes(quality.Check(name="x", command=("false",)))


def test_every_folder_of_tests_is_run() -> None:
    """A folder that no check names would never run."""
    folders = {f"tests/{path.parent.name}" for path in (quality.ROOT / "tests").glob("*/test_*.py")}
    named = {word for check in quality.CHECKS for word in check.command}
    # tests/checkpoint needs torch, so tests/image/test_checkpoint.py runs it where torch is: in the built image.
    elsewhere = {"tests/checkpoint"} if (quality.ROOT / "tests/image/test_checkpoint.py").exists() else set()

    assert folders <= named | elsewhere
