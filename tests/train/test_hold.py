"""Claims: `crab hold` and `crab poweroff` say what they do, and without --yes nothing is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermitcrab.errors import UserError
from hermitcrab.train import places
from hermitcrab.train.gate import hold, poweroff
from hermitcrab.train.journal import Journal
from hermitcrab.train.places import Run
from tests import rented
from tests.rented import GoneError
from tests.train.test_gate import environ_of


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that is known."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("hermitcrab.train.gate.busy.PROC", tmp_path / "no-proc")
    found = Run(tmp_path / "runs/exp")
    found.folder.mkdir(parents=True)
    Journal(found).update(state="ended")
    places.register(found)
    return found


def test_hold_and_off(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """By name, or of the newest run; twice is once."""
    for _ in range(2):
        assert hold.main(["exp"]) == 0
        assert run.hold.exists()
    assert "nothing powers this box off for it" in capsys.readouterr().out
    for _ in range(2):
        assert hold.main(["--off"]) == 0
        assert not run.hold.exists()


def test_a_run_that_is_not_there_is_named_with_those_that_are(run: Run) -> None:
    """In one line."""
    with pytest.raises(UserError, match="no run 'nope'; known are exp"):
        hold.main(["nope"])
    assert run.name == "exp"


def test_dry_run_shows_all_of_it(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Platform, evidence, stop path, what it ends, what is billed on, and who would stop it; and touches nothing."""
    box = rented.autodl(tmp_path / "root")
    run.hold.touch()
    assert poweroff.main(["--dry-run"], environ_of(box, tmp_path), root=box.root) == 0
    said = capsys.readouterr().out
    for line in (
        "platform       AutoDL (container), confidence high",
        "evidence       AutoDLContainerUUID is set for PID 1",
        "stop path      stop, by the platform's own shutdown",
        "still billed   the paid part of the data disk; file storage over 20 GB",
        "would wait     exp is held",
    ):
        assert line in said
    assert not (box.root / "calls").exists()


def test_where_nothing_may_be_stopped_that_is_said(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With status 1 for scripts, and --yes refuses."""
    box = rented.workstation(tmp_path / "root")
    assert poweroff.main([], environ_of(box, tmp_path), root=box.root) == 1
    assert "NOT AVAILABLE: you must stop this by hand" in capsys.readouterr().out
    with pytest.raises(UserError, match="not known"):
        poweroff.main(["--yes"], environ_of(box, tmp_path), root=box.root)
    assert run.folder.exists()


def test_yes_stops_after_a_countdown(run: Run, tmp_path: Path) -> None:
    """Once."""
    box = rented.autodl(tmp_path / "root")

    def sleep(_: float) -> None:
        if (box.root / "calls").exists():
            raise GoneError

    with pytest.raises(GoneError):
        poweroff.main(["--yes", "--grace", "0"], environ_of(box, tmp_path), root=box.root, sleep=sleep)
    assert (box.root / "calls").read_text() == "shutdown \n"
    assert run.folder.exists()


def test_without_yes_nothing_is_done(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the way to do it is said."""
    box = rented.autodl(tmp_path / "root")
    assert poweroff.main([], environ_of(box, tmp_path), root=box.root) == 0
    assert "nothing was done" in capsys.readouterr().out
    assert not (box.root / "calls").exists()
    assert run.folder.exists()
