"""Every kind of damage is found and named, the one before is taken, and nothing is deleted."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hermitcrab.checkpoint import choice, retention, store, writers
from hermitcrab.checkpoint import commit as committing
from hermitcrab.checkpoint.retention import Keep, Verified
from hermitcrab.errors import UserError

SAID: list[str] = []


def commit(folder: Path, *steps: int, run: str = "r", **manifest: Any) -> list[Path]:
    """Commit small checkpoints."""
    told = {"run": run, "metrics": {}, **manifest}
    return [committing.commit(folder, step, told, {"state.pt": partial(write, step)}) for step in steps]


def write(step: int, file: Any) -> None:
    """What a step's file holds."""
    file.write(b"%d" % step * 99)


def choose(folder: Path, run: str | None = "r") -> int | None:
    """The step a resume would take."""
    SAID.clear()
    chosen = choice.choose(folder, run, lambda path: path, SAID.append)
    return chosen and int(chosen.manifest["step"])


def steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint's name."""
    return [item.step for item in store.found(folder)]


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change a file's bytes."""
    path.write_bytes(change(path.read_bytes()))


def flip(data: bytes) -> bytes:
    """One bit in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x40]) + data[middle + 1 :]


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "flip": (lambda path: edit(path / "state.pt", flip), "state.pt has changed"),
    "cut": (lambda path: edit(path / "state.pt", lambda data: data[:-1]), "bytes instead of"),
    "empty": (lambda path: edit(path / "state.pt", lambda _: b""), "has 0 bytes"),
    "hole": (lambda path: edit(path / "state.pt", lambda data: data[:9] + bytes(64) + data[73:]), "has changed"),
    "longer": (lambda path: edit(path / "state.pt", lambda data: data + b"x"), "bytes instead of"),
    "missing": (lambda path: (path / "state.pt").unlink(), "state.pt: No such file"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "manifest.json: No such file"),
    "empty manifest": (lambda path: edit(path / "manifest.json", lambda _: b""), "manifest.json is none"),
    "manifest flip": (lambda path: edit(path / "manifest.json", flip), "manifest.json"),
    "manifest edit": (
        lambda path: edit(path / "manifest.json", lambda data: data.replace(b'"step": 3', b'"step": 4')),
        "manifest.json has changed",
    ),
    "manifest list": (lambda path: edit(path / "manifest.json", lambda _: b"[]"), "manifest.json is none"),
    "swapped": (lambda path: shutil.copy(path.parent / "step_00000002/state.pt", path / "state.pt"), "has changed"),
    "renamed": (
        lambda path: shutil.copytree(path.parent / "step_00000002", path, dirs_exist_ok=True),
        "belongs to step 2",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_the_one_before_taken(folder: Path, name: str) -> None:
    """The bad one is set aside with its reason, which is said; the newest good one is taken."""
    *_, newest = commit(folder, 1, 2, 3)
    damage, reason = DAMAGES[name]
    damage(newest)
    assert choose(folder) == 2
    assert steps(folder) == [2, 1]
    assert any(reason in line and newest.name in line for line in SAID), SAID
    assert reason in (folder / "bad" / f"{newest.name}.txt").read_text()
    assert (folder / "bad" / newest.name).is_dir()


def test_a_flipped_bit_is_found_wherever_it_is(folder: Path) -> None:
    """Any bit of any file."""
    (path,) = commit(folder, 3)
    dice = random.Random(1)
    for _ in range(200):
        file = path / dice.choice(["state.pt", "manifest.json"])
        data = bytearray(file.read_bytes())
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        whole = file.read_bytes()
        file.write_bytes(data)
        assert store.reason_of(path) is not None, bytes(data)
        file.write_bytes(whole)
    assert store.reason_of(path) is None


def test_nothing_there_is_a_first_run(folder: Path) -> None:
    """No folder, an empty one, one with other files: begin at 0."""
    assert choose(folder) is None
    folder.mkdir(parents=True)
    (folder / "latest.tmp").write_bytes(b"")
    (folder / "latest").write_text("step_00000009\n")
    (folder / "step_12000.pt").write_bytes(b"")
    assert choose(folder) is None


def test_all_bad_stops_and_goes_on_stopping(folder: Path) -> None:
    """With an exit status of its own, also at the next start; nothing is moved."""
    for path in commit(folder, 1, 2):
        edit(path / "state.pt", flip)
    for _ in range(2):
        with pytest.raises(store.NoGoodCheckpointError, match=r"fresh=True") as caught:
            choose(folder)
        assert caught.value.code == 65
        assert steps(folder) == [2, 1]


def test_only_bad_ones_set_aside_is_no_first_run(folder: Path) -> None:
    """Whoever removed the good ones by hand is not sent back to 0 in silence."""
    _, bad = commit(folder, 1, 2)
    edit(bad / "state.pt", flip)
    assert choose(folder) == 1
    shutil.rmtree(folder / "step_00000001")
    with pytest.raises(store.NoGoodCheckpointError):
        choose(folder)


def test_one_that_kills_the_program_twice_is_stepped_over(folder: Path) -> None:
    """Two starts from it without a commit: the one before is next, and the deadly one is kept aside."""
    commit(folder, 1, 2)
    assert [choose(folder), choose(folder)] == [2, 2]
    assert choose(folder) == 1
    assert any("died 2 times" in line for line in SAID)
    assert (folder / "bad" / "step_00000002").is_dir()
    assert choose(folder) == 1


def test_a_commit_clears_the_suspicion(folder: Path) -> None:
    """What the program got on from is not deadly."""
    commit(folder, 1, 2)
    for _ in range(5):
        assert choose(folder) == 2
        choice.committed(folder)


def test_the_only_one_is_never_stepped_over(folder: Path) -> None:
    """There is nothing to step back to: say so, and go on from it."""
    commit(folder, 1)
    assert [choose(folder) for _ in range(4)] == [1] * 4
    assert any("no older checkpoint" in line for line in SAID)


def test_a_newer_format_is_neither_read_nor_set_aside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not bad: this hermitcrab is too old."""
    monkeypatch.setattr(store, "FORMAT", 2)
    commit(folder, 1)
    monkeypatch.setattr(store, "FORMAT", 1)
    with pytest.raises(UserError, match="update hermitcrab"):
        choose(folder)
    assert steps(folder) == [1]


