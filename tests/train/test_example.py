"""Claims: `crab train` alone is a first run of the bundled example; a forgotten command is told from that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from hermitcrab.errors import UserError
from hermitcrab.train import command, example
from tests.train.training import CRAB, Folder

EXAMPLE: Final = [sys.executable, "-m", "hermitcrab.examples.digits"]


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that has torch, as far as one can see from outside."""
    (tmp_path / "site/torch").mkdir(parents=True)
    (tmp_path / "site/torch/__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


def chosen(*words: str) -> list[str]:
    """The command that comes of no command."""
    options = command._options([word for word in words if word != "--"])
    return example.command(options, command._parser().get_default, marked="--" in words)


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("words", [[], ["--again"], ["--smoke", "20"], ["--name", "x", "--runs", "/y", "--foreground"]])
def test_without_a_command_it_is_the_example(words: list[str]) -> None:
    """Also with options that say how, and not what."""
    assert chosen(*words) == EXAMPLE


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--"], "nothing follows the --"),
        (["--name", "x", "--"], "nothing follows the --"),
        (["--poweroff", "success"], "without --poweroff"),
        (["--max-hours", "2"], "without --max-hours"),
        (["--sync", "host:x"], "without --sync"),
        (["--resume-args", "--from {ckpt}"], "without --resume-args"),
        (["--preset", "hf"], "without --preset"),
    ],
)
def test_a_forgotten_command_is_no_wish_for_the_example(words: list[str], said: str) -> None:
    """An empty variable behind the --, or what only a program of one's own can mean: one line says how to write it."""
    with pytest.raises(
        UserError, match=rf"^no command: crab train \[OPTIONS\] -- python train\.py .*{said}"
    ) as refused:
        chosen(*words)
    assert refused.value.code == 2


@pytest.mark.parametrize("name", ["torch", "hermitcrab.examples.digits"])
def test_without_torch_or_the_example_it_is_a_usage_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, with the Python that lacks it."""
    monkeypatch.setattr(example, "_is_there", lambda module: module != name)
    with pytest.raises(UserError, match=f"the bundled example needs {name}, which {sys.executable} has not"):
        chosen()


def test_it_is_said_and_run(folder: Folder) -> None:
    """In one line, before it starts; here a torch that is none ends it, which shows that it was started."""
    (folder.path / "site/torch").mkdir(parents=True)
    (folder.path / "site/torch/__init__.py").write_text("raise ImportError('this is no torch')\n")
    folder.environ["PYTHONPATH"] += f":{folder.path / 'site'}"
    done = subprocess.run(
        [*CRAB, "train"], cwd=folder.path, env=folder.environ, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith(f"crab: {example.TOLD}\n")
    assert "this is no torch" in done.stdout
    log = (folder.path / "runs/digits-example/log.txt").read_text()
    assert " -m hermitcrab.examples.digits" in log
