"""`invoke test` runs everything it can, to the end, and fails when one check does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from hermitcrab.build import quality
from hermitcrab.build.quality import Check
from hermitcrab.errors import UserError

POPEN: Final = subprocess.Popen
BESIDE: Final = [check for check in quality.CHECKS if check.beside]


class Tools:
    """Stands in for the programs: remembers what was run, and fails where it is told to."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing: tuple[str, ...] = ()

    def run(self, command: Sequence[str], *, cwd: Path, check: bool) -> subprocess.CompletedProcess[bytes]:
        assert (cwd, check) == (quality.ROOT, False)
        return subprocess.CompletedProcess(command, self._status(command))

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        return POPEN(["sh", "-c", f"echo said by {command[-1]}; exit {self._status(command)}"], **options)

    def _status(self, command: Sequence[str]) -> int:
        line = " ".join(command)
        self.calls.append(line)
        return int(any(word in line for word in self.failing))


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Tools:
    """Programs that all succeed."""
    made = Tools()
    monkeypatch.setattr(subprocess, "run", made.run)
    monkeypatch.setattr(subprocess, "Popen", made.start)
    return made


def test_all_checks_run_and_are_shown(tools: Tools, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command is printed before it runs."""
    quality.run()

    assert len(tools.calls) == len(quality.CHECKS)
    assert capsys.readouterr().out.count("+ python -m pytest") == sum("pytest" in c.command for c in quality.CHECKS)


@pytest.mark.usefixtures("tools")
def test_the_nightly_form_is_asked_for_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks are other programs; the one whose tests read it sees it."""
    monkeypatch.setenv(quality.NIGHTLY, "")

    quality.run("shell", nightly=True)

    assert os.environ[quality.NIGHTLY] == "1"


def test_what_runs_beside_is_shown_in_one_piece_after_the_others(
    tools: Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with its command above it; at first only that it runs is said."""
    quality.run()

    assert BESIDE and tools.calls
    *lines, _ = capsys.readouterr().out.split("\n")
    tail = [line for check in BESIDE for line in (f"+ {quality._line(check)}", f"said by {check.command[-1]}", "")]
    assert lines[-len(tail) :] == tail
    assert sum("beside the others" in line for line in lines) == len(BESIDE)


def test_alone_it_is_shown_as_it_goes(tools: Tools, capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to run it beside."""
    quality.run("train")

    assert capsys.readouterr().out == f"+ {quality._line(BESIDE[0])}\n" and len(tools.calls) == 1


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
    tools.failing = ("mypy", "tests/shell", "tests/train")

    with pytest.raises(UserError) as caught:
        quality.run()
    assert caught.value.code == 1
    assert str(caught.value).startswith("failed: ")
    assert all(name in str(caught.value) for name in tools.failing)
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
    assert quality._passes(Check(name="x", command=("true",)))
    assert not quality._passes(Check(name="x", command=("false",)))


def test_both_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits here for the other's file; with one after the other neither would end."""
    files = tmp_path / "one", tmp_path / "two"
    pairs = (files, files[::-1])
    checks = [Check(name="x", command=_meets(mine, other), beside=not n) for n, (mine, other) in enumerate(pairs)]
    monkeypatch.setattr(quality, "CHECKS", checks)
    monkeypatch.setattr(quality, "NAMES", ("x",))
    quality.run()


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.default_int_handler], ids=["background", "terminal"])
def test_who_leaves_early_ends_what_runs_beside(tmp_path: Path, before: Any) -> None:
    """By Ctrl-C's signal, so that it can clear away; what has not begun never begins."""
    signal.signal(signal.SIGINT, before)
    begun, cleared, second = (tmp_path / name for name in ("begun", "cleared", "second"))
    code = f"import pathlib as p, time\ntry: p.Path({str(begun)!r}).touch(); time.sleep(60)\n"
    code += f"except KeyboardInterrupt: p.Path({str(cleared)!r}).touch()"
    checks = [Check(name="x", command=(sys.executable, "-c", code)), Check(name="x", command=("touch", str(second)))]
    with pytest.raises(KeyboardInterrupt), quality._started(checks):
        _leave_at(begun)
    assert cleared.exists() and not second.exists()


def test_every_folder_of_tests_is_run() -> None:
    """A folder that no check names would never run."""
    folders = {f"tests/{path.parent.name}" for path in (quality.ROOT / "tests").glob("*/test_*.py")}
    named = {word for check in quality.CHECKS for word in check.command}
    # tests/checkpoint needs torch, so tests/image/test_checkpoint.py runs it where torch is: in the built image.
    elsewhere = {"tests/checkpoint"} if (quality.ROOT / "tests/image/test_checkpoint.py").exists() else set()

    assert folders <= named | elsewhere


def _meets(mine: Path, other: Path) -> tuple[str, ...]:
    code = "import pathlib as p, sys, time\np.Path(sys.argv[1]).touch()\n"
    code += "while not p.Path(sys.argv[2]).exists(): time.sleep(.01)"
    return sys.executable, "-c", code, str(mine), str(other)


def _leave_at(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)
    raise KeyboardInterrupt
