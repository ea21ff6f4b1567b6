"""`crab seal`: what is waste or secret goes, what may be work is asked about, all else stays as it is."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermitcrab.box import platform, seal
from hermitcrab.box.seal import waste
from hermitcrab.box.seal.rows import Row
from hermitcrab.errors import UserError
from tests.unit.seal_root import (
    GITHUB,
    HF,
    INNOCENT,
    PLANTS,
    PRIVATE,
    VARIABLES,
    WANDB,
    Plant,
    call,
    found,
    make_root,
    put,
    tree,
)

ROWS = {row.id: row for row in (*waste.ROWS, waste.ENVIRONMENT)}
ALL_ASKED = [row.id for row in ROWS.values() if row.ask and row.clean != "name"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A box with nothing to clean."""
    return make_root(tmp_path)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A box with everything on it; only for tests that change nothing."""
    return plant_all(make_root(tmp_path_factory.mktemp("full")))


def plant_all(root: Path) -> Path:
    """Put everything there."""
    for plant in PLANTS:
        put(root, plant.path, plant.text)
    return root


def options_for(row: Row) -> list[str]:
    """What the user says to have a row cleaned."""
    if row.id == "authorized-keys":
        return ["--keys", "remove"]
    return ["--include", row.id] if row.ask and row.clean != "name" else []


def plants_of(row: Row) -> Iterator[Plant]:
    """Yield what is planted for a row."""
    return (plant for plant in PLANTS if plant.row == row.id)


def test_every_row_has_a_planted_sample() -> None:
    """A row that was never seen to find anything is no row, and its name is its own."""
    assert {plant.row for plant in PLANTS} == set(ROWS)
    assert len(ROWS) == len(waste.ROWS) + 1
    assert len({plant.row for plant in PLANTS if ROWS[plant.row].kind in {"token", "key"}}) >= 20


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_what_a_row_means_is_found_and_cleaned(row: Row, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is found by its own row, --check names it and touches nothing, --yes takes it and nothing else."""
    innocent, plants, options = tree(root), list(plants_of(row)), options_for(row)
    for plant in plants:
        put(root, plant.path, plant.text)
    planted = tree(root)

    status, told = call(capsys, root, "--check", *options)
    assert (status, {item["row"] for item in told["items"]}) == (1, {row.id})
    assert tree(root) == planted

    status, told = call(capsys, root, "--yes", *options)
    assert (status, told["failures"]) == (0, [])
    for plant in plants:
        left = Path(f"{root}{plant.path}")
        assert (left.read_text() if left.exists() else None) == plant.left
    changed = {plant.path for plant in plants}
    after = tree(root)
    assert {path: after.get(path) for path in innocent if path not in changed} == {
        path: told for path, told in innocent.items() if path not in changed
    }
    assert call(capsys, root, "--check", *options)[0] == (row.clean == "name")


