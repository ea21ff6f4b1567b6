"""Claims: a run survives what comes, ends when it is told to, and leaves nothing behind. Real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.train.training import CRAB, Folder, alive, environ_of, finished

PYTHON = sys.executable
# Counts steps in a file, so that a restart goes on; announces and handles SIGTERM as Checkpointer does.
SAVING = """
import json, os, signal, sys, time
from pathlib import Path
state, total = Path("state"), int(sys.argv[1])
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
signal.signal(signal.SIGUSR2, lambda *_: print("asked to save", flush=True))
def tell(step, **more):
    text = json.dumps({"step": step, "committed": step, "total": total, "pid": os.getpid(), "finished": False,
                       "attempt": int(os.environ["ATTEMPT"]), "signals": ["SIGTERM", "SIGUSR2"], **more})
    Path("status.new").write_text(text)
    os.replace("status.new", os.environ["STATUS_FILE"])
first = int(state.read_text()) + 1 if state.exists() else 0
print("from", first, flush=True)
for step in range(first, total):
    state.write_text(str(step))
    tell(step)
    if stop:
        print("saved", step, flush=True)
        sys.exit(143)
    if os.path.exists("crash-at-%d" % step):
        os.rename("crash-at-%d" % step, "crashed-%d" % step)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
tell(total - 1, finished=True)
"""
WAITING = "import time; print('rea' + 'dy', flush=True); time.sleep(60)"  # the log shows the command as well


def running(folder: Folder) -> None:
    """Wait until a training runs and its status was read."""
    folder.wait(lambda: folder.state().get("child"), "a training")
    folder.wait(lambda: "ready" in folder.log() or "from" in folder.log(), "its first line")


@pytest.mark.parametrize(
    ("code", "status", "verdict", "failure", "attempts"),
    [
        ("pass", 0, "done", "done", 1),
        ("raise SystemExit(2)", 2, "failed", "usage", 1),
        ("import nonsense", 1, "failed", "usage", 1),
        ("raise ValueError('no')", 1, "failed", "crash-loop", 2),
        ("raise SystemExit(75)", 75, "preempted", "preempted", 1),
        ("import os; os.kill(os.getpid(), 9)", 137, "failed", "crash-loop", 2),
        ("import os; os.kill(os.getpid(), 15)", 143, "stopped", "stopped", 1),
        ("raise MemoryError", 1, "failed", "host-oom", 1),
        ("raise OSError(28, 'No space left on device')", 1, "failed", "crash-loop", 2),
    ],
)
def test_the_status_is_the_trainings(
    folder: Folder, *, code: str, status: int, verdict: str, failure: str, attempts: int
) -> None:
    """And the class decides whether there is another attempt."""
    folder.train(PYTHON, "-c", code, options=("--max-restarts", "1"), status=status)
    state = folder.state()
    assert (state["verdict"], state["failure"], state["exit"]) == (verdict, failure, status)
    assert state["attempt"] == attempts and state["state"] == "ended"
    assert folder.run.done.exists() == (verdict == "done")


def test_a_killed_training_goes_on_where_it_was(folder: Folder) -> None:
    """Killed three times; each new checkpoint refills the budget, which is one."""
    folder.script(SAVING)
    for step in (3, 7, 9):
        (folder.path / f"crash-at-{step}").touch()
    output = folder.train(PYTHON, "train.py", "12", options=("--max-restarts", "1"))
    assert [line for line in output.splitlines() if line.startswith("from")] == [
        "from 0",
        "from 4",
        "from 8",
        "from 10",
    ]
    assert [event["number"] for event in folder.events("attempt")] == [1, 2, 3, 4]
    state = folder.state()
    assert state["verdict"] == "done" and state["committed"] == state["step"] == 11


def test_the_contract_is_in_the_environment(folder: Folder) -> None:
    """With what the user has set for torchrun and Python."""
    folder.environ.update(PET_SIGNALS_TO_HANDLE="SIGTERM", PYTHONUNBUFFERED="0")
    code = "import json, os; print('env', json.dumps(dict(os.environ)))"
    output = folder.train(PYTHON, "-c", code)
    environ = json.loads(next(line[4:] for line in output.splitlines() if line.startswith("env ")))
    run = folder.run
    assert environ["CKPT_DIR"] == str(run.checkpoints) and environ["STATUS_FILE"] == str(run.status)
    assert (environ["RESUME"], environ["RUN_ID"], environ["ATTEMPT"]) == ("auto", "run", "1")
    assert environ["PET_SIGNALS_TO_HANDLE"] == "SIGTERM" and environ["PYTHONUNBUFFERED"] == "0"
    assert environ["PYTHONFAULTHANDLER"] == "1" and environ["PET_SHUTDOWN_TIMEOUT"] == "120"


def test_it_ends_orderly_at_sigterm(folder: Folder) -> None:
    """The training saves, and is not started again."""
    folder.script(SAVING)
    process = folder.start(PYTHON, "train.py", "1000")
    running(folder)
    process.send_signal(signal.SIGTERM)
    status, output = finished(process)
    assert status == 143 and "saved" in output
    assert folder.state()["verdict"] == "stopped" and alive(folder.run.folder) == []
    assert len(folder.events("attempt")) == 1


def test_ctrl_c_twice_ends_it_at_once(folder: Folder) -> None:
    """The first may be ignored by the training; the second is not."""
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITING
    process = folder.start(PYTHON, "-c", code)
    running(folder)
    process.send_signal(signal.SIGINT)
    folder.wait(lambda: "once more" in folder.log(), "the first answer")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    status, _ = finished(process, 10)
    assert status == 137 and folder.state()["verdict"] == "stopped" and alive(folder.run.folder) == []


def test_it_survives_the_terminal(folder: Folder) -> None:
    """SIGHUP, to it and to the training; and nobody reads its output any more."""
    folder.script(SAVING)
    process = folder.start(PYTHON, "train.py", "60")
    running(folder)
    assert process.stdout
    process.stdout.close()
    process.stdout = None
    process.send_signal(signal.SIGHUP)
    os.kill(folder.state()["child"], signal.SIGHUP)
    assert process.wait(30) == 0
    assert folder.state()["verdict"] == "done" and len(folder.events("attempt")) == 1


def test_a_reader_who_sleeps_stops_nothing(folder: Folder) -> None:
    """A pipe that nobody empties holds 64 KiB, and the training prints more."""
    process = folder.start(PYTHON, "-c", "print(('x' * 1000 + '\\n') * 2000)")
    assert process.wait(30) == 0
    assert folder.run.log.stat().st_size > 2_000_000


def test_signals_are_passed_on_only_where_they_are_handled(folder: Folder) -> None:
    """USR2 means "save now", and the end of a program that does not know it."""
    folder.script(SAVING)
    process = folder.start(PYTHON, "train.py", "60")
    running(folder)
    folder.wait(folder.run.status.exists)
    process.send_signal(signal.SIGUSR2)
    folder.wait(lambda: "asked to save" in folder.log())
    process.send_signal(signal.SIGUSR1)
    folder.wait(lambda: "SIGUSR1 is not passed on" in folder.log())
    assert process.wait(30) == 0


def test_a_stop_during_the_pause_is_the_end(folder: Folder) -> None:
    """A user's stop is never followed by a restart."""
    process = folder.start(PYTHON, "-c", "raise ValueError")
    folder.wait(lambda: len(folder.events("restart")) == 3, "the third pause, of 15 s")
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    status, _ = finished(process)
    assert time.monotonic() - begun < 12
    assert status == 1 and folder.state()["verdict"] == "stopped" and len(folder.events("attempt")) == 3


