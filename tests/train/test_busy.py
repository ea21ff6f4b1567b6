"""Claims: whoever is at work on the box stops a countdown; whoever is not does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from hermitcrab.train import places, process
from hermitcrab.train.gate import countdown
from hermitcrab.train.gate.busy import Busy, kind_of
from hermitcrab.train.journal import Journal
from hermitcrab.train.places import Run
from tests.rented import put

WORK = (
    "rsync -a /data host:/data",
    "rsync --server --sender -logDtpre.iLsfxC . /data",
    "rclone copy /data drive:x",
    "/usr/bin/scp a host:",
    "aws s3 cp a s3://b/c",
    "apt-get install -y tmux",
    "dpkg --configure -a",
    "pip install torch",
    "/opt/venv/bin/python /opt/venv/bin/pip install torch",
    "python3 -m pip install torch",
    "uv pip install torch",
    "conda env create -f x.yml",
    "docker commit box image",
    "vastai take snapshot 1",
    "huggingface-cli upload me/model .",
)
NO_WORK = (
    "",
    "rsync --daemon --no-detach",
    "rclone mount drive: /mnt/x",
    "python train.py --optimizer rsync",
    "python -m hermitcrab.examples.digits",
    "pip list",
    "uv run train.py",
    "docker run image",
    "dockerd",
    "bash -c pip install torch",
    "aws configure",
    "sshd: root@pts/0",
)


@pytest.mark.parametrize("line", WORK)
def test_copies_and_installs_are_seen(line: str) -> None:
    """By the name of the program, past an interpreter in front of it."""
    assert kind_of(line.split(" "))


@pytest.mark.parametrize("line", NO_WORK)
def test_what_only_has_such_a_word_is_not_taken_for_one(line: str) -> None:
    """It would keep the box up, and billed, for ever."""
    assert kind_of(line.split(" ")) is None


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run."""
    (tmp_path / "runs/exp").mkdir(parents=True)
    return Run(tmp_path / "runs/exp")


def look(run: Run, tmp_path: Path, *, ssh: bool = False) -> Busy:
    """Look at a machine with no process but those that the test plants."""
    environ = {"XDG_STATE_HOME": str(tmp_path / "state"), "TMUX_TMPDIR": str(tmp_path / "tmux")}
    return Busy(run, ssh=ssh, environ=environ, proc=tmp_path / "proc")


def plant(tmp_path: Path, pid: int, line: str) -> None:
    """Let a process be there."""
    put(tmp_path / "proc", f"{pid}/cmdline", line.replace(" ", "\0") + "\0")


def test_an_idle_box_is_not_busy(run: Run, tmp_path: Path) -> None:
    """With a training's usual processes on it."""
    plant(tmp_path, 1, "sshd: /usr/sbin/sshd")
    plant(tmp_path, 7, "sshd: root@pts/0")
    plant(tmp_path, 9, "python train.py")
    assert look(run, tmp_path)() == []


def test_each_reason_is_said(run: Run, tmp_path: Path) -> None:
    """A hold, an attached client, a copy, an SSH session if that was asked for."""
    plant(tmp_path, 7, "sshd-session: root@pts/0")
    plant(tmp_path, 8, "rsync -a x y")
    put(run.attached, "7", "")
    put(run.attached, "77", "")  # it is gone
    os.utime(put(run.attached, "8", ""), (0, 0))  # of a view that was killed; its number is a copy's now
    run.hold.touch()
    busy = look(run, tmp_path)
    assert busy() == [
        "held: `crab hold exp --off` lets it go",
        "somebody is attached (process 7)",
        "a copy runs (rsync, process 8)",
    ]
    assert "an SSH session" in look(run, tmp_path, ssh=True)()


def test_an_sftp_window_counts_while_it_moves_something(run: Run, tmp_path: Path) -> None:
    """The editor's that is open for days does not."""
    plant(tmp_path, 5, "/usr/lib/openssh/sftp-server")
    put(tmp_path / "proc", "5/io", "rchar: 10\n")
    busy = look(run, tmp_path)
    assert busy() == ["a copy runs (sftp-server, process 5)"]
    assert busy() == []
    put(tmp_path / "proc", "5/io", "rchar: 4000\n")
    assert busy() == ["a copy runs (sftp-server, process 5)"]


def test_another_run_keeps_the_box_up(run: Run, tmp_path: Path) -> None:
    """While it lives: the record of a dead one does not."""
    other, environ = Run(tmp_path / "runs/other"), {"XDG_STATE_HOME": str(tmp_path / "state")}
    other.folder.mkdir()
    me = process.read(os.getpid())
    assert me
    Journal(other).update(state="running", pid=os.getpid(), started=me.started)
    places.register(other, environ)
    places.register(run, environ)
    assert look(run, tmp_path)() == ["another run goes on (other)"]
    Journal(other).update(pid=os.getpid(), started=me.started + 1)
    assert look(run, tmp_path)() == []


@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
def test_a_tmux_client_is_seen_and_a_session_alone_is_not(run: Run, tmp_path: Path) -> None:
    """A session is what a run leaves behind; a client is a person."""
    folder = tmp_path / "tmux"
    folder.mkdir()
    environ = {**os.environ, "TMUX_TMPDIR": str(folder), "TERM": "xterm"}
    environ.pop("TMUX", None)
    subprocess.run(["tmux", "-f", "/dev/null", "new-session", "-d", "sleep 60"], env=environ, check=True)
    try:
        assert look(run, tmp_path)() == []
        # A client needs a terminal: script gives it one.
        if shutil.which("script"):
            client = subprocess.Popen(
                ["script", "-qc", "tmux attach", "/dev/null"],
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
            )
            try:
                seen = wait_for(look(run, tmp_path), ["a tmux client is attached"])
            finally:
                client.kill()
                client.communicate()
            assert seen
    finally:
        subprocess.run(["tmux", "kill-server"], env=environ, check=False)


def wait_for(busy: Busy, reasons: list[str]) -> bool:
    """Look again and again, for five seconds."""
    for _ in range(50):
        if busy() == reasons:
            return True
        time.sleep(0.1)
    return False


def test_a_countdown_counts_only_while_nobody_holds() -> None:
    """And all of it anew afterwards."""
    now = [0.0]
    told: list[str] = []

    def sleep(seconds: float) -> None:
        now[0] += seconds

    assert countdown.run(
        10, lambda: ["copy"] if 4 <= now[0] < 30 else [], told.append, clock=lambda: now[0], sleep=sleep
    )
    assert now[0] == 40.0
    assert told == ["waits: copy", "nothing holds it any more: 10 s from now"]


@pytest.mark.parametrize(("text", "seconds"), [("5m", 300), ("90", 90), ("1.5h", 5400), ("2d", 172800), ("10s", 10)])
def test_times_are_read(text: str, seconds: float) -> None:
    """And told in the unit that fits."""
    assert countdown.parse(text) == seconds
    assert countdown.say(seconds) in {"5 m", "90 s", "1.5 h", "2 d", "10 s"} | {"90 m"}
