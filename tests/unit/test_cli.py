"""`crab` finds its commands, leaves their arguments alone and turns errors into one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hermitcrab import __version__, cli
from hermitcrab.box import entry
from hermitcrab.errors import UserError

ROOT = Path(__file__).parents[2]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """``crab --version`` is one line."""
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"crab {__version__}\n"


def test_every_command_is_named_and_has_a_main(capsys: pytest.CaptureFixture[str]) -> None:
    """Each row of the table shows in the help and leads to a module with a main."""
    with pytest.raises(SystemExit, match="0"):
        cli.main([])
    shown = capsys.readouterr().out
    for name, command in cli.COMMANDS.items():
        assert f"  {name} " in shown
        assert callable(__import__(command.module, fromlist=["main"]).main)


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"]])
def test_unknown_command_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong word names the right ones and exits 2."""
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    assert "crab: error: " in capsys.readouterr().err


def test_arguments_reach_the_command_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--`` and everything behind it belong to the command."""
    seen: list[list[str]] = []

    def main(arguments: list[str]) -> int:
        seen.append(arguments)
        return 9

    monkeypatch.setattr(entry, "main", main)

    assert cli.main(["entry", "--", "a", "--version", "--"]) == 9
    assert seen == [["--", "a", "--version", "--"]]


def test_user_error_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What the user can mend is a line and an exit status, never a traceback."""

    def main(_: list[str]) -> int:
        raise UserError("no such box; known: none", code=2)

    monkeypatch.setattr(entry, "main", main)

    assert cli.main(["entry"]) == 2
    assert capsys.readouterr().err == "crab: no such box; known: none\n"


def test_help_loads_no_command() -> None:
    """The face starts fast because a command's module loads only when it is called."""
    code = "import sys, hermitcrab.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    loaded = set(done.stdout.split())
    assert "hermitcrab.cli" in loaded
    assert not loaded & {"subprocess", *(command.module for command in cli.COMMANDS.values())}


def test_a_reader_that_goes_away_is_no_error() -> None:
    """``crab platform | true`` says nothing about it."""
    with subprocess.Popen(
        [sys.executable, "-m", "hermitcrab.cli", "platform"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