def test_what_is_left_by_a_training_is_ended(folder: Folder) -> None:
    """A worker with a session of its own, after a crash."""
    code = f"import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True); {'raise ValueError'}"
    folder.train(PYTHON, "-c", code, options=("--max-restarts", "0"), status=1)
    assert alive(folder.run.folder) == []


def test_what_still_saves_after_a_good_end_may_finish(folder: Folder) -> None:
    """An upload that the program has started; results are copied and the box is stopped only after it."""
    upload = "import time; time.sleep(1.5); open('uploaded', 'w').close()"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {upload!r}], start_new_session=True)"
    output = folder.train(PYTHON, "-c", code)
    assert (folder.path / "uploaded").exists()
    assert "it ended, but left 1 processes" in output and folder.state()["verdict"] == "done"


def test_without_a_terminal_it_has_a_session_of_its_own(folder: Folder) -> None:
    """And so has the training: what happens to the caller's session or group is none of theirs."""
    process = folder.start(PYTHON, "-c", WAITING)
    running(folder)
    supervisor, child = (int(folder.state()[name]) for name in ("pid", "child"))
    assert os.getsid(supervisor) == supervisor == process.pid != os.getsid(0)
    assert os.getsid(child) == child


def test_what_was_spent_is_said_at_the_end(folder: Folder) -> None:
    """In the last line of the training, and in the status."""
    options = ("--price", "36000/h", "--currency", "CNY")
    output = folder.train(PYTHON, "-c", "import time; time.sleep(1)", options=options)
    said = re.search(r"crab: done: finished; spent: (\d+\.\d\d) CNY", output)
    assert said and 9 < float(said[1]) < 600, output
    assert f"spent     {said[1]} CNY" in folder.crab("status")


