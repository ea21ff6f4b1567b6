"""Claims: a run's journal is whole after any kill, and a full disk ends nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermitcrab import status
from hermitcrab.errors import UserError
from hermitcrab.status import Status
from hermitcrab.train import places
from hermitcrab.train.journal import Journal, lines
from hermitcrab.train.places import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with a folder of its own."""
    (tmp_path / "exp").mkdir()
    return Run(tmp_path / "exp")


def test_events_are_read_back_in_order(run: Run) -> None:
    """What happened can be told afterwards."""
    journal = Journal(run)
    journal.event("started", argv=["python", "a b"])
    journal.event("ended", verdict="done")
    assert [event["kind"] for event in lines(run.events)] == ["started", "ended"]


def test_a_line_cut_by_a_kill_takes_no_other_with_it(run: Run) -> None:
    """Neither the one before nor the one after."""
    Journal(run).event("one")
    with open(run.events, "ab") as file:
        file.write(b'{"kind": "cu')
    Journal(run).event("two")
    assert [event["kind"] for event in lines(run.events)] == ["one", "two"]


def test_an_event_that_could_not_be_written_comes_later(run: Run) -> None:
    """A full disk delays the journal; here a folder stands in its way."""
    journal = Journal(run)
    run.events.mkdir()
    journal.event("one")
    run.events.rmdir()
    journal.event("two")
    assert [event["kind"] for event in lines(run.events)] == ["one", "two"]


def test_the_state_survives_a_new_supervisor(run: Run) -> None:
    """Fields are merged, not replaced."""
    Journal(run).update(attempt=1, state="running")
    Journal(run).update(state="ended")
    assert json.loads(run.state.read_text()) == {"attempt": 1, "state": "ended"}


def test_a_status_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Also what JSON has no word for."""
    path = tmp_path / "status.json"
    written = Status(step=3, loss=float("inf"), signals=("SIGTERM",), exact=False, finished=True)
    status.write(path, written)
    assert status.read(path) == written


@pytest.mark.parametrize(
    "text", ["", "[]", '{"step": "7"}', '{"step": true, "loss": "high", "who": 1}', '{"signals": 1}']
)
def test_a_status_of_a_wrong_kind_is_no_status(tmp_path: Path, text: str) -> None:
    """Any program may write it, so nothing in it is trusted."""
    (tmp_path / "status.json").write_text(text)
    assert status.read(tmp_path / "status.json") == Status()


def test_the_same_command_in_the_same_folder_is_the_same_run(tmp_path: Path) -> None:
    """And any other is another."""
    one = places.default_name(["python", "-m", "x", "train model.py"], tmp_path)
    assert one == places.default_name(["python", "-m", "x", "train model.py"], tmp_path)
    assert one.startswith("train-model-")
    assert one != places.default_name(["python", "-m", "x", "train model.py", ""], tmp_path)
    assert one != places.default_name(["python", "-m", "x", "train model.py"], tmp_path / "b")


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "a\nb", "a" * 65])
def test_a_name_that_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    """Nothing is ever made outside the folder of runs."""
    with pytest.raises(UserError, match="is no name"):
        places.open_run(tmp_path, name)


def test_runs_are_found_from_anywhere(run: Run, tmp_path: Path) -> None:
    """By name, by folder, and without a word the newest."""
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    Journal(run).update(state="running")
    places.register(run, environ)
    for word in ("", "exp", str(run.folder)):
        assert places.find(word, environ).folder == run.folder
    with pytest.raises(UserError, match="known are exp"):
        places.find("other", environ)
