"""Claims: the deadline fires whatever else is killed or deleted, waits for a hold, and nothing else arms one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hermitcrab.box.files import read_json
from hermitcrab.box.power import preflight
from hermitcrab.box.power.preflight import Plan
from hermitcrab.errors import UserError
from hermitcrab.train import gate, process
from hermitcrab.train.gate import arming, deadline
from hermitcrab.train.gate.deadline import Guard
from hermitcrab.train.journal import Journal, lines
from hermitcrab.train.places import Run
from tests import rented
from tests.rented import KEY, at, put, served
from tests.train import test_c39 as c39
from tests.train.test_gate import environ_of, make_run, options
from tests.train.training import alive

ROOT = Path(__file__).parents[2]
# A supervisor that arms and then only lives; from a copy of the package, which the test deletes.
SUPERVISOR = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from hermitcrab.train.gate import deadline
from hermitcrab.train.places import Run
plan = deadline.read_plan(json.loads(sys.argv[2]))
guard = deadline.start(plan, Run(Path(sys.argv[3])), float(sys.argv[4]), "test", grace=0.5)
print(json.dumps(guard), flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def guards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test leaves a deadline behind."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    for guard in deadline.guards():
        deadline.disarm(guard)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run."""
    return make_run(tmp_path / "runs/exp")


def autodl(tmp_path: Path) -> Plan:
    """Return the plan of an AutoDL box, whose stub writes to `root/calls`."""
    box = rented.autodl(tmp_path / "root")
    plan = preflight.examine(box.environ, box.root).plan
    assert plan
    return plan


def wait(until: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Wait for something to come true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if until():
            return True
        time.sleep(0.05)
    return False


def start(tmp_path: Path, plan: Plan, run: Run, seconds: float) -> Guard:
    """Arm from a copy of the package, then kill all of the supervisor's group and delete the package and the run."""
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT / "hermitcrab", copy / "hermitcrab", ignore=shutil.ignore_patterns("__pycache__"))
    process_ = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(copy), json.dumps(plan), str(run.folder), str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process_.stdout
    guard = Guard(*json.loads(process_.stdout.readline()))
    os.killpg(process_.pid, signal.SIGKILL)
    process_.wait()
    process_.stdout.close()
    shutil.rmtree(copy)
    shutil.rmtree(run.folder)
    return guard


def test_it_outlives_its_supervisor_its_code_and_its_run(tmp_path: Path, run: Run) -> None:
    """SIGKILL of all around it, and the stub command is called all the same."""
    guard = start(tmp_path, autodl(tmp_path), run, 2.0)
    assert process.lives(guard.pid, guard.started)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        os.kill(guard.pid, number)
    assert wait((tmp_path / "root/calls").exists)


def test_the_limit_holds_though_crab_train_is_killed(tmp_path: Path) -> None:
    """As a user starts it: after `kill -9` of the supervisor its training may still save, then the box is stopped."""
    put(tmp_path, "train.py", c39.SAVES)
    supervisor = c39.start(tmp_path, ["--max-hours", "0.003"], c39.PLAIN, "exit 0")
    records = tmp_path / ".local/state/hermitcrab/armed"
    known: dict[str, object] = {}
    try:
        c39.read_until(supervisor, "ready")
        known = read_json(next(records.glob("*.json")))
        supervisor.kill()
        supervisor.communicate(timeout=10)
        assert process.lives(known["pid"], known["started"])
        assert wait((tmp_path / "root/calls").exists, 60)
        assert (tmp_path / "saved").exists()
        assert alive(tmp_path / "runs/exp") == []
    finally:
        supervisor.kill()
        supervisor.communicate(timeout=10)
        for pid in (*alive(tmp_path / "runs/exp"), *filter(None, [known.get("pid")])):
            os.kill(int(str(pid)), signal.SIGKILL)


def test_it_asks_the_platforms_server_with_nothing_left_on_the_disk(tmp_path: Path, run: Run) -> None:
    """The key, the address and the code are in its memory, and the key is in no file and no command line."""
    with served("runpod") as api:
        box = rented.runpod(tmp_path / "root")
        plan = preflight.examine(box.environ, box.root, stops=at(api)).plan
        assert plan
        guard = start(tmp_path, plan, run, 1.5)
        assert KEY.encode() not in Path(f"/proc/{guard.pid}/cmdline").read_bytes()
        assert all(KEY not in path.read_text() for path in (tmp_path / "state").rglob("*.json"))
        shutil.rmtree(tmp_path / "root")
        assert wait(lambda: "POST /v1/pods/abc123pod/stop" in api.calls)