def test_a_finished_run_is_not_trained_again(folder: Folder) -> None:
    """As in a restarted container; with --again it is, from the start, and the old one is kept."""
    folder.script(SAVING)
    folder.train(PYTHON, "train.py", "3")
    assert "already finished" in folder.train(PYTHON, "train.py", "3")
    assert len(folder.events("attempt")) == 1
    code = "import os; print('given', os.environ['RESUME'], os.environ['RUN_ID'], os.environ['CKPT_DIR'])"
    output = folder.train(PYTHON, "-c", code, options=("--again", "--resume", "none"))
    assert f"given none run-2 {folder.run.checkpoints}" in output
    assert (folder.run.folder / "before-1" / "done").exists()


def test_a_broken_run_goes_on_with_the_same_command(folder: Folder) -> None:
    """The next supervisor counts on."""
    folder.script(SAVING)
    (folder.path / "crash-at-2").touch()
    folder.train(PYTHON, "train.py", "5", options=("--max-restarts", "0"), status=137)
    assert "from 3" in folder.train(PYTHON, "train.py", "5")
    assert [event["number"] for event in folder.events("attempt")] == [1, 2]


def test_two_supervisors_of_one_run_are_impossible(folder: Folder) -> None:
    """The second says what to do instead."""
    folder.start(PYTHON, "-c", WAITING)
    running(folder)
    assert "run is running: crab attach run" in folder.train(PYTHON, "-c", WAITING, status=1)


def test_a_training_without_its_supervisor_is_no_one_elses(folder: Folder) -> None:
    """It may have hours of work that no checkpoint holds: refused, until its owner stops it."""
    first = folder.start(PYTHON, "-c", "import time; time.sleep(60)")
    folder.wait(lambda: folder.state().get("child"))
    first.kill()
    first.wait()
    orphan = folder.state()["child"]
    assert "lost its supervisor, and its training is still alive" in folder.train(PYTHON, "-c", "pass", status=1)
    assert orphan in alive(folder.run.folder)
    assert "its supervisor was killed, its training is alive" in folder.crab("status", "run")
    folder.crab("stop", "run")
    assert alive(folder.run.folder) == []
    folder.train(PYTHON, "-c", "pass")


def test_a_training_that_saves_is_taken_over(folder: Folder) -> None:
    """It is asked to save, and the run goes on behind it."""
    folder.script(SAVING.replace('print("saved"', 'open("saved", "w").close(); print("saved"'))
    first = folder.start(PYTHON, "train.py", "80", stdout=subprocess.DEVNULL)
    running(folder)
    folder.wait(folder.run.status.exists)
    first.kill()
    first.wait()
    output = folder.train(PYTHON, "train.py", "80")
    assert "asked to save" in output and "from 0" not in output
    assert (folder.path / "saved").exists() and folder.state()["verdict"] == "done"


