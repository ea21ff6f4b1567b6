"""Claims: at a terminal the run leaves it; whatever happens to the terminal or to tmux is no business of the run."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hermitcrab.train import process
from tests.train.training import CRAB, Folder, alive

PYTHON: Final = sys.executable
STEPS: Final = "import time\nfor n in range(40): print('step', n, flush=True); time.sleep(0.1)\n"


class Terminal:
    """A terminal with a shell's child in it, as sshd gives one."""

    def __init__(self, folder: Folder, argv: list[str]) -> None:
        self.master, slave = pty.openpty()
        self.shown = b""
        # A session of its own with this terminal, so that its end is a SIGHUP to all that is in front.
        code = (
            "import os, sys, fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
        )
        self.process = subprocess.Popen(
            [PYTHON, "-c", code, *argv],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder.path,
            env={**folder.environ, "TERM": "xterm"},
            start_new_session=True,
        )
        folder.started.append(self.process)
        os.close(slave)

    def read(self, seconds: float = 0.1) -> str:
        """What has been shown so far."""
        while self.master >= 0 and select.select([self.master], [], [], seconds)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                break
            if not data:
                break
            self.shown += data
        return self.shown.decode("utf-8", "replace")

    def close(self) -> None:
        """Close the window."""
        if self.master >= 0:
            os.close(self.master)
        self.master = -1

    def wait(self, seconds: float = 30) -> int:
        """Wait for its end while somebody looks."""
        limit = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < limit, self.read()
            self.read()
        return self.process.returncode


@pytest.fixture
def quiet(folder: Folder) -> Folder:
    """A folder whose program counts; without tmux."""
    folder.script(STEPS)
    return folder


def train(*options: str) -> list[str]:
    """The command as it is typed."""
    return [*CRAB, "train", "--name", "run", *options, "--", PYTHON, "train.py"]


def test_the_view_ends_with_the_run(quiet: Folder) -> None:
    """And has its status; the supervisor is in another session."""
    terminal = Terminal(quiet, train("--no-tmux"))
    quiet.wait(lambda: "step 3" in terminal.read())
    supervisor = process.read(quiet.state()["pid"])
    assert supervisor and supervisor.session == supervisor.pid != terminal.process.pid
    assert terminal.wait() == 0 and "run: done: finished" in terminal.read()
    terminal.close()


def test_ctrl_c_leaves_the_view_and_the_run_goes_on(quiet: Folder) -> None:
    """Nobody loses a night's training by a habit."""
    terminal = Terminal(quiet, train("--no-tmux"))
    quiet.wait(lambda: "step 3" in terminal.read())
    os.write(terminal.master, b"\x03")
    assert terminal.wait() == 0 and "run goes on; crab attach run" in terminal.read()
    terminal.close()
    quiet.wait(lambda: quiet.state().get("state") == "ended", "the end")
    assert quiet.state()["verdict"] == "done" and len(quiet.events("attempt")) == 1


def test_closing_the_window_leaves_the_run(quiet: Folder) -> None:
    """The SSH link breaks: SIGHUP to whatever was in front."""
    terminal = Terminal(quiet, train("--no-tmux"))
    quiet.wait(lambda: "step 3" in terminal.read())
    terminal.close()
    assert terminal.process.wait(10) != 0
    quiet.wait(lambda: quiet.state().get("state") == "ended", "the end")
    assert quiet.state()["verdict"] == "done"


def test_in_the_foreground_ctrl_c_ends_it(quiet: Folder) -> None:
    """Where that was asked for."""
    terminal = Terminal(quiet, train("--foreground"))
    quiet.wait(lambda: "step 3" in terminal.read())
    os.write(terminal.master, b"\x03")
    assert terminal.wait() == 143
    assert quiet.state()["verdict"] == "stopped" and alive(quiet.run.folder) == []
    terminal.close()


def test_in_the_foreground_a_closed_window_is_survived(quiet: Folder) -> None:
    """It is no view, and yet it goes on."""
    terminal = Terminal(quiet, train("--foreground"))
    quiet.wait(lambda: "step 3" in terminal.read())
    terminal.close()
    assert terminal.process.wait(30) == 0
    assert quiet.state()["verdict"] == "done"


def test_a_refusal_is_seen_at_the_terminal(quiet: Folder) -> None:
    """Before anything goes to the background."""
    terminal = Terminal(quiet, [*CRAB, "train", "--", "no-such-program"])
    assert terminal.wait() == 2 and "no program 'no-such-program'" in terminal.read()
    terminal.close()


@pytest.fixture
def tmux(quiet: Folder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """A tmux of this test's own; its socket's path is short."""
    place = tmp_path_factory.mktemp("t")
    quiet.environ["TMUX_TMPDIR"] = str(place)
    if subprocess.run(["tmux", "-V"], capture_output=True, check=False).returncode:
        pytest.skip("no tmux here")
    yield quiet
    subprocess.run(["tmux", "kill-server"], env=quiet.environ, capture_output=True, check=False)


def test_tmux_is_a_view(tmux: Folder) -> None:
    """The run is seen in it, and lives on when all of tmux is killed."""
    terminal = Terminal(tmux, train())
    tmux.wait(lambda: "step 3" in terminal.read())
    listed = subprocess.run(["tmux", "ls"], env=tmux.environ, capture_output=True, text=True, check=True)
    assert listed.stdout.startswith("crab-run:")
    subprocess.run(["tmux", "kill-server"], env=tmux.environ, check=True)
    terminal.wait()
    terminal.close()
    tmux.wait(lambda: tmux.state().get("state") == "ended", "the end")
    assert tmux.state()["verdict"] == "done" and len(tmux.events("attempt")) == 1


def test_tmux_changes_no_word_and_hides_no_status(tmux: Folder) -> None:
    """C40: it is only told what to show, so it eats no last `;`; and the view ends as the training did."""
    hostile = ["a b", "$HOME", "`id`", "it's", "x;", ";", "\\", "*", "#{pane_id}", "ü"]
    tmux.script("import json, sys; open('got', 'w').write(json.dumps(sys.argv[1:])); sys.exit(3)")
    words = ("--max-restarts", "0")
    terminal = Terminal(tmux, [*train(*words), *hostile])
    tmux.wait(lambda: "Enter closes this window" in terminal.read(), "the end of the view")
    os.write(terminal.master, b"\n")
    assert terminal.wait() == 3
    terminal.close()
    assert json.loads((tmux.path / "got").read_text()) == hostile


def test_nobody_at_tmux_is_nobody_attached(tmux: Folder) -> None:
    """A session that lives on must not keep a box from being powered off."""
    (tmux.path / "train.py").write_text(STEPS.replace("40", "200"))
    terminal = Terminal(tmux, train())
    tmux.wait(lambda: "step 3" in terminal.read())
    tmux.wait(lambda: marks(tmux.run.attached), "the mark")
    subprocess.run(["tmux", "detach-client", "-s", "crab-run"], env=tmux.environ, check=True)
    assert terminal.wait() == 0 and "run goes on" in terminal.read()
    terminal.close()
    tmux.wait(lambda: not marks(tmux.run.attached), "its end")
    os.kill(tmux.state()["pid"], signal.SIGQUIT)
    tmux.wait(lambda: tmux.state().get("state") == "ended", "the end")


def marks(folder: Path) -> list[str]:
    """Who says that he looks."""
    return os.listdir(folder) if folder.is_dir() else []