def test_orphans_of_dead_writers_of_this_machine_are_swept(folder: Path) -> None:
    """Dead pid, reused pid, earlier boot: gone. Living, other machine: left and named."""
    commit(folder, 1)
    own = writers.temporary_name("step_00000009")
    head, host, boot, pid, started = own.rsplit(".", 4)
    never = f"{2**22 + 1}.1"  # above the highest pid there can be
    dead = [f"{head}.{host}.{boot}.{never}", f"{head}.{host}.{boot}.{pid}.1", f"{head}.{host}.earlier.{pid}.{started}"]
    alive = [own, f"{head}.other.{boot}.{2**22 + 1}.1"]
    for name in (*dead, *alive, ".del_step_00000000"):
        (folder / name).mkdir()
    choose(folder)
    assert sorted(path.name for path in folder.glob(".*")) == sorted(alive)
    assert any("other" in line for line in SAID)


def test_the_same_step_again_changes_nothing(folder: Path) -> None:
    """A signal's save right after a periodic one."""
    (path,) = commit(folder, 1)
    before = (path / "manifest.json").stat().st_ino
    assert commit(folder, 1) == [path]
    assert (path / "manifest.json").stat().st_ino == before
    assert not list(folder.glob(".tmp_*"))


def test_the_same_step_over_a_bad_one_sets_that_aside(folder: Path) -> None:
    """Rename cannot replace a folder that is not empty."""
    (path,) = commit(folder, 1)
    edit(path / "state.pt", flip)
    assert commit(folder, 1) == [path]
    assert store.reason_of(path) is None
    assert (folder / "bad" / path.name).is_dir()


def test_the_same_step_of_another_run_stays(folder: Path) -> None:
    """Both are there, each with its run."""
    (first,) = commit(folder, 1, run="a")
    (second,) = commit(folder, 1, run="b")
    assert first != second
    assert {store.verify(path)["run"] for path in (first, second)} == {"a", "b"}
    assert choice.runs(folder) == ["a", "b"]


def test_modes_follow_the_umask(folder: Path) -> None:
    """Others may read what the umask lets them."""
    before = os.umask(0o022)
    try:
        (path,) = commit(folder, 1)
    finally:
        os.umask(before)
    items = (path, path / "state.pt", path / "manifest.json")
    assert [oct(item.stat().st_mode & 0o777) for item in items] == ["0o755", "0o644", "0o644"]


def prune(folder: Path, keep: Keep = Keep(), run: str | None = "r") -> list[int]:  # noqa: B008 - a frozen tuple
    """Remove the surplus; what is left."""
    for path in retention.surplus(folder, run, keep, Verified()):
        store.remove(path)
    return steps(folder)


def test_the_newest_two_stay(folder: Path) -> None:
    """Never fewer, whatever is asked for."""
    commit(folder, 1, 2, 3, 4)
    assert prune(folder, Keep(newest=0)) == [4, 3]
    assert prune(folder) == [4, 3]


def test_bad_ones_do_not_count_and_are_not_removed(folder: Path) -> None:
    """With the newest two damaged, the two good ones below them stay."""
    paths = commit(folder, 1, 2, 3, 4, 5)
    for path in paths[-2:]:
        edit(path / "state.pt", flip)
    assert prune(folder) == [5, 4, 3, 2]


def test_every_nth_and_the_best_stay(folder: Path) -> None:
    """The best by the lowest, or with a + by the highest; NaN is no rating."""
    for step, loss in enumerate([9.0, 2.0, 5.0, float("nan"), 4.0, 7.0, 6.0]):
        commit(folder, step, metrics={"loss": loss})
    assert prune(folder, Keep(every=4, best="loss")) == [6, 5, 4, 1, 0]
    assert prune(folder, Keep(best="+loss")) == [6, 5, 0]


def test_another_runs_checkpoints_stay(folder: Path) -> None:
    """Two runs in one folder."""
    commit(folder, 1, 2, 3, run="a")
    commit(folder, 4, 5, 6, run="b")
    assert prune(folder, run="b") == [6, 5, 3, 2, 1]


def test_damage_after_the_check_is_seen(folder: Path) -> None:
    """What was good is read again when its files have changed."""
    paths = commit(folder, 1, 2, 3)
    verified = Verified()
    for path in paths:
        verified.trust(path)
    assert [path.name for path in retention.surplus(folder, "r", Keep(), verified)] == ["step_00000001"]
    edit(paths[2] / "state.pt", lambda data: flip(data) + b"x")
    assert retention.surplus(folder, "r", Keep(), verified) == []
