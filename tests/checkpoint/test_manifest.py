"""What a checkpoint tells of its run, and what is said when a run goes on elsewhere."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import nn

from hermitcrab import Checkpointer, ResumableSampler
from hermitcrab.checkpoint import store

ROOT: Final = Path(__file__).parents[2]
PROGRAM: Final = """
import sys, torch
from hermitcrab import Checkpointer, ResumableSampler
sampler = ResumableSampler(10, batch_size=4)
loader = torch.utils.data.DataLoader(torch.arange(10), batch_sampler=sampler)
ckpt = Checkpointer(sys.argv[1], model=torch.nn.Linear(2, 2), sampler=sampler, run="r1", every_steps=1, rehearse=False)
batches = sampler.batches(loader)
for step in range(ckpt.resume(), 5):
    next(batches)
    ckpt.step(step, loss=0.5)
ckpt.close()
"""


def test_all_that_is_promised(tmp_path: Path) -> None:
    """Sizes, sums, step, place in the data, versions, card, revision, and the command without its secrets."""
    (tmp_path / "train.py").write_text(PROGRAM)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    secrets = ["--api-key", "aaa111", "--hf-token=bbb222", "--url", "https://me:ccc333@example.org/x"]
    command = [sys.executable, "-B", str(tmp_path / "train.py"), str(tmp_path / "run"), "--lr", "0.1", *secrets]
    subprocess.run(command, check=True, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"})
    path = tmp_path / "run/step_00000004"
    told = store.verify(path)
    assert (told["step"], told["epoch"], told["batches"], told["samples"], told["run"]) == (4, 1, 2, 8, "r1")
    assert (told["world_size"], told["format"], told["metrics"], told["exact"]) == (1, 1, {"loss": 0.5}, True)
    assert told["torch"] == torch.__version__ and told["cuda"] == torch.version.cuda and told["gpu"] == []
    assert told["python"] == sys.version.split()[0] and told["time"] > 1.7e9
    assert told["files"]["state.pt"]["size"] == (path / "state.pt").stat().st_size
    assert len(told["git"]["commit"]) == 40 and told["git"]["dirty"] is False
    assert told["deterministic"] is False and told["filesystem"]["rename"] is True and told["inexact"] == []
    text = (path / "manifest.json").read_text()
    assert "--lr" in text and not any(secret in text for secret in ("aaa111", "bbb222", "ccc333"))


def make(folder: Path, **parts: Any) -> Checkpointer:
    """A checkpointer that saves each step."""
    return Checkpointer(folder, model=nn.Linear(2, 2), every_steps=1, rehearse=False, **parts)


def saved(folder: Path, change: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
    """Save a step as if elsewhere: the manifest is changed, and its sum with it."""
    sampler = ResumableSampler(10, batch_size=4)
    with make(folder, sampler=sampler) as ckpt:
        ckpt.step(ckpt.resume())
    path = folder / "step_00000000/manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["crc32"]
    change(manifest)
    path.write_text(store.dumps(manifest))


ELSEWHERE: Final[dict[str, tuple[Any, str]]] = {
    "torch": ("1.0", "torch was 1.0, is "),
    "cuda": ("9.9", "cuda was 9.9, is "),
    "gpu": (["NVIDIA Voodoo 2"], "gpu was ['NVIDIA Voodoo 2'], is []"),
    "world_size": (8, "world_size was 8, is 1"),
    "deterministic": (True, "deterministic was True, is False"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_elsewhere(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """It loads; the log, and the manifests from then on, say what may make other bits."""
    value, said = ELSEWHERE[name]
    saved(folder, lambda manifest: manifest.update({name: value}))
    with make(folder, sampler=ResumableSampler(10, batch_size=4)) as ckpt:
        assert ckpt.resume() == 1
        assert said in capsys.readouterr().err
        ckpt.step(1)
    told = store.verify(folder / "step_00000001")
    assert told["exact"] is False and any(reason.startswith(said) for reason in told["inexact"])


def test_the_same_place_says_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No note where nothing differs."""
    saved(folder)
    make(folder, sampler=ResumableSampler(10, batch_size=4)).resume()
    assert "hermitcrab: resumed from step_00000000\n" in capsys.readouterr().err


def test_a_box_without_numpy(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What was saved with it loads there all the same, and it is said."""
    importlib.import_module("numpy")
    saved(folder)
    load = importlib.import_module

    def missing(name: str) -> Any:
        if name == "numpy":
            raise ImportError(name)
        return load(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert make(folder, sampler=ResumableSampler(10, batch_size=4)).resume() == 1
    assert "numpy's random state has no numpy here" in capsys.readouterr().err


def test_the_rehearsal_says_what_does_not_fit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two stay and one is new: a disk for one more is warned of at the first step, not in the night."""
    model = nn.Linear(512, 512)
    for there, warned in ((1, True), (3, False)):
        monkeypatch.setattr("hermitcrab.checkpoint.saver._free", lambda _, there=there: (64 << 20) + there * 1_100_000)
        ckpt = Checkpointer(folder, model=model, every_steps=10**6)
        ckpt.resume()
        ckpt.step(0)
        ckpt.wait()
        said = capsys.readouterr().err
        assert f"the disk holds {there} more, 3 are needed, 0 are there" in said
        assert ("WARNING: one checkpoint is" in said) is warned
