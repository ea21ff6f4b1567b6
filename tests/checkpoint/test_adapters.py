"""Other people's trainers with our envelope: the real libraries, killed and resumed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from hermitcrab import NoGoodCheckpointError, status
from hermitcrab.checkpoint import store
from hermitcrab.checkpoint.adapters import huggingface

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = {"huggingface": ("transformers", "accelerate"), "lightning": ("lightning",)}


def need(which: str) -> None:
    """Skip where the library is not installed."""
    missing = [name for name in PACKAGES[which] if not importlib.util.find_spec(name)]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed here")


def start(which: str, folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start a training."""
    command = [sys.executable, "-B", "-m", "tests.checkpoint.trainers", which, str(folder), *words]
    variables = {**os.environ, "STATUS_FILE": f"{folder}.json", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def run(which: str, folder: Path, *words: str) -> tuple[int, str]:
    """Run a training to its end: status, and all it said."""
    with start(which, folder, *words) as running:
        assert running.stdout
        said = running.stdout.read()
    return running.returncode, said


@pytest.mark.parametrize("which", PACKAGES)
def test_killed_twice_and_damaged(tmp_path: Path, which: str) -> None:
    """The weights at the end are those of an undisturbed run; a damaged newest is stepped over."""
    need(which)
    whole = run(which, tmp_path / "whole")[1].splitlines()[-1]
    assert whole.startswith("weights ")
    folder = tmp_path / "run"
    for at in ("3", "9"):
        assert run(which, folder, "14", at)[0] == -signal.SIGKILL
    (newest, *_) = store.found(folder) if which == "lightning" else huggingface.found(folder)
    largest = max(newest.path.iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 0x40
    largest.write_bytes(data)
    code, said = run(which, folder)
    assert (code, said.splitlines()[-1]) == (0, whole), said
    assert f"{newest.path.name} is not used: {largest.name} has changed" in said
    told = status.read(Path(f"{folder}.json"))
    assert (told.finished, told.total, told.committed) == (True, 14, 13 if which == "lightning" else 14)
    assert told.loss is not None and told.phase == ""


@pytest.mark.parametrize("which", PACKAGES)
def test_sigterm_saves_and_ends(tmp_path: Path, which: str) -> None:
    """At the next step; the program is not finished, and says so."""
    need(which)
    folder = tmp_path / "run"
    with start(which, folder, "1000000") as running:
        end = time.monotonic() + 60
        while status.read(Path(f"{folder}.json")).step is None:
            assert time.monotonic() < end and running.poll() is None
            time.sleep(0.01)
        running.terminate()
        assert running.stdout
        said = running.stdout.read()
    assert running.returncode in {143, -15}, said
    told = status.read(Path(f"{folder}.json"))
    assert told.finished is False and told.committed is not None and told.committed >= (told.step or 0) - 1


def test_only_bad_ones_stop(tmp_path: Path) -> None:
    """An unfinished newest is set aside; nothing but such is no first run."""
    assert huggingface.get_last_verified_checkpoint(tmp_path / "none") is None
    for number in (9, 10):
        (tmp_path / f"checkpoint-{number}").mkdir()
        (tmp_path / f"checkpoint-{number}/model.safetensors").write_bytes(bytes(number))
    huggingface.seal(tmp_path / "checkpoint-9")
    assert huggingface.get_last_verified_checkpoint(tmp_path) == str(tmp_path / "checkpoint-9")
    assert (tmp_path / "bad/checkpoint-10.txt").read_text().startswith("manifest.json: No such file")
    (tmp_path / "checkpoint-9/model.safetensors").write_bytes(b"")
    with pytest.raises(NoGoodCheckpointError):
        huggingface.get_last_verified_checkpoint(tmp_path)