def test_a_dry_run_changes_nothing_and_tells_all(full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every planted thing is in the answer, with its bytes, and the tree is the same."""
    before = tree(full)

    status, told = call(capsys, full)

    assert status == 0
    assert tree(full) == before
    assert {item["row"] for item in told["items"]} == set(ROWS)
    assert all(isinstance(item["bytes"], int) for item in told["items"])
    assert told["waste_bytes"] == sum(item["bytes"] for item in told["items"] if item["decision"] == "remove")
    assert 0 < told["waste_bytes"] < told["used_bytes"]
    assert {row for row, _ in found(told, "ask")} == {row.id for row in ROWS.values() if row.ask}
    assert {row for row, _ in found(told, "keep")} == {"authorized-keys"}


def test_nothing_innocent_is_named(full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No line of the answer is about a file that has to stay."""
    _, told = call(capsys, full)

    assert not {path for _, path in found(told)} & set(INNOCENT)


def test_all_is_sealed_once_and_for_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--check is red before, and green after; a second run has nothing to do; the rest is as it was."""
    root = make_root(tmp_path)
    innocent = tree(root)
    plant_all(root)
    assert call(capsys, root, "--check")[0] == 1

    include = [word for name in ALL_ASKED for word in ("--include", name)]
    assert call(capsys, root, "--yes", "--keys", "remove", *include)[0] == 0

    status, told = call(capsys, root, "--check", "--keys", "remove", "--keep", "token-in-file")
    assert (status, found(told)) == (0, {("token-in-file", "/root/code/login.py")})
    after = tree(root)
    assert {path: after.get(path) for path in innocent} == innocent
    secrets = [secret.encode() for secret in (GITHUB, WANDB, HF)]
    left = [
        path for path in root.rglob("*") if path.is_file() and any(secret in path.read_bytes() for secret in secrets)
    ]
    assert left == [root / "root/code/login.py"]


def test_what_may_be_work_stays_until_it_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--yes alone removes no checkpoint; --include takes a row or one path, and --keep beats it."""
    root = make_root(tmp_path)
    one, two = put(root, "/root/code/a.pt"), put(root, "/root/code/b.ckpt")

    assert call(capsys, root, "--yes")[0] == 0
    assert one.exists() and two.exists()
    assert call(capsys, root, "--check")[0] == 0  # work that stays is the user's decision

    assert call(capsys, root, "--yes", "--include", "/root/code/a.pt")[0] == 0
    assert not one.exists() and two.exists()
    assert call(capsys, root, "--yes", "--include", "checkpoints", "--keep", "/root/code/b.ckpt")[0] == 0
    assert two.exists()


def test_a_kept_thing_is_not_missed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--keep leaves waste alone, inside other waste too, and --check accepts it."""
    models, other = put(root, "/root/.cache/huggingface/hub/m"), put(root, "/root/.cache/x")
    token = put(root, "/root/.cache/huggingface/token")

    assert call(capsys, root, "--yes", "--keep", "huggingface")[0] == 0
    assert models.exists() and not other.exists() and not token.exists()
    assert call(capsys, root, "--check", "--keep", "huggingface")[0] == 0

    put(root, "/root/.cache/huggingface/token")
    assert call(capsys, root, "--yes", "--keep", "huggingface-token")[0] == 0
    assert token.exists() and not models.exists()


def test_authorized_keys_are_a_choice(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They stay unless --keys remove is said, and then the check wants them gone."""
    keys = put(root, "/root/.ssh/authorized_keys", "ssh-ed25519 AAAA me\n")

    assert call(capsys, root, "--yes")[0] == call(capsys, root, "--check")[0] == 0
    assert keys.exists()
    assert call(capsys, root, "--check", "--keys", "remove")[0] == 1
    assert call(capsys, root, "--yes", "--keys", "remove")[0] == 0
    assert not keys.exists()


def test_host_keys_are_asked_about_where_nobody_makes_new_ones(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A box that starts without host keys and makes none is out of reach."""
    key = put(root, "/etc/ssh/ssh_host_rsa_key")
    (root / "etc/hermitcrab/manifest.json").unlink()

    assert call(capsys, root, "--yes")[0] == 0
    assert key.exists()
    assert call(capsys, root, "--check")[0] == 1

    put(root, "/usr/bin/cloud-init")  # without systemd nobody runs it
    assert call(capsys, root, "--yes")[0] == 0
    assert key.exists()

    (root / "run/systemd/system").mkdir(parents=True)
    assert call(capsys, root, "--yes")[0] == 0
    assert not key.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--include", "chekpoints"], "valid: age-keys, "),
        (["--include", "/root/code/nothing.pt"], "no such path"),
        (["--include", "token-in-file"], "is never removed"),
        (["--keep", ""], "valid: "),
    ],
)
def test_a_name_that_means_nothing_is_refused(options: list[str], said: str, root: Path) -> None:
    """A typo must not leave in place, or take, what it did not mean."""
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        seal.main(["--yes", *options], root, VARIABLES)
    assert caught.value.code == 2


def test_on_a_cluster_nothing_is_removed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job's home is the user's own: there is no image to make ready, and his keys have no other copy."""
    key = put(root, "/root/.ssh/id_rsa", PRIVATE)

    with pytest.raises(UserError, match="Slurm saves no image"):
        seal.main(["--yes"], root, {"SLURM_JOB_ID": "7"})
    assert seal.main([], root, {"SLURM_JOB_ID": "7"}) == 0
    assert "/root/.ssh/id_rsa" in capsys.readouterr().out
    assert key.exists()


def test_a_seal_with_open_questions_says_so(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sealed but for a key in the shell's settings is not ready."""
    put(root, "/root/.bashrc", f"export HF_TOKEN={HF}\n")

    assert seal.main(["--yes"], root, VARIABLES) == 0

    assert "sealed, but 1 secret is left to you" in capsys.readouterr().out


def test_no_secret_is_printed(full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names and lines are told, values never."""
    for options in ([], ["--check"], ["--json"]):
        seal.main(options, full, VARIABLES)
        said = capsys.readouterr()
        assert HF not in said.out + said.err
        assert "line 2: HF_TOKEN=***" in said.out
        assert not re.search(f"{GITHUB}|{WANDB}|abcdef|secret@|pass@", said.out + said.err)


def test_the_platform_s_limit_and_steps_are_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """AutoDL saves 30 GB of the system disk, in both languages."""
    put(root, "/root/.bash_history")
    environ = {**VARIABLES, "AutoDLContainerUUID": "x"}

    seal.main([], root, environ)

    said = capsys.readouterr().out
    assert "image limit of AutoDL: 27.9 GiB (30 GB): fits" in said
    assert "the system disk only" in said
    assert "保存镜像" in said and "In the console" in said
    assert "unset HISTFILE" in said


def test_too_big_is_said(root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is compared with the limit, not what there was."""
    put(root, "/root/code/dump.tar", 101 * 10**6)
    small = platform.detect(root, {"AutoDLContainerUUID": "x"})
    limited = small._replace(row=small.row._replace(image_limit_gb=0.1))
    monkeypatch.setattr(seal, "detect", lambda *_: limited)

    assert call(capsys, root)[1]["fits"] is False
    assert call(capsys, root, "--include", "big-files")[1]["fits"] is True
    seal.main([], root, VARIABLES)
    assert "TOO BIG by" in capsys.readouterr().out


def test_an_environment_on_the_data_disk_is_told(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image without its torch is a surprise to be had before it is saved."""
    monkeypatch.setattr(sys, "prefix", "/root/autodl-tmp/env")

    seal.main([], root, VARIABLES)

    assert "/root/autodl-tmp/env is on another disk" in capsys.readouterr().out


def test_the_text_tells_what_remains(full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--check names rows and paths, and how to answer a question."""
    assert seal.main(["--check"], full, VARIABLES) == 1

    said = capsys.readouterr().out
    assert "NOT ready" in said
    for row in ROWS.values():
        assert row.id in said
    assert "--include NAME" in said
