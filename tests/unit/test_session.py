"""PID 1's environment reaches a shell byte for byte, without its secrets, and for one start only."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from hermitcrab.box import blocks, session, shipped

SHELLS = [shell for shell in ("sh", "bash", "zsh") if shutil.which(shell)]
HERE = session.this_start(Path("/"))
VALUES = {
    "plain": "abc",
    "empty": "",
    "quotes": """it's "quoted" \\ back""",
    "command": "$(touch RAN) `touch RAN` ${HOME}",
    "lines": "first\nsecond\n\n",
    "looks like ours": "x'\n    export RUNPOD_EVIL='1",
    "carriage return": "a\r\nb\r",
    "not UTF-8": os.fsdecode(b"\xff\xfe caf\xe9"),
    "words": "a  b\t*; exit 3 & # !!",
    "leading dash": "-n",
}


def run(shell: str, script: str, place: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a script in a shell that is given nothing but what the test names."""
    return subprocess.run(
        [shell, "-euc", script],
        env={"PATH": os.environ["PATH"], "HOME": str(place), **environment},
        cwd=place, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_values_arrive_byte_for_byte(shell: str, value: str, tmp_path: Path) -> None:
    """Nothing in them is run, cut or unquoted."""
    (tmp_path / "session.sh").write_bytes(session.render({"RUNPOD_X": value, "GPU_COUNT": "2"}, [], HERE))
    done = run(shell, ". ./session.sh; env -0", tmp_path)

    assert done.stderr == b""
    assert os.fsencode(f"RUNPOD_X={value}") in done.stdout.split(b"\0")
    assert b"GPU_COUNT=2" in done.stdout.split(b"\0")
    assert not (tmp_path / "RAN").exists()
    assert b"crab_boot" not in done.stdout and b"RUNPOD_EVIL=" not in done.stdout.split(b"\0")


def test_what_the_session_has_already_stays(tmp_path: Path) -> None:
    """Even when it is empty: CUDA_VISIBLE_DEVICES='' means no card."""
    (tmp_path / "session.sh").write_bytes(session.render({"CUDA_VISIBLE_DEVICES": "all", "TZ": "UTC"}, [], HERE))
    done = run("sh", '. ./session.sh; echo "$CUDA_VISIBLE_DEVICES $TZ"', tmp_path, CUDA_VISIBLE_DEVICES="")

    assert done.stdout == b" UTC\n"


@pytest.mark.parametrize("start", ["another-boot host", ""])
def test_a_file_of_another_start_is_not_believed(start: str, tmp_path: Path) -> None:
    """A saved image must not tell the new box that it is the old one; only a terminal hears of it."""
    (tmp_path / "session.sh").write_bytes(session.render({"RUNPOD_POD_ID": "old"}, [], start))
    script = '. ./session.sh; echo "${RUNPOD_POD_ID-none}"'

    done = run("sh", script, tmp_path)
    assert (done.stdout, done.stderr) == (b"none\n", b"")
    told = subprocess.run(
        ["bash", "--norc", "-ic", script], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
    assert b"`crab setup` brings its variables back" in told.stderr


def test_a_start_is_told_by_boot_and_name(tmp_path: Path) -> None:
    """From the fake root, and without a fault where the kernel does not tell."""
    assert session.this_start(tmp_path) == " "
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("b-1\n")
    (tmp_path / "proc/sys/kernel/hostname").write_text("box\n")
    assert session.this_start(tmp_path) == "b-1 box"


# --- which variables ------------------------------------------------------------------------------

PLATFORM = {
    "RUNPOD_POD_ID": "1", "VAST_CONTAINERLABEL": "C.1", "AutoDLContainerUUID": "u", "NVIDIA_VISIBLE_DEVICES": "all",
    "CUDA_VISIBLE_DEVICES": "0", "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64", "https_proxy": "http://proxy:3128",
    "PIP_INDEX_URL": "https://mirror.example/simple", "PUBLIC_IPADDR": "203.0.113.5",
}  # fmt: skip
SECRETS = {
    "RUNPOD_API_KEY": "x", "AutoDLAutoPanelToken": "x", "HF_TOKEN": "x", "UV_PUBLISH_PASSWORD": "x",
    "PIP_EXTRA_INDEX_URL": "https://me:secret@mirror.example/simple", "HTTP_PROXY": "http://me:secret@proxy:3128",
}  # fmt: skip
OTHERS = {
    "PATH": "/bin", "HOME": "/", "LD_PRELOAD": "/x.so", "BASH_ENV": "/x", "JUPYTER_TOKEN": "x", "PUBLIC_KEY": "ssh-rsa",
    "CONTAINER_API_KEY": "x", "BASH_FUNC_x%%": "() { :; }", "NVIDIA_A B": "x", "NVIDIA_$(id)": "x", "RUNPOD_É": "x",
}  # fmt: skip


def test_the_list_lets_the_platform_through_and_no_secret() -> None:
    """By name, and by what an address carries."""
    everything = {**PLATFORM, **SECRETS, **OTHERS}

    assert session.chosen(everything, []) == dict(sorted(PLATFORM.items()))
    assert session.kept_back(everything, []) == sorted(SECRETS)


def test_a_secret_passes_by_its_name_only() -> None:
    """So does what is not on the list; no pattern, and no name that a shell cannot hold."""
    asked = ["HF_TOKEN", "CONTAINER_API_KEY", "RUNPOD_*", "BASH_FUNC_x%%", "NOT_THERE"]

    assert set(session.chosen({**SECRETS, **OTHERS}, asked)) == {"HF_TOKEN", "CONTAINER_API_KEY"}
    assert "HF_TOKEN" not in session.kept_back(SECRETS, asked)


def test_names_are_remembered() -> None:
    """From the command, from the platform's form, and from the file of before; a value cannot add one."""
    variables = {"HF_TOKEN": "x\n# by name: EVIL", "WANDB_API_KEY": "y"}
    old = session.render(variables, ["HF_TOKEN"], HERE)

    assert session.asked({session.ASK: "WANDB_API_KEY, A  B"}, old, ["C"]) == [
        "A",
        "B",
        "C",
        "HF_TOKEN",
        "WANDB_API_KEY",
    ]
    assert session.asked({}, None) == []


def test_pid_1_is_read_or_nothing(tmp_path: Path) -> None:
    """Values may hold anything but NUL; another user sees nothing and no fault."""
    assert session.pid1(tmp_path) == {}
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/environ").write_bytes(b"A=1\0B=x=y\nz\0junk\0\0C=\xff\0")
    assert session.pid1(tmp_path) == {"A": "1", "B": "x=y\nz", "C": os.fsdecode(b"\xff")}


# --- at the start of the box ----------------------------------------------------------------------


def make_root(tmp_path: Path) -> Path:
    """A system with the file that bash reads for `ssh box COMMAND`."""
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "root/etc/bash.bashrc").write_text('[ -z "$PS1" ] && return')
    return tmp_path / "root"