def test_a_run_outlives_a_full_disk(folder: Folder) -> None:
    """Its log may not grow any more; the training does not notice."""
    folder.run.folder.mkdir(parents=True)
    code = "for number in range(50000): print('line', number, 'x' * 50)"
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); "
    limit += "import sys; from hermitcrab import cli; sys.exit(cli.main(sys.argv[1:]))"
    words = ["train", "--name", "run", "--", PYTHON, "-c", code]
    done = subprocess.run(
        [PYTHON, "-c", limit, *words], cwd=folder.path, env=folder.environ, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert folder.run.log.stat().st_size <= 100_000


def test_the_last_words_are_kept(folder: Folder) -> None:
    """What happened, the line that shows it, what to try; and the 200 lines before."""
    code = "print('a\\n' * 500); raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')"
    output = folder.train(PYTHON, "-c", code, status=1)
    assert "gpu-oom: the GPU's memory is full" in output
    assert "evidence: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB" in output
    assert "try: half the batch size" in output
    kept = (folder.run.folder / "failure-1.txt").read_text().splitlines()
    assert len(kept) == 200 and kept[-1].startswith("RuntimeError: CUDA")


def test_another_setting_is_tried_after_oom(folder: Folder) -> None:
    """Each once, in order, only because the user gave them."""
    code = "import os; b = os.environ.get('B', '64'); print('batch', b)\nif b != '16': raise MemoryError"
    output = folder.train(PYTHON, "-c", code, options=("--on-oom", "B=32", "--on-oom", "B=16"))
    assert [line for line in output.splitlines() if line.startswith("batch")] == ["batch 64", "batch 32", "batch 16"]


def test_a_done_file_is_asked_for(folder: Folder) -> None:
    """C39: an exception swallowed on the way, exit status 0."""
    options = ("--done-file", "final.pt", "--max-restarts", "0")
    output = folder.train(PYTHON, "-c", "pass", options=options, status=1)
    assert "the file of --done-file is not there" in output and folder.state()["verdict"] == "failed"
    folder.train(PYTHON, "-c", "open('final.pt', 'w')", options=options)


def test_a_training_that_never_said_that_it_finished_is_not_done(folder: Folder) -> None:
    """Its own word counts more than an exit status of 0."""
    folder.script(SAVING.replace("tell(total - 1, finished=True)", "tell(2, committed=1, total=9)"))
    folder.train(PYTHON, "train.py", "3", options=("--max-restarts", "0"), status=1)
    assert "never said that it finished" in folder.state()["reason"]


def test_a_failure_in_a_pipe_is_none_of_tees(folder: Folder) -> None:
    """C39: the loop's `| tee` hides the status; a traceback as the last words gives it away, and it is warned of."""
    folder.script("raise ValueError('no data')")
    line = f"{PYTHON} train.py 2>&1 | tee log.txt"
    output = folder.train("bash", "-c", line, options=("--max-restarts", "0"), status=1)
    assert "WARNING: the exit status of a pipe" in output and folder.state()["verdict"] == "failed"
    folder.train("bash", "-o", "pipefail", "-c", line, options=("--max-restarts", "0"), status=1)
    folder.script("print('fine')")
    folder.train("bash", "-c", line)


def test_the_wait_for_cheap_hours_can_be_stopped(folder: Folder) -> None:
    """And no attempt was made."""
    hour = (time.localtime().tm_hour + 12) % 24
    process = folder.start(PYTHON, "-c", "pass", options=("--start-at", f"{hour}:30"))
    folder.wait(lambda: folder.events("waiting"))
    process.send_signal(signal.SIGTERM)
    assert finished(process)[0] == 143
    assert folder.events("attempt") == [] and folder.state()["verdict"] == "stopped"


def test_it_begins_at_its_hour(folder: Folder) -> None:
    """And not before; nothing of the training is started until then."""
    code = (
        "import sys, time; from hermitcrab import cli; from hermitcrab.train import startat\n"
        "startat.next_time = lambda *_: time.time() + 2\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    begun = time.time()
    script = folder.script("import time; open('began', 'w').write(repr(time.time()))")
    words = ["train", "--name", "run", "--start-at", "23:00", "--", PYTHON, script]
    subprocess.run([PYTHON, "-c", code, *words], cwd=folder.path, env=folder.environ, capture_output=True, check=True)
    assert float((folder.path / "began").read_text()) - begun > 2
    assert [event["kind"] for event in folder.events()] == ["waiting", "attempt", "ended"]


def test_as_the_first_process_it_buries_and_ends(folder: Folder) -> None:
    """PID 1 of a container gets all orphans, and no signal that it does not handle."""
    inside = ["unshare", "--fork", "--pid", "--mount-proc"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may make no process namespace")
    code = (
        "import signal, subprocess, sys, time\n"
        "for _ in range(20): subprocess.run(['sh', '-c', 'sleep 0.1 &'])\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "time.sleep(13)\n"
        "states = subprocess.run(['ps', '-eo', 'stat'], capture_output=True, text=True).stdout.split()\n"
        "print('zombies', sum(word.startswith('Z') for word in states), flush=True)\n"
        "time.sleep(60)\n"
    )
    argv = [*inside, *CRAB, "train", "--name", "run", "--", PYTHON, folder.script(code)]
    process = subprocess.Popen(argv, cwd=folder.path, env=folder.environ, stdout=subprocess.PIPE)
    folder.started.append(process)
    folder.wait(lambda: "zombies" in folder.log())
    assert "zombies 0" in folder.log()
    assert folder.state()["pid"] == 1
    supervisor = next(pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(pid) == process.pid)
    os.kill(supervisor, signal.SIGTERM)
    assert finished(process)[0] == 5 and folder.state()["verdict"] == "stopped"


def test_a_hang_shows_where_it_stands_and_is_started_again(folder: Folder) -> None:
    """Without py-spy, and though the program has announced nothing: faulthandler prints the stacks."""
    folder.environ["PATH"] = "/usr/bin:/bin"
    folder.script(
        "import os, time\n"
        "def stands_here():\n"
        "    time.sleep(600 if os.environ['ATTEMPT'] == '1' else 0)\n"
        "for step in range(8):\n"
        "    print('step', step, 'loss', 1 / (step + 2), flush=True)\n"
        "    time.sleep(0.2)\n"
        "stands_here()\n"
    )
    output = folder.train(PYTHON, "train.py", options=("--hang-after", "5s"))
    assert "in stands_here" in output and "attempt 1 ended" in output and ": hang: " in output
    assert [event["what"] for event in folder.events("failure")] == ["hang"]


def test_a_training_of_nans_is_ended(folder: Folder) -> None:
    """And not started again: it would only be paid for."""
    folder.script("import time\nfor n in range(500): print('step', n, 'loss nan', flush=True); time.sleep(0.1)")
    output = folder.train(PYTHON, "train.py", options=("--nan-after", "5"), status=143)
    assert folder.state()["failure"] == "nan" and len(folder.events("attempt")) == 1
    assert "try: " in output


def test_a_short_run_has_a_verdict_and_a_folder_of_its_own(folder: Folder) -> None:
    """The real run must not go on from it."""
    folder.script(
        "import time\nfor n in range(900): print('step', n, 'loss', 9 / (n + 1), flush=True); time.sleep(0.05)"
    )
    output = folder.train(PYTHON, "train.py", options=("--smoke", "20"))
    assert "smoke: in order after" in output
    assert not folder.run.folder.exists() and (folder.path / "runs" / "run-smoke" / "run.json").exists()


def test_options_after_the_command_are_the_commands(folder: Folder) -> None:
    """And a forgotten `--` is told."""
    assert "follows `--`: crab train [OPTIONS] -- python train.py" in folder.crab(
        "train", "python", "train.py", status=2
    )


def test_a_fault_of_crabs_own_leaves_no_training(folder: Folder) -> None:
    """Nobody would end it; here the journal is broken in the middle."""
    code = (
        "import sys; from hermitcrab import cli; from hermitcrab.train.process import Tree\n"
        "looks = []\n"
        "def look(self, real=Tree.look):\n"
        "    looks.append(1)\n"
        "    if len(looks) == 2: raise RuntimeError('planted')\n"
        "    return real(self)\n"
        "Tree.look = look\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    words = ["train", "--name", "run", "--", PYTHON, "-c", WAITING]
    done = subprocess.run(
        [PYTHON, "-c", code, *words], cwd=folder.path, env=folder.environ, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 1 and b"planted" in done.stdout
    assert folder.state()["verdict"] == "failed" and alive(folder.run.folder) == []


def test_the_mark_is_in_the_training_only(folder: Folder) -> None:
    """By it an orphan is found; the supervisor itself must not carry it."""
    process = folder.start(PYTHON, "-c", WAITING)
    running(folder)
    assert environ_of(folder.state()["child"])["CRAB_RUN"] == str(folder.run.folder)
    assert "CRAB_RUN" not in environ_of(process.pid)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0
