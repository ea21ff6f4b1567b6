"""Claims: a run is seen, read and ended from anywhere, and what is shown is true."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hermitcrab import cli
from hermitcrab.errors import UserError
from hermitcrab.train import owner, show, startat
from hermitcrab.train.places import Run
from hermitcrab.train.view import Follow
from tests.train.test_supervisor import PYTHON, SAVING, WAITING, running
from tests.train.training import CRAB, Folder, alive, finished


def test_status_is_one_screen(folder: Folder) -> None:
    """What it does, how far it is, what is safe, and what happened; from another folder as well."""
    folder.script(SAVING)
    process = folder.start(PYTHON, "train.py", "100")
    running(folder)
    folder.wait(lambda: folder.state().get("committed") is not None or folder.run.status.exists())
    screen = folder.crab("status")
    assert len(screen.splitlines()) < 24
    assert f"run: running, attempt 1, process {process.pid}" in screen
    assert "train.py 100" in screen and " of 100 (" in screen and "saved     step" in screen
    state = json.loads(folder.crab("status", "run", "--json"))
    assert state["alive"] and state["pid"] == process.pid and state["step"] >= 0 and state["orphans"] == []
    folder.crab("stop")
    assert "run: stopped, attempt 1" in folder.crab("status", str(folder.run.folder))


def test_status_says_what_failed_and_what_to_try(folder: Folder) -> None:
    """The same as was printed when it failed."""
    folder.train(PYTHON, "-c", "raise RuntimeError('CUDA out of memory')", status=1)
    screen = folder.crab("status")
    assert "run: failed (gpu-oom), attempt 1" in screen and "try       half the batch size" in screen


def test_a_killed_supervisor_is_no_running_run(folder: Folder) -> None:
    """Its last words are not believed."""
    process = folder.start(PYTHON, "-c", "print('rea' + 'dy', flush=True); import os; os.close(1); os.close(2)")
    process.wait(30)
    state = {**folder.state(), "state": "running", "verdict": "", "pid": process.pid}
    folder.run.state.write_text(json.dumps(state))
    folder.run.done.unlink()
    assert "its supervisor was killed; the same command goes on" in folder.crab("status")
    assert "not running" in folder.crab("stop")


def test_logs_are_printed_and_followed(folder: Folder) -> None:
    """To the end of the run; `| head` is no error."""
    folder.script("import time\nfor n in range(60): print('line', n, flush=True); time.sleep(0.03)")
    process = folder.start(PYTHON, "train.py")
    folder.wait(lambda: "line 3" in folder.log())
    followed = folder.crab("logs", "-f", "-n", "2")
    assert "line 59" in followed
    process.wait(10)
    assert folder.crab("logs", "-n", "1").count("\n") == 1
    assert len(folder.crab("logs").splitlines()) >= 60
    line = f"{' '.join(CRAB)} logs | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], env=folder.environ, capture_output=True, check=False)
    assert done.returncode == 0 and done.stderr == b""


def test_attach_ends_with_the_run(folder: Folder) -> None:
    """With its status; while it looks, it is known to."""
    folder.script("import sys, time; print('here', flush=True); time.sleep(4); sys.exit(75)")
    folder.start(PYTHON, "train.py")
    folder.wait(lambda: folder.state().get("child"))
    view = subprocess.Popen([*CRAB, "attach", "run"], env=folder.environ, stdout=subprocess.PIPE)
    folder.started.append(view)
    folder.wait((folder.run.attached / str(view.pid)).exists, "the mark")
    status, output = finished(view)
    assert status == 75 and "here" in output and "preempted" in output
    assert list(folder.run.attached.iterdir()) == []


def test_leaving_a_view_leaves_the_run(folder: Folder) -> None:
    """Ctrl-C in it, or the end of its terminal."""
    process = folder.start(PYTHON, "-c", WAITING)
    running(folder)
    for number in (signal.SIGINT, signal.SIGHUP):
        view = subprocess.Popen([*CRAB, "attach"], env=folder.environ, stdout=subprocess.PIPE)
        folder.started.append(view)
        folder.wait((folder.run.attached / str(view.pid)).exists)
        view.send_signal(number)
        status, _ = finished(view, 10)
        assert status == (0 if number == signal.SIGINT else -number)
    assert process.poll() is None


def test_stop_lets_it_save_and_now_does_not(folder: Folder) -> None:
    """And says what is safe."""
    folder.script(SAVING)
    folder.start(PYTHON, "train.py", "1000")
    running(folder)
    folder.wait(folder.run.status.exists)
    assert "is saved" in folder.crab("stop", "run")
    assert "saved" in folder.log() and alive(folder.run.folder) == []
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITING
    folder.start(PYTHON, "-c", code)
    folder.wait(lambda: folder.log().rstrip().endswith("ready"))
    begun = time.monotonic()
    folder.crab("stop", "--now")
    assert time.monotonic() - begun < 60 and alive(folder.run.folder) == []


def test_commands_know_their_run(folder: Folder) -> None:
    """Without one, they say how to begin."""
    for name in ("status", "logs", "stop", "attach"):
        assert "start one with" in folder.crab(name, status=2)


def test_a_log_is_followed_over_its_turns(tmp_path: Path) -> None:
    """No line is lost when it is turned over, and half a line is waited for."""
    log = tmp_path / "log.txt"
    follow = Follow(log, 1)
    assert list(follow.lines()) == []
    log.write_bytes(b"a\nb\n")
    assert list(follow.lines()) == [b"b\n"]
    with open(log, "ab") as file:
        file.write(b"c\nhal")
    assert list(follow.lines()) == [b"c\n"]
    with open(log, "ab") as file:
        file.write(b"f\nd\n")
    os.replace(log, tmp_path / "log.txt.1")
    log.write_bytes(b"e\n")
    assert list(follow.lines()) == [b"half\n", b"d\n", b"e\n"]
    follow.close()


@pytest.mark.parametrize(
    ("text", "now", "then"),
    [
        ("23:00", "2026-11-30 22:00", "2026-11-30 23:00"),
        ("23:00", "2026-11-30 23:00", "2026-12-01 23:00"),
        ("0:05", "2026-12-31 12:00", "2027-01-01 00:05"),
        ("2026-12-02T07:30", "2026-11-30 22:00", "2026-12-02 07:30"),
        ("2026-11-01 07:30", "2026-11-30 22:00", "2026-11-30 22:00"),
    ],
)
def test_the_hour_of_start_is_the_next_one(text: str, now: str, then: str) -> None:
    """One of a day that is past is now: a restarted container must not wait for a year."""
    start, end = (time.mktime(time.strptime(moment, "%Y-%m-%d %H:%M")) for moment in (now, then))
    assert startat.next_time(startat.parse(text), start) == end


@pytest.mark.parametrize("text", ["", "25:00", "7", "7:5", "2026-13-01T07:00", "2026-02-30T07:00", "tomorrow"])
def test_what_is_no_hour_is_refused(text: str, folder: Folder) -> None:
    """Before anything is started."""
    assert "is no time" in folder.train("true", options=("--start-at", text), status=2)


def test_a_disk_without_locks_is_locked_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Network disks of platforms have none; here a folder is in the lock's place."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    run = Run(tmp_path / "run")
    run.lock.mkdir(parents=True)
    descriptor = owner.lock(run)
    assert owner.is_locked(run)
    with pytest.raises(UserError, match="is running"):
        owner.lock(run)
    os.close(descriptor)
    assert not owner.is_locked(run)


def test_the_faces_are_in_the_table() -> None:
    """And say in their help what they are."""
    for name in ("train", "attach", "status", "logs", "stop"):
        with pytest.raises(SystemExit, match="0"):
            cli.main([name, "--help"])


def test_a_span_is_read_by_people() -> None:
    """In the unit that fits."""
    assert [show.span(seconds) for seconds in (3, 130, 9000)] == ["3 s", "2 min", "2.5 h"]


def test_python_3_8_may_not_be_here_but_the_supervisor_starts_fast() -> None:
    """No module of torch, and none of the build, is loaded by it."""
    code = "import sys, hermitcrab.train.command; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"torch", "numpy", "hermitcrab.build", "invoke"}