def test_handed_over_for_the_owner_only(tmp_path: Path) -> None:
    """Mode 600 also where an older file was open to all; bash reads it by one block; twice is once."""
    root, target = make_root(tmp_path), tmp_path / session.FILE
    target.parent.mkdir(parents=True)
    target.write_text("old")
    environ = {"RUNPOD_POD_ID": "abc", "HF_TOKEN": "x", session.ASK: "HF_TOKEN"}
    session.hand_over(tmp_path, environ, root)
    once = (root / "etc/bash.bashrc").read_bytes()
    session.hand_over(tmp_path, environ, root)

    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert b"HF_TOKEN=x" in target.read_bytes() and b"RUNPOD_POD_ID=abc" in target.read_bytes()
    assert (root / "etc/bash.bashrc").read_bytes() == once
    assert shipped.place("profile.sh").encode() in blocks.body(once)
    assert blocks.take(once) == b'[ -z "$PS1" ] && return'


def test_nothing_to_hand_over_is_no_file(tmp_path: Path) -> None:
    """A bare machine stays bare."""
    root = make_root(tmp_path)
    session.hand_over(tmp_path, {"PATH": "/bin"}, root)

    assert not (tmp_path / session.FILE).exists()
    assert not blocks.body((root / "etc/bash.bashrc").read_bytes())


def test_the_profile_reads_it_for_commands_and_logins(tmp_path: Path) -> None:
    """From the user's own profile, with -eu set, and with neither file there."""
    profile = tmp_path / "profile.sh"
    profile.write_bytes(shipped.text("profile.sh"))
    script = '. ./profile.sh; echo "${RUNPOD_POD_ID-none}"'
    assert run("sh", script, tmp_path).stdout == b"none\n"

    session.hand_over(tmp_path, {"RUNPOD_POD_ID": "abc"}, tmp_path / "no-root")
    (tmp_path / session.FILE).write_bytes(session.render({"RUNPOD_POD_ID": "abc"}, [], HERE))
    assert run("sh", script, tmp_path).stdout == b"abc\n"
