"""A run after the first: nothing is done when all is as the stamp says, else it is said what is not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from hermitcrab.box.bootstrap import again, apt, own, pins, plan, settle, stamp
from hermitcrab.box.bootstrap.pick import Machine
from hermitcrab.box.bootstrap.run import Places, Run

MACHINE: Final = Machine("550.54.15", (86,), ("RTX 3090",), "x86_64", ("3.11",))
KNOWN: Final = pins.Pins((), ("tmux",), pins.Tool("1", "0"))
STAMP: Final[dict[str, Any]] = {
    "script": "abc",
    "asked": ["12.1", "", False],
    "driver": MACHINE.driver,
    "cards": list(MACHINE.names),
    "combo": "x",
    "check": "pass",
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A box on which everything is as the stamp says."""
    monkeypatch.setattr(plan, "look", lambda: MACHINE)
    monkeypatch.setattr(apt, "missing", lambda _: [])
    monkeypatch.setattr(settle, "settings", lambda *_, **__: [])
    monkeypatch.setattr(settle, "lacks_host_keys", lambda _: False)
    monkeypatch.setattr(again, "_venv_is_whole", lambda *_: True)
    places = Places(tmp_path, tmp_path / "settings", tmp_path / "opt/venv")
    stamp.write(places.stamp, stamp.DONE, **STAMP)
    return Run(True, places, tmp_path / "work", dict(os.environ))


def why_not(run: Run, *, cuda: str = "12.1", script: str = "abc") -> str:
    """What a second run finds to do."""
    return again.why_not(run, plan.Asked(cuda), KNOWN, b"", script)


def test_nothing_is_to_be_done(run: Run) -> None:
    """The same script, options and machine, and all is there."""
    assert why_not(run) == ""


@pytest.mark.parametrize("result", [stamp.PARTIAL, stamp.FAILED])
def test_an_unfinished_run_is_gone_on_with(result: str, run: Run) -> None:
    """What was left out may be possible now; a check that failed may pass."""
    stamp.write(run.places.stamp, result, **STAMP)
    assert "no stamp of a finished run" in why_not(run)
    run.places.stamp.unlink()
    assert "no stamp of a finished run" in why_not(run)


def test_another_wish_is_another_run(run: Run) -> None:
    """Other options, or a newer script."""
    assert "of other options" in why_not(run, cuda="12.8")
    assert "of another script" in why_not(run, script="def")


class Change(NamedTuple):
    """What is not as it was, and what is said of it."""

    module: Any
    name: str
    instead: Callable[..., Any]
    said: str


CHANGES: Final = [
    Change(plan, "look", lambda: MACHINE._replace(names=("RTX 5090",)), "another machine"),
    Change(plan, "look", lambda: MACHINE._replace(driver="580"), "another machine"),
    Change(again, "_venv_is_whole", lambda *_: False, "environment"),
    Change(settle, "lacks_host_keys", lambda _: True, "host keys"),
    Change(apt, "missing", lambda _: ["tmux"], "packages are missing"),
    Change(settle, "settings", lambda *_, **__: ["/etc/tmux.conf: tmux settings"], "settings are missing"),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.said)
def test_what_changed_is_done_again(change: Change, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A saved image on another card, a package that was removed, a file that was lost."""
    monkeypatch.setattr(change.module, change.name, change.instead)
    assert change.said in why_not(run)


def test_what_was_put_in_is_taken_out(run: Run) -> None:
    """The environment by its mark, a try that was cut off, the link to a data disk, the stamp; nothing of others."""
    venv = run.places.venv
    for folder in (venv, venv.with_name(".venv.partial"), venv.parent / "mine"):
        folder.mkdir(parents=True)
    data = run.places.home / "data/venv"
    stamp.write(run.places.stamp, stamp.DONE, **{**STAMP, "venv": str(data)})
    run.places.constraints.touch()
    whose = [what for what, _ in again.removal(run)]
    assert str(venv) not in whose  # not of our making
    (venv / own.MARK).touch()
    for _, remove in again.removal(run):
        remove()
    assert [path.name for path in venv.parent.iterdir()] == ["mine"]
    assert list(run.places.settings.iterdir()) == []


def test_a_link_to_a_data_disk_goes_with_what_it_leads_to(run: Run) -> None:
    """Both, and the empty name is not left in the profile's way."""
    data = run.places.home / "data/venv"
    data.mkdir(parents=True)
    (data / own.MARK).touch()
    run.places.venv.parent.mkdir()
    run.places.venv.symlink_to(data)
    stamp.write(run.places.stamp, stamp.DONE, **{**STAMP, "venv": str(data)})
    for _, remove in again.removal(run):
        remove()
    assert not data.exists()
    assert not run.places.venv.is_symlink()


def test_a_link_after_a_run_that_was_cut_off(run: Run) -> None:
    """Without a stamp: what it leads to goes first, and what was fetched for it, then the link."""
    data = run.places.home / "data/venv"
    for folder in (data, data.with_name(".venv.partial"), run.places.venv.parent):
        folder.mkdir(parents=True)
    (data / own.MARK).touch()
    run.places.venv.symlink_to(data)
    run.places.stamp.unlink()
    for _, remove in again.removal(run):
        remove()
    assert list(data.parent.iterdir()) == []
    assert not run.places.venv.is_symlink()


def test_somebody_else_s_link_stays(run: Run) -> None:
    """At our place, to a folder of theirs; and one to nowhere. Only one to our place on a data disk is ours."""
    theirs = run.places.home / "theirs"
    theirs.mkdir()
    run.places.venv.parent.mkdir()
    for target, ours in ((theirs, False), (theirs / "gone", False), (theirs / "hermitcrab/venv", True)):
        run.places.venv.symlink_to(target)
        assert (str(run.places.venv) in [what for what, _ in again.removal(run)]) is ours
        run.places.venv.unlink()


def test_a_folder_above_may_be_a_link(run: Run) -> None:
    """As /opt on a data disk: each thing is named and removed once."""
    real = run.places.home / "real"
    for name in ("venv", ".venv.partial"):
        (real / name).mkdir(parents=True)
    (real / "venv" / own.MARK).touch()
    run.places.venv.parent.symlink_to(real)
    run.places.stamp.unlink()
    found = again.removal(run)
    assert len({os.path.realpath(what) for what, _ in found}) == len(found)
    for _, remove in found:
        remove()
    assert list(real.iterdir()) == []
