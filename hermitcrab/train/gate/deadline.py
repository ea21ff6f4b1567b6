"""The deadline: a process of its own that powers the box off at the limit in hours or money, whatever else fails.

It is started before step 0 and holds all it needs in memory, its code too: no file that is deleted, no process
that is killed and no credential that expires can disarm it, and no saved image or boot can arm it. A hold
(`crab hold`) makes it wait. At the limit it asks the supervisor to end the run, gives it the grace, and stops
the box.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple

from hermitcrab.box import files
from hermitcrab.box.power import armed, fire, http
from hermitcrab.box.power.preflight import Plan
from hermitcrab.box.power.stops import Call, Way
from hermitcrab.errors import UserError
from hermitcrab.train import owner, places, process
from hermitcrab.train.gate import countdown, farewell, notify
from hermitcrab.train.journal import Journal
from hermitcrab.train.places import Run

START = "import sys; sys.path.insert(0, sys.argv[1]); from hermitcrab.train.gate import deadline; deadline.guard()"
START_LIMIT = 60.0  # seconds
POLL = 5.0
AGAIN = 600.0  # seconds until the next try when nothing stopped the box
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NOT_HANDED_ON = {process.MARK, "RUN_ID", "CKPT_DIR", "RESUME", "ATTEMPT", "STATUS_FILE", "LD_PRELOAD"}
SET_NAME = 15  # prctl's PR_SET_NAME


class Guard(NamedTuple):
    """A deadline that is armed."""

    pid: int
    started: int
    at: float  # by the clock of the boot
    run: str  # the run's folder
    why: str
    record: str = ""


def clock() -> float:
    """Seconds since the boot, those asleep too: nobody can set this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def start(
    plan: Plan,
    run: Run,
    seconds: float,
    why: str,
    *,
    grace: float = 300.0,
    url: str = "",
    results: str = "",
    rounds: int = fire.ROUNDS,
    environ: Mapping[str, str] = os.environ,
) -> Guard:
    """Arm the deadline; returns when it holds all it needs, raises UserError when it could not be armed."""
    at = clock() + seconds
    config = {
        "plan": plan,
        "folder": str(run.folder),
        "at": at,
        "why": why,
        "grace": grace,
        "url": url,
        "results": results or str(run.folder),
        "rounds": rounds,
        "boot": _boot(),
    }
    root = str(Path(__file__).parents[3])
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", START, root, armed.WORD, run.name],
            input=json.dumps(config).encode(),
            capture_output=True,
            env={name: value for name, value in environ.items() if name not in NOT_HANDED_ON},
            cwd="/",
            timeout=START_LIMIT,
            check=False,
            start_new_session=True,
        )
        found = json.loads(done.stdout)
        guard = Guard(found["pid"], found["started"], at, str(run.folder), why)
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
        raise UserError(f"the deadline could not be armed ({type(error).__name__}): the run is not started") from None
    return _record(guard, environ)


def guards(environ: Mapping[str, str] = os.environ) -> list[Guard]:
    """Return the deadlines that are armed on this box; records of others, and of other boots, are thrown away."""
    found = []
    for path in sorted(_folder(environ).glob("*.json")):
        known = files.read_json(path)
        at = known.get("at")
        alive = known.get("boot") == _boot() and process.lives(known.get("pid"), known.get("started"))
        if alive and isinstance(at, (int, float)):
            found.append(
                Guard(known["pid"], known["started"], at, str(known.get("run")), str(known.get("why")), str(path))
            )
        else:
            _forget(path)
    return found


def disarm(guard: Guard) -> None:
    """End a deadline: only its own process, by its number and start."""
    if process.lives(guard.pid, guard.started):
        with suppress(OSError):
            os.kill(guard.pid, signal.SIGKILL)
    _forget(Path(guard.record))


def guard() -> None:
    """Be the deadline: read what to do, leave everybody's session, and wait."""
    config = json.load(sys.stdin)
    plan = read_plan(config["plan"])
    http.prepare()
    child = os.fork()
    if child:
        found = process.read(child)
        print(json.dumps({"pid": child, "started": found.started if found else 0}), flush=True)
        os._exit(0)
    _leave()
    watch(config, plan)


