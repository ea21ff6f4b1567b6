"""`crab ckpt` on its own and on foreign checkpoints: what it lists, finds damaged, shows and removes."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import struct
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from hermitcrab import cli
from hermitcrab.checkpoint import store
from tests.checkpoint.test_store import commit, edit, flip

CASES: Final = Path(__file__).parents[1] / "cases"


def crab(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Run `crab ckpt`; its status and what it printed."""
    status = cli.main(["ckpt", *words])
    said = capsys.readouterr()
    return status, said.out + said.err


def safetensors(path: Path, values: int = 4) -> None:
    """A file as the format's own description has it."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [values], "data_offsets": [0, 4 * values]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4 * values))


def test_case_c37(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest is cut off and an empty latest.tmp lies beside it: named and passed over."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(CASES / "C37c.txt"))
    status, said = crab(capsys, "verify", str(tmp_path / "ckpt"))
    assert status == 1
    assert f"bad     {tmp_path}/ckpt/step_12000.pt  (it is cut off" in said
    assert f"newest good: {tmp_path}/ckpt/step_11000.pt" in said
    assert "latest.tmp" not in said
    for path in (tmp_path / "ckpt").glob("*.pt"):
        edit(path, lambda data: data[: len(data) // 5])
    assert crab(capsys, "verify", str(tmp_path / "ckpt"))[0] == 65


TORCH_DAMAGES: dict[str, tuple[Any, str]] = {
    "flip": (flip, "damaged: "),
    "hole": (lambda data: data[: len(data) // 3] + bytes(512) + data[len(data) // 3 + 512 :], "damaged: "),
    "cut at the end": (lambda data: data[:-1], "cut off"),
    "cut in half": (lambda data: data[: len(data) // 2], "cut off"),
    "empty": (lambda _: b"", "it is empty"),
    "text": (lambda _: b"<html>not found", "no file of torch's"),
}


@pytest.mark.parametrize("name", TORCH_DAMAGES)
def test_a_damaged_pt_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Also what torch.load takes in silence."""
    path = tmp_path / "model_7.pt"
    torch.save({"w": torch.randn(5000)}, path)
    assert crab(capsys, "verify", str(path))[0] == 0
    damage, reason = TORCH_DAMAGES[name]
    edit(path, damage)
    status, said = crab(capsys, "verify", str(path))
    assert status == 65 and reason in said


def test_a_pt_without_checksums_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither good nor bad: torch's old format, and checksums switched off."""
    torch.save({"w": torch.ones(3)}, tmp_path / "old_1.pt", _use_new_zipfile_serialization=False)
    if hasattr(torch.serialization, "set_crc32_options"):
        torch.serialization.set_crc32_options(False)
        torch.save({"w": torch.ones(3)}, tmp_path / "off_2.pt")
        torch.serialization.set_crc32_options(True)
    status, said = crab(capsys, "verify", str(tmp_path))
    assert status == 65 and "bad" not in said and "old format" in said


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch trapped",)


def test_nothing_is_unpickled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Show names what a .pt would import, and does not import it."""
    monkeypatch.chdir(tmp_path)
    torch.save({"trap": Trap(), "args": argparse.Namespace(a=1)}, "evil_1.pt")
    status, said = crab(capsys, "show", "evil_1.pt")
    assert status == 0 and "posix.system" in said and "argparse.Namespace" in said
    assert crab(capsys, "verify", "evil_1.pt")[0] == 0
    assert not (tmp_path / "trapped").exists()


def test_safetensors_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the header's sizes; a shard that the index names must be there."""
    folder = tmp_path / "checkpoint-500"
    folder.mkdir()
    for name in ("model-1.safetensors", "model-2.safetensors"):
        safetensors(folder / name)
    torch.save({"step": 1}, folder / "optimizer.pt")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert crab(capsys, "verify", str(tmp_path))[0] == 0
    status, said = crab(capsys, "show", str(folder / "model-1.safetensors"))
    assert status == 0 and '"dtype": "F32"' in said
    (folder / "model-2.safetensors").rename(tmp_path / "away")
    assert "model-2.safetensors: it is missing" in crab(capsys, "verify", str(tmp_path))[1]
    for damage in (lambda data: data[:-1], lambda data: data[:9], lambda _: b"", lambda data: b"\xff" * 8 + data[8:]):
        safetensors(folder / "model-1.safetensors")
        edit(folder / "model-1.safetensors", damage)
        assert crab(capsys, "verify", str(tmp_path))[0] == 65


def test_own_ones(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ls, verify, show and prune on a run of ours; prune only with --yes."""
    paths = commit(folder, 1, 2, 3, 4, metrics={"loss": 0.5})
    status, said = crab(capsys, "ls", str(folder))
    assert status == 0 and said.splitlines()[0].split()[0] == "4" and "loss=0.5" in said
    assert crab(capsys, "verify", str(folder))[0] == 0
    assert json.loads(crab(capsys, "show", str(folder))[1])["step"] == 4
    edit(paths[3] / "state.pt", flip)
    status, said = crab(capsys, "verify", str(folder))
    assert status == 1 and f"newest good: {paths[2]}" in said
    assert "would remove" in crab(capsys, "prune", str(folder))[1]
    assert len(store.found(folder)) == 4
    assert crab(capsys, "prune", str(folder), "--yes")[0] == 0
    assert [item.step for item in store.found(folder)] == [4, 3, 2]
    assert crab(capsys, "verify", str(paths[2]))[0] == 0
    assert crab(capsys, "verify", str(paths[3]))[0] == 65
    store.set_aside(paths[3], "because")
    told = json.loads(crab(capsys, "ls", str(folder), "--json")[1])
    assert [row["kind"] for row in told] == ["hermitcrab", "hermitcrab", "set aside"]


def test_foreign_ones_are_pruned_by_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest good two of each stay, and what has no number; by number, not by name."""
    for name in ("step_8", "step_9", "step_10", "step_11", "ema_1", "ema_2", "best"):
        torch.save({"w": torch.ones(300)}, tmp_path / f"{name}.pt")
    edit(tmp_path / "step_11.pt", lambda data: data[:-1])
    crab(capsys, "prune", str(tmp_path), "--yes")
    left = sorted(path.stem for path in tmp_path.iterdir())
    assert left == ["best", "ema_1", "ema_2", "step_10", "step_11", "step_9"]


def test_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each: nothing there, too few to keep, an empty folder."""
    assert crab(capsys, "ls", str(tmp_path / "no"))[0] == 2
    assert crab(capsys, "prune", str(tmp_path), "--keep", "1")[0] == 2
    assert crab(capsys, "ls", str(tmp_path)) == (0, f"no checkpoint in {tmp_path}\n")
    assert crab(capsys, "verify", str(tmp_path))[0] == 1
    assert crab(capsys, "show", str(tmp_path))[0] == 1
