"""Claims: an armed deadline is seen by its process, keeps a box from being sealed, and is ended by one command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermitcrab.box import seal
from hermitcrab.box.power import armed
from hermitcrab.errors import UserError
from hermitcrab.train import places, process
from hermitcrab.train.gate import deadline, poweroff
from hermitcrab.train.gate.deadline import Guard
from hermitcrab.train.journal import Journal
from hermitcrab.train.places import Run
from tests.rented import put
from tests.train.test_deadline import autodl, wait
from tests.train.test_gate import make_run


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of these tests' own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run whose name no other test has: what is armed is seen on the whole machine."""
    return make_run(tmp_path / f"runs/disarm-{os.getpid()}")


@pytest.fixture
def guard(tmp_path: Path, run: Run) -> Iterator[Guard]:
    """Its deadline, in a hundred seconds."""
    made = deadline.start(autodl(tmp_path), run, 100, "--max-hours 2")
    yield made
    deadline.disarm(made)


def mine(run: Run) -> list[int]:
    """The deadlines of this test's run."""
    return [one.pid for one in armed.armed() if one.run == run.name]


def test_it_is_seen_without_its_record(guard: Guard, run: Run, tmp_path: Path) -> None:
    """From its first moment; whoever only speaks of it is none."""
    shutil.rmtree(tmp_path / "state")
    with subprocess.Popen(["sleep", "9"], executable="/bin/sleep") as other:
        assert mine(run) == [guard.pid]
        other.kill()
    said = subprocess.run([sys.executable, "-c", LOOKS, "-I", "-c", armed.WORD], capture_output=True, check=True)
    assert said.stdout.decode() == f"{[guard.pid]}\n"
    assert Path(f"/proc/{guard.pid}/comm").read_bytes().strip() == armed.NAME


LOOKS = "from hermitcrab.box.power import armed; print([one.pid for one in armed.armed() if 'disarm-' in one.run])"


def test_a_box_with_an_armed_deadline_is_not_sealed(
    guard: Guard, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is removed, its record neither; one line says how to end it, and afterwards it can be sealed."""
    root = tmp_path / "box"
    token = put(root, "root/.cache/huggingface/token", "x")
    for name in ("cmdline", "comm"):  # the processes of that box: this one
        put(root, f"proc/{guard.pid}/{name}", "").write_bytes(Path(f"/proc/{guard.pid}/{name}").read_bytes())
    with pytest.raises(UserError) as refused:
        seal.main(["--yes"], root, {})
    said = str(refused.value)
    assert f"deadline of run {run.name} (process {guard.pid})" in said
    assert "`crab poweroff --disarm` ends it" in said
    assert "\n" not in said
    assert token.exists()

    assert seal.main(["--check", "--json"], root, {}) == 1
    assert json.loads(capsys.readouterr().out)["armed"] == [f"the deadline of run {run.name} (process {guard.pid})"]
    token.unlink()
    assert seal.main(["--check"], root, {}) == 1
    assert "NOT ready, a deadline is armed" in capsys.readouterr().out
    assert seal.main([], root, {}) == 0
    assert "`crab poweroff --disarm` ends it" in capsys.readouterr().out

    shutil.rmtree(root / f"proc/{guard.pid}")
    assert seal.main(["--yes"], root, {}) == 0
    assert seal.main(["--check"], root, {}) == 0


def test_it_is_ended_by_one_command(guard: Guard, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """With its record; nothing of a platform is asked for that."""
    assert poweroff.main(["--disarm"], root=_only(guard)) == 0
    assert f"disarmed: the deadline of run {run.name}" in capsys.readouterr().out
    assert wait(lambda: not process.lives(guard.pid, guard.started))
    assert deadline.guards() == []
    assert not Path(guard.record).exists()


def test_that_of_a_run_that_goes_on_is_part_of_it(guard: Guard, run: Run) -> None:
    """Its supervisor would stop the box at the limit all the same: hold or stop the run."""
    me = process.read(os.getpid())
    assert me
    Journal(run).update(pid=os.getpid(), started=me.started, state="running")
    places.register(run)
    with pytest.raises(UserError, match=f"{run.name} is running: `crab stop {run.name}` first"):
        poweroff.main(["--disarm"], root=_only(guard))
    assert process.lives(guard.pid, guard.started)


def test_where_none_is_armed_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twice is once."""
    assert poweroff.main(["--disarm"], root=tmp_path) == 0
    assert "no deadline is armed" in capsys.readouterr().out


def test_one_without_a_record_is_shown(
    guard: Guard, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `crab poweroff`: that a file is gone must not hide what will fire."""
    shutil.rmtree(tmp_path / "state")
    poweroff.main(["--dry-run"], {"PATH": "/usr/bin:/bin"}, root=_only(guard))
    assert f"the deadline of run {run.name} (process {guard.pid}): when is not known" in capsys.readouterr().out


def _only(guard: Guard) -> Path:
    """A root with this one process: other deadlines of this machine are not the tests' to end."""
    root = Path(guard.record).parents[3] / "only"
    put(root, f"proc/{guard.pid}/cmdline", "").write_bytes(Path(f"/proc/{guard.pid}/cmdline").read_bytes())
    return root