def watch(
    config: Mapping[str, Any],
    plan: Plan,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = clock,
) -> None:
    """Wait for the limit, let the run end, and stop the box; ends only if this is another boot."""
    run = Run(Path(config["folder"]))
    while now() < config["at"]:
        if _boot() != config["boot"]:
            return
        sleep(min(POLL, max(0.05, config["at"] - now())))
    tell = _teller(run, config["url"])
    _while_held(run, tell, sleep)
    tell(
        f"the limit is reached ({config['why']}): the run is asked to end, the box stops in at most "
        f"{countdown.say(config['grace'])}; `crab hold {run.name}` keeps it up",
        "deadline",
    )
    _end_run(run, now() + config["grace"], sleep, now)
    _while_held(run, tell, sleep)
    while _boot() == config["boot"]:
        farewell.leave(run, config["why"], config["results"])
        if not fire.fire(plan, lambda text: _journal(run, "deadline", text), rounds=config["rounds"], sleep=sleep):
            tell(fire.still_billing(plan), "poweroff")
        sleep(AGAIN)
        _while_held(run, tell, sleep)


def read_plan(found: Any) -> Plan:
    """Read a plan back from JSON, where tuples are lists."""
    platform, name, identity, ways, settle, destroys = found
    return Plan(platform, name, identity, tuple(_way(*way) for way in ways), settle, destroys=destroys)


def _way(name: str, stop: list[Any], proof: list[Any] | None) -> Way:
    return Way(name, *(Call(tuple(call[0]), *call[1:]) if call else None for call in (stop, proof)))  # type: ignore[arg-type]


def _leave() -> None:
    """Become a process that nothing of the run can reach: own session, no terminal, no pipe, no folder."""
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.closerange(3, 256)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SET_NAME, armed.NAME, 0, 0, 0)
    # When memory runs out, the training is to go first.
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("-900")


def _end_run(run: Run, limit: float, sleep: Callable[[float], None], now: Callable[[], float]) -> None:
    """Ask the supervisor, or what it has left, to end the run, and wait until it has, or the grace is over."""
    state = files.read_json(run.state)
    pid, started = state.get("pid"), state.get("started")
    if not process.lives(pid, started):
        # It was killed: what it has left behind may still save.
        with suppress(OSError, ValueError):
            owner.stop_orphans(run, max(0.0, limit - now()))
        return
    with suppress(OSError):
        os.kill(pid, signal.SIGTERM)  # type: ignore[arg-type]
    while process.lives(pid, started) and now() < limit:
        sleep(min(1.0, POLL))


def _while_held(run: Run, tell: Callable[[str, str], None], sleep: Callable[[float], None]) -> None:
    told = False
    while os.path.lexists(run.hold):
        if not told:
            tell(
                f"the limit is reached, and `crab hold` keeps the box up: it bills on until "
                f"`crab hold {run.name} --off`",
                "hold",
            )
        told = True
        sleep(POLL)


def _teller(run: Run, url: str) -> Callable[[str, str], None]:
    def tell(text: str, kind: str) -> None:
        _journal(run, kind, text)
        if url:
            notify.send(url, f"hermitcrab: {run.name}", text)

    return tell


def _journal(run: Run, kind: str, text: str) -> None:
    """Say it in the run's journal, if that is still there; the deadline itself needs no file."""
    if run.folder.is_dir():
        Journal(run).event(kind, text=text, by="deadline")


def _record(guard: Guard, environ: Mapping[str, str]) -> Guard:
    """Note that it is armed, for `crab poweroff` and the next run; what is secret stays in its memory."""
    path = _folder(environ) / f"{sha256(os.fsencode(guard.run)).hexdigest()[:16]}.json"
    known = {**guard._asdict(), "boot": _boot()}
    with suppress(OSError):
        files.write(path, json.dumps(known).encode(), 0o600, sync=False)
    return guard._replace(record=str(path))


def _folder(environ: Mapping[str, str]) -> Path:
    return places.index(environ).parent / "armed"


def _forget(record: Path) -> None:
    with suppress(OSError):
        record.unlink()


def _boot() -> str:
    return os.fsdecode(files.read(BOOT_ID) or b"").strip()
