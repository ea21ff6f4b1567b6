"""Claims: a full disk under a run's folder costs lines of its log, and is said once; the training goes on.

The disk is a small one in memory, mounted for the supervisor and its training alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final, NamedTuple

import pytest

from hermitcrab.train import show
from tests.train.training import CRAB, Folder, alive

PYTHON: Final = sys.executable
MOUNT: Final = ("unshare", "--mount", "--propagation", "private")
# Mounts the disk where runs are, trains, and shows what is left there.
STORY: Final = """
mkdir runs && mount -t tmpfs -o size=256k tmpfs runs || exit 99
# Somebody makes room a while after the training has died of it.
(until test -e died; do sleep 0.2; done; sleep 3; date +%s.%N > freed; rm runs/filler) &
helper=$!
"$@"
echo "status $?"
ls -A runs/run
for name in run.json events.jsonl log.txt; do echo "== $name"; cat "runs/run/$name"; done
kill "$helper" 2>/dev/null
"""
# Fills the disk after its first steps; makes room again where that is wanted, and works on for a while.
FILLING: Final = """
import os, sys, time
def step(n):
    print("step", n, "loss", 1 / (n + 1), "x" * 900, flush=True)
    time.sleep(0.25)
for n in range(4):
    step(n)
with open("runs/filler", "wb", buffering=0) as file:
    try:
        while file.write(b"x" * 512): pass
    except OSError:
        pass
for n in range(4, 16):
    step(n)
if "room" in sys.argv:
    os.unlink("runs/filler")
for n in range(16, 24):
    step(n)
"""


class Story(NamedTuple):
    """What came of a training on a full disk."""

    output: str
    status: int
    names: list[str]
    files: dict[str, str]

    @property
    def state(self) -> dict[str, Any]:
        """What run.json says."""
        found: dict[str, Any] = json.loads(self.files["run.json"])
        return found


def told(folder: Folder, *words: str, filling: str = FILLING) -> Story:
    """Train on a small disk."""
    if subprocess.run([*MOUNT, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False).returncode:
        pytest.skip("this user may mount nothing")
    folder.script(filling)
    command = [*CRAB, "train", "--name", "run", *words[:-1], "--", PYTHON, "train.py", words[-1]]
    done = subprocess.run(
        [*MOUNT, "sh", "-c", STORY, "sh", *command],
        cwd=folder.path,
        env=folder.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=90,
        check=False,
    )
    output, *files = done.stdout.decode("utf-8", "replace").split("\n== ")
    output, _, listed = output.rpartition("\nstatus ")
    status, _, names = listed.partition("\n")
    assert alive(folder.run.folder) == []
    return Story(output, int(status), names.split(), dict(text.partition("\n")[::2] for text in files))


def test_it_goes_on_and_catches_up_when_there_is_room(folder: Folder) -> None:
    """The warning comes once; afterwards the journal has all of it, and the log the count of what it lost."""
    story = told(folder, "room")
    assert story.status == 0, story.output
    assert "step 23 " in story.output
    assert story.output.count("cannot be written to, is its disk full?") == 1
    assert (story.state["verdict"], story.state["state"]) == ("done", "ended")
    kinds = [json.loads(line)["kind"] for line in story.files["events.jsonl"].splitlines()]
    assert kinds[0] == "attempt" and kinds[-1] == "ended"
    assert "lines are lost: the disk was full" in story.files["log.txt"]
    assert "step 23 " in story.files["log.txt"]


def test_a_run_that_ends_on_a_full_disk_is_done_all_the_same(folder: Folder) -> None:
    """Its marker has room: it is only a name. A restarted container must not train it again."""
    story = told(folder, "full")
    assert story.status == 0, story.output
    assert "crab: done: finished" in story.output
    assert "done" in story.names and "failed" not in story.names
    assert story.state["state"] != "ended", "the disk was not full"


def test_a_training_that_died_of_it_is_started_again_when_there_is_room(folder: Folder) -> None:
    """And not before: each try would only fail again."""
    died = "if os.environ['ATTEMPT'] == '1':\n    open('died', 'w')\n    raise OSError(28, 'No space left on device')\n"
    again = "open('again', 'w').write(repr(time.time()))\n"
    story = told(
        folder, "full", filling=FILLING.replace("for n in range(4, 16)", f"{died}{again}for n in range(4, 16)")
    )
    assert story.status == 0, story.output
    assert ": disk-full: " in story.output
    assert float((folder.path / "freed").read_text()) < float((folder.path / "again").read_text())


def test_a_journal_that_stands_still_is_seen_in_status(folder: Folder) -> None:
    """Nobody reads the output of a run in the background."""
    folder.start(PYTHON, "-c", "import time; time.sleep(60)")
    folder.wait(lambda: folder.state().get("child"))
    assert "stands still" not in folder.crab("status")
    state = {**show.read(folder.run), "silent": 720}
    assert "  journal   stands still for 12 min: is its disk full? The training goes on" in show.screen(
        folder.run, state
    )


def test_a_done_marker_without_its_journal_is_believed(folder: Folder) -> None:
    """What the end on a full disk leaves behind."""
    folder.train(PYTHON, "-c", "pass")
    folder.run.state.write_text(json.dumps({**folder.state(), "state": "running", "verdict": ""}))
    assert "run: done, by its marker" in folder.crab("status")
    assert "already finished" in folder.train(PYTHON, "-c", "pass")


def test_without_a_home_the_run_starts_all_the_same(folder: Folder) -> None:
    """That other commands find it by its name is not worth a night; here a file is in the way."""
    (folder.path / ".state").write_text("")
    output = folder.train(PYTHON, "-c", "print('trained')")
    assert "trained" in output
    assert f"need its folder, {folder.run.folder}" in output
