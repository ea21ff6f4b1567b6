"""Claims: a program that does not choose goes on from the newest whole checkpoint, and is told in its way."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hermitcrab.checkpoint import commit
from hermitcrab.errors import UserError
from hermitcrab.train import resume
from hermitcrab.train.places import Run
from hermitcrab.train.resume import Mark
from tests.train.training import Folder


def torch_file(path: Path, whole: bool = True) -> Path:
    """A file as torch writes it, or the first half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", os.urandom(5000))
    if not whole:
        path.write_bytes(path.read_bytes()[:2500])
    return path


def own(folder: Path, step: int) -> Path:
    """A checkpoint of the library's."""
    return commit.commit(folder, step, {"run": "r"}, {"state.pt": lambda file: file.write(b"x" * 1000)})


def hf(folder: Path, step: int, whole: bool = True) -> Path:
    """A checkpoint of the Hugging Face Trainer's; what is written last is missing in a cut one."""
    path = folder / f"checkpoint-{step}"
    torch_file(path / "optimizer.pt")
    if whole:
        (path / "trainer_state.json").write_text("{}")
    return path


def test_the_newest_whole_one_is_chosen(tmp_path: Path) -> None:
    """By its number, not by its time; a cut one is no checkpoint."""
    good = torch_file(tmp_path / "step_900.pt")
    torch_file(tmp_path / "step_80.pt")
    torch_file(tmp_path / "step_1000.pt", whole=False)
    found = resume.verified([tmp_path])
    assert found and (found.path, found.step) == (good, 900)
    looks = resume.newest([tmp_path])
    assert looks and looks.path.name == "step_1000.pt"


def test_one_that_kills_is_passed_over(tmp_path: Path) -> None:
    """The one before it is next; with nothing left it begins at the start."""
    old, new = torch_file(tmp_path / "a_1.pt"), torch_file(tmp_path / "a_2.pt")
    found = resume.verified([tmp_path], passed_over=[str(new)])
    assert found and found.path == old
    assert resume.verified([tmp_path], passed_over=[str(new), str(old)]) is None


def test_presets_find_what_their_programs_write(tmp_path: Path) -> None:
    """Where the option of the command says, however it is written."""
    run = Run(tmp_path / "run")
    hf(tmp_path / "out", 100)
    hf(tmp_path / "out", 200, whole=False)
    torch_file(tmp_path / "out" / "model.bin")
    torch_file(tmp_path / "logs" / "version_0" / "checkpoints" / "epoch=1-step=50.ckpt")
    torch_file(tmp_path / "yolo" / "train" / "weights" / "best.pt")
    torch_file(tmp_path / "yolo" / "train" / "weights" / "last.pt")
    torch_file(tmp_path / "gpt" / "ckpt.pt")
    rows = [
        ("hf", ["--output_dir", str(tmp_path / "out")], "--resume_from_checkpoint", "checkpoint-100"),
        ("hf", [f"--output_dir={tmp_path / 'out'}"], "--resume_from_checkpoint", "checkpoint-100"),
        ("lightning", [f"--trainer.default_root_dir={tmp_path / 'logs'}"], "--ckpt_path", "epoch=1-step=50.ckpt"),
        ("ultralytics", [f"project={tmp_path / 'yolo'}"], "resume=True", "last.pt"),
        ("nanogpt", [f"--out_dir={tmp_path / 'gpt'}"], "--init_from=resume", ""),
    ]
    for preset, words, first, last in rows:
        argv = ["python", "train.py", *words]
        places = resume.folders("", preset, argv, run)
        found = resume.verified(places, preset)
        assert found, preset
        command = resume.command(argv, resume.template("", preset), found)
        assert command[: len(argv)] == argv and command[len(argv)] == first
        assert command[-1].endswith(last)


def test_without_a_checkpoint_the_command_is_the_users() -> None:
    """Not one word more."""
    assert resume.command(["a", "b"], ["--resume", "{ckpt}"], None) == ["a", "b"]


def test_a_template_is_words_not_a_shell(tmp_path: Path) -> None:
    """A path with spaces stays one word, and what looks like syntax is text."""
    mark = Mark(tmp_path / "a b; rm -rf {step}", 7, 0)
    words = resume.template("--from '{ckpt}' --at={step} '$HOME'", "")
    assert resume.command(["x"], words, mark) == [
        "x",
        "--from",
        str(mark.path).replace("{step}", "7"),
        "--at=7",
        "$HOME",
    ]
    with pytest.raises(UserError, match="give one of them"):
        resume.template("--x", "hf")
    with pytest.raises(UserError, match="No closing quotation"):
        resume.template("--x '", "")


def test_a_new_checkpoint_is_seen(tmp_path: Path) -> None:
    """A whole one; the half of one is no progress."""
    before = resume.newest([tmp_path])
    assert before is None and not resume.got_on(before, None)
    own(tmp_path, 10)
    after = resume.newest([tmp_path])
    assert resume.got_on(before, after) and after and resume.is_own(after)
    torch_file(tmp_path / "x_11.pt", whole=False)
    assert not resume.got_on(after, resume.newest([tmp_path]))


def test_folders_that_are_not_there_hold_nothing(tmp_path: Path) -> None:
    """Nor do files in their place."""
    (tmp_path / "file").touch()
    assert resume.newest([tmp_path / "none", tmp_path / "file"], "hf") is None


@pytest.mark.parametrize("value", [None, "hf"])
def test_the_users_folder_is_the_only_one(value: Any, tmp_path: Path) -> None:
    """Where it is said."""
    assert resume.folders(str(tmp_path / "x"), value or "", [], Run(tmp_path / "run")) == [tmp_path / "x"]


def test_a_foreign_program_goes_on_from_what_it_saved(folder: Folder) -> None:
    """Killed after a save and in the middle of the next one: told of the whole one, in words and in RESUME."""
    folder.script(
        "import os, shutil, sys\n"
        "print('given', sys.argv[1:], os.environ['RESUME'], flush=True)\n"
        "if len(sys.argv) == 1:\n"
        "    os.makedirs(os.environ['CKPT_DIR'])\n"
        "    shutil.copy('whole.pt', os.environ['CKPT_DIR'] + '/step_1.pt')\n"
        "    open(os.environ['CKPT_DIR'] + '/step_2.pt', 'wb').write(open('whole.pt', 'rb').read()[:99])\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    torch_file(folder.path / "whole.pt")
    output = folder.train(sys.executable, "train.py", options=("--resume-args", "--go {ckpt}"))
    path = str(folder.run.checkpoints / "step_1.pt")
    assert "given [] auto" in output and f"given ['--go', '{path}'] {path}" in output
    assert "step_2.pt is passed over" in output


def test_resume_is_what_the_user_says(folder: Folder) -> None:
    """A path that is not there is refused before anything starts."""
    code = "import os; print('given', os.environ['RESUME'])"
    checkpoint = torch_file(folder.path / "a.pt")
    assert f"given {checkpoint}" in folder.train(sys.executable, "-c", code, options=("--resume", "a.pt"))
    assert "there is no such checkpoint" in folder.train("true", options=("--again", "--resume", "b.pt"), status=2)