def test_a_hold_makes_it_wait(tmp_path: Path, run: Run) -> None:
    """Until it is let go."""
    run.hold.touch()
    deadline.start(autodl(tmp_path), run, 0.2, "test", grace=0.1)
    assert wait(lambda: any(event["kind"] == "hold" for event in lines(run.events)))
    assert not (tmp_path / "root/calls").exists()
    run.hold.unlink()
    assert wait((tmp_path / "root/calls").exists)
    assert "test" in (tmp_path / "state/hermitcrab/poweroff").read_text()


def test_the_supervisor_is_asked_to_end_the_run_first(tmp_path: Path, run: Run) -> None:
    """It gets the grace to save and to copy; then the box is stopped."""
    script = f"trap 'echo saved > {tmp_path}/saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    supervisor = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
    assert supervisor.stdout
    supervisor.stdout.readline()
    found = process.read(supervisor.pid)
    assert found
    Journal(run).update(pid=supervisor.pid, started=found.started)
    begun = time.monotonic()
    deadline.start(autodl(tmp_path), run, 0.5, "test", grace=30.0)
    supervisor.wait(20)
    supervisor.stdout.close()
    assert (tmp_path / "saved").exists()
    assert wait((tmp_path / "root/calls").exists)
    assert time.monotonic() - begun < 25
    assert "deadline" in [event["kind"] for event in lines(run.events)]


def test_the_next_run_takes_over_what_an_ended_one_has_armed(tmp_path: Path, run: Run) -> None:
    """And one that still goes on keeps its own."""
    plan = autodl(tmp_path)
    ended = deadline.start(plan, make_run(tmp_path / "runs/ended"), 100, "ended")
    going = make_run(tmp_path / "runs/going")
    me = process.read(os.getpid())
    assert me
    Journal(going).update(pid=os.getpid(), started=me.started)
    kept = deadline.start(plan, going, 100, "going")
    gate.arm(None, run, Journal(run), os.environ)
    assert wait(lambda: not process.lives(ended.pid, ended.started))
    assert [guard.pid for guard in deadline.guards()] == [kept.pid]


def test_arm_notes_it_in_the_run(tmp_path: Path, run: Run) -> None:
    """When by the clock of the boot, and why."""
    box = rented.autodl(tmp_path / "root")
    environ = environ_of(box, tmp_path)
    armed = arming.preflight(options("--max-hours", "2"), run, environ, root=box.root, say=print)
    gate.arm(armed, run, Journal(run), {**os.environ, **environ})
    assert abs(read_json(run.state)["deadline"] - deadline.clock() - 7200) < 30
    (event,) = lines(run.events)
    assert event["text"] == "armed: --max-hours 2, in 2 h"
    (guard,) = deadline.guards()
    assert guard.run == str(run.folder)


def test_a_record_arms_nothing(tmp_path: Path, run: Run) -> None:
    """One of another boot, as a saved image or a disk that was moved may bring along, is thrown away."""
    me = process.read(os.getpid())
    assert me
    record = {"pid": os.getpid(), "started": me.started, "at": 0.0, "run": str(run.folder), "why": "x", "boot": "other"}
    path = put(tmp_path / "state/hermitcrab/armed", "a.json", json.dumps(record))
    assert deadline.guards() == []
    assert not path.exists()


def test_one_of_another_boot_ends_without_a_stop(tmp_path: Path, run: Run) -> None:
    """A process that was frozen and thawed elsewhere is no guard of that machine."""
    config = {"folder": str(run.folder), "at": 1e12, "why": "", "grace": 1.0, "url": "", "results": "", "boot": "x"}
    deadline.watch(config, autodl(tmp_path), sleep=lambda _: None)
    assert not (tmp_path / "root/calls").exists()


def test_it_tries_again_as_long_as_the_box_is_up(tmp_path: Path, run: Run) -> None:
    """A platform whose API is down for an hour is not billed for ever."""
    box = rented.autodl(tmp_path / "root", shutdown="exit 1")
    plan = preflight.examine(box.environ, box.root).plan
    assert plan
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if slept.count(deadline.AGAIN) == 3:
            raise rented.GoneError

    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    config = {"folder": str(run.folder), "at": 0.0, "why": "w", "grace": 1.0, "url": "", "results": "", "boot": boot}
    with pytest.raises(rented.GoneError):
        deadline.watch({**config, "rounds": 2}, plan, sleep=sleep)
    assert len((tmp_path / "root/calls").read_text().splitlines()) == 6
    assert sum("STILL BILLING" in event["text"] for event in lines(run.events) if event["kind"] == "poweroff") == 3


def test_what_cannot_be_armed_starts_no_run(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather no training than one without the limit that was asked for."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(UserError, match="could not be armed"):
        deadline.start(autodl(tmp_path), run, 100, "x")
