"""Claim: `crab train`, and no word more, shows a whole run: the bundled example, its checkpoints and its page."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermitcrab.box.files import read_json
from hermitcrab.checkpoint import store
from hermitcrab.train.places import Run
from tests.train.training import CRAB, Folder


@pytest.fixture
def users(tmp_path: Path) -> Iterator[Folder]:
    """A user's folder."""
    found = Folder(tmp_path)
    yield found
    found.close()


def crab_train(users: Folder, *options: str) -> str:
    """Type it."""
    done = subprocess.run(
        [*CRAB, "train", *options], cwd=users.path, env=users.environ, capture_output=True, timeout=300, check=False
    )
    said = (done.stdout + done.stderr).decode("utf-8", "replace")
    assert done.returncode == 0, said
    return said


def test_a_first_run_needs_no_command(users: Folder) -> None:
    """It says in its first line what it does, learns, ends, and is not trained again; a short run has its verdict."""
    said = crab_train(users)
    assert said.startswith("crab: no command, so this trains the bundled example, python -m hermitcrab.examples.digits")
    assert "\naccuracy 0.9" in said
    run = Run(users.path / "runs/digits-example")
    assert read_json(run.state)["verdict"] == "done"
    newest = store.found(run.checkpoints)[0]
    store.verify(newest.path)
    assert newest.step == 599
    assert run.report.exists()
    assert "digits-example has already finished" in crab_train(users)
    assert "smoke: in order after" in crab_train(users, "--smoke", "20")
