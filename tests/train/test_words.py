"""Claims: a command's words go through byte for byte (C40); what a shell would have to read is said in one line."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from hermitcrab.errors import UserError
from hermitcrab.train import words
from hermitcrab.train.options import split
from tests.train.training import Folder

CASES = Path(__file__).parents[1] / "cases"
LINES = (CASES / "C40.txt").read_text().splitlines()
EXPECTED = [json.loads(line) for line in (CASES / "C40.expected.jsonl").read_text().splitlines()]
HOSTILE = [
    "",
    " ",
    "a b",
    "'",
    '"',
    "$HOME",
    "`id`",
    "a\nb",
    "--",
    "-x",
    "&&",
    ";",
    "*",
    "~",
    "\\",
    "ü\u2028",
    "{ckpt}",
]


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs that the lines name are there."""
    for name in ("python", "torchrun", "bash"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize("row", EXPECTED, ids=lambda row: str(row["n"]))
def test_a_line_of_c40_as_words_is_what_the_program_gets(row: dict[str, object]) -> None:
    """Where no shell is needed, nothing is changed and nothing refused."""
    argv = shlex.split(LINES[int(str(row["n"])) - 1])
    if not row["needs_shell"]:
        assert split(["--name", "x", "--", *argv]) == (["--name", "x"], row["argv"])
        words.check(argv)


@pytest.mark.parametrize("row", EXPECTED, ids=lambda row: str(row["n"]))
def test_a_line_of_c40_in_one_piece_is_answered_with_the_line_to_write(row: dict[str, object]) -> None:
    """One line, which can be pasted: a shell gets it exactly once, or no shell is needed."""
    line = LINES[int(str(row["n"])) - 1]
    with pytest.raises(UserError) as refused:
        words.check([line])
    said = str(refused.value)
    assert "\n" not in said
    typed = shlex.split(said.partition("write: ")[2])
    assert typed[:3] == ["crab", "train", "--"]
    given = typed[3:]
    if "argv_if_env_supported" in row:
        environ = dict(row["env"])  # type: ignore[call-overload]
        assert given == ["env", *(f"{name}={value}" for name, value in environ.items()), *row["argv_if_env_supported"]]  # type: ignore[misc]
    elif "argv" in row:
        assert given == row["argv"]
    else:
        assert given == ["bash", "-o", "pipefail", "-c", line]


def test_variables_before_a_command_are_refused_with_the_way() -> None:
    """The words of the second line of C40, as a shell passes them on."""
    with pytest.raises(
        UserError, match=r"write: crab train -- env CUDA_VISIBLE_DEVICES=0,1 HF_ENDPOINT=\S+ torchrun --n"
    ):
        words.check(shlex.split(LINES[1]))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "no command: crab train"),
        (["cd", "/root/work"], "word of the shell"),
        (["nonsense", "a", "&&", "b"], "bash -o pipefail -c"),
        (["nonsense"], "no program 'nonsense'"),
    ],
)
def test_what_is_no_program_is_refused(argv: list[str], said: str) -> None:
    """Before anything is made or paid for."""
    with pytest.raises(UserError, match=said) as refused:
        words.check(argv)
    assert refused.value.code == 2


def test_a_script_that_may_not_be_run_is_named_with_its_interpreter(tmp_path: Path) -> None:
    """The commonest slip: `crab train -- ./train.py`."""
    (tmp_path / "train.py").write_text("")
    with pytest.raises(UserError, match="write: crab train -- python "):
        words.check([str(tmp_path / "train.py")])


@pytest.mark.parametrize(
    ("argv", "hidden"),
    [
        (["bash", "-c", "python train.py | tee log"], True),
        (["bash", "-c", "python train.py 2>&1|tee -a log"], True),
        (["env", "A=1", "/bin/sh", "-ec", "python train.py | tee log"], True),
        (["bash", "-o", "pipefail", "-c", "python train.py | tee log"], False),
        (["bash", "-c", "set -o pipefail; python train.py | tee log"], False),
        (["bash", "-c", "python train.py || echo failed"], False),
        (["bash", "-c", "python train.py --sep 'a | b'"], False),
        (["python", "-c", "a | b"], False),
        (["bash", "train.sh"], False),
    ],
)
def test_a_pipe_that_hides_the_status_is_seen(argv: list[str], hidden: bool) -> None:
    """C39: the status of the training decides, so a pipe without pipefail is warned of."""
    assert words.pipe_hides_status(argv) == hidden
    assert any("pipefail" in warning for warning in words.warnings(argv)) == hidden


def test_the_loop_of_c39_is_warned_of_both() -> None:
    """Its pipes hide the status, and its power-off follows a failure as well."""
    said = list(words.warnings(["bash", "-c", (CASES / "C39.txt").read_text()]))
    assert len(said) == 2 and "pipefail" in said[0] and "'shutdown'" in said[1]


@pytest.mark.parametrize(
    ("line", "warned"),
    [
        (LINES[4], True),
        ("python train.py && sudo shutdown -h now", True),
        ("python train.py; runpodctl stop pod $RUNPOD_POD_ID", True),
        ("if python train.py; then poweroff; fi", True),
        ("python train.py --on-end shutdown", False),
        ("python shutdown.py", False),
        ("echo halt", False),
    ],
)
def test_a_power_off_in_the_command_is_warned_of(line: str, warned: bool) -> None:
    """It would go off after a failure too, past the gate."""
    assert bool(list(words.warnings(["bash", "-c", line]))) == warned


def test_every_byte_of_every_word_arrives(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell, no eval, no second reading; also what is no text at all."""
    monkeypatch.undo()
    folder.environ["PATH"] = "/usr/bin:/bin"
    hostile = [*map(str.encode, HOSTILE), b"\xff\xfe"]
    code = "import os, sys; open('got', 'wb').write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
    folder.train(sys.executable, "-c", code, *(word.decode("utf-8", "surrogateescape") for word in hostile))
    assert (folder.path / "got").read_bytes().split(b"\0") == hostile


def test_the_lines_of_c40_without_a_shell_run_as_they_are(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines 1 and 3, with a program of the user's in place of train.py."""
    monkeypatch.undo()
    folder.script("import json, sys; print('got', json.dumps(['python', *sys.argv]))")
    for row in EXPECTED:
        if not row["needs_shell"]:
            output = folder.train(sys.executable, *row["argv"][1:], options=("--again",))
            assert f"got {json.dumps(row['argv'])}" in output


# What arrives of the lines that need a shell; the fifth is not run: it ends the machine.
ARRIVES = {
    2: "CUDA_VISIBLE_DEVICES=0,1|HF_ENDPOINT=https://hf-mirror.com|torchrun|--nproc_per_node|2|train.py|--cfg|configs/a.yaml|",
    4: "python|train.py|--filter|loss < 0.1 && step > 100|",
    6: "python|-c|import torch; print(torch.cuda.device_count())|",
}


@pytest.mark.parametrize("number", ARRIVES)
def test_what_is_answered_to_a_line_of_c40_does_what_the_line_means(
    number: int, folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pasted as it was answered: its shell reads it exactly once, and its status is the program's, not tee's."""
    line = LINES[number - 1].replace("/root/autodl-tmp", str(tmp_path))
    with pytest.raises(UserError) as refused:
        words.check([line])
    monkeypatch.undo()
    (tmp_path / "bash").unlink()  # the real one
    told = '{ env | grep -E "^(CUDA_V|HF_)" | sort; printf "%s|" "${0##*/}" "$@"; } | tr "\\n" "|"'
    stub = f"#!/bin/sh\n{told} > got; exit 3\n"
    for name in ("python", "torchrun"):
        (tmp_path / name).write_text(stub)
    folder.environ["PATH"] = f"{tmp_path}:/usr/bin:/bin"
    typed = shlex.split(str(refused.value).partition("write: crab train -- ")[2])
    folder.train(*typed, options=("--max-restarts", "0"), status=3)
    assert (tmp_path / "got").read_text() == ARRIVES[number]


def test_secrets_in_the_command_are_shown_nowhere(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the log nor in the journal; the program gets them."""
    monkeypatch.undo()
    folder.script("import sys; assert sys.argv[2] == 'hf_abcdefghijklmnop'")
    output = folder.train(sys.executable, "train.py", "--hub-token", "hf_abcdefghijklmnop")
    kept = output + folder.log() + folder.run.state.read_text() + folder.run.events.read_text()
    assert "abcdefghijkl" not in kept and "--hub-token '***'" in output
