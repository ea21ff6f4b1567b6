"""Claims: on each platform exactly the calls of the table are made, whatever happens, and no others.

The platforms are root filesystems; their commands are stubs, their servers and metadata are on the loopback address.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest

from hermitcrab.box.power import calls
from hermitcrab.box.power.stops import STOPS, Stop
from hermitcrab.errors import UserError
from hermitcrab.train import gate
from hermitcrab.train.gate import Armed
from hermitcrab.train.journal import Journal
from tests import rented
from tests.rented import Box, GoneError, at, put, served
from tests.train.test_gate import Outcome, environ_of, make_run, options

SERVED = ("vast", "runpod", "lambda")  # by their servers; the others by commands
LONG = 5000.0  # virtual seconds that nobody waits for a box to be stopped
PLAIN = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
ECS = "aliyun ecs StopInstance --RegionId cn-x --InstanceId i-1 --StoppedMode StopCharging"
CVM = '--region ap-x --InstanceIds ["ins-1"]'


class Platform(NamedTuple):
    """What is asked of one platform, and what its disk does."""

    proof: tuple[str, ...]  # before step 0, and it changes nothing
    stop: str
    keeps: bool = True  # a stop leaves the disk that the run is on
    options: tuple[str, ...] = ()


PLATFORMS = {
    "autodl": Platform((), "shutdown "),
    "vast": Platform(("GET /api/v0/instances/1234/?owner=me",), 'PUT /api/v0/instances/1234/ {"state": "stopped"}'),
    "runpod": Platform(("GET /v1/pods/abc123pod",), "POST /v1/pods/abc123pod/stop", keeps=False),
    "lambda": Platform(
        ("GET /api/v1/instances",) * 2,
        'POST /api/v1/instance-operations/terminate {"instance_ids": ["0920582c7ff041399e34823a0be62540"]}',
        keeps=False,
        options=("--allow-terminate",),
    ),
    "aliyun": Platform((f"{ECS} --DryRun true",), ECS),
    "tencent": Platform(
        (f"tccli cvm DescribeInstances {CVM}",), f"tccli cvm StopInstances {CVM} --StoppedMode STOP_CHARGING"
    ),
    "aws": Platform(("true ",), "shutdown -h now"),
}
# What a command answers to its proof, and what it says where the machine is not in the account.
ANSWERS = {
    "aliyun": ('echo "ErrorCode: DryRunOperation"; exit 1', "echo InvalidInstanceId.NotFound; exit 1"),
    "tencent": ("""echo '{"InstanceSet": [{"InstanceId": "ins-1"}]}'""", """echo '{"InstanceSet": []}'"""),
    "aws": ("exit 0", "exit 1"),
}
COMMANDS = {"autodl": ("shutdown",), "aliyun": ("aliyun",), "tencent": ("tccli",), "aws": ("shutdown", "true")}
VENDORS = {"aliyun": "Alibaba Cloud", "tencent": "Tencent Cloud", "aws": "Amazon EC2"}
METADATA = {
    "/latest/meta-data/instance-id": {"aliyun": "i-1", "tencent": "ins-1"},
    "/latest/meta-data/region-id": {"aliyun": "cn-x"},
    "/latest/meta-data/placement/region": {"tencent": "ap-x"},
}


def expected(name: str, story: str) -> list[str]:
    """The table: all that is called, in order."""
    platform = PLATFORMS[name]
    tries = 3 * (5 if story == "timeout" and name in SERVED else 1)  # a server is asked more than once
    stops = {"success": 1, "failure": tries, "timeout": tries, "hold": 0, "not rented": 0}
    # A disk that a stop wipes is not given up for a copy that failed.
    count = int(platform.keeps) if story == "sync failure" else stops[story]
    proof = platform.proof[:1] if story == "not rented" else platform.proof
    return [*proof, *[platform.stop] * count]


class World:
    """A rented box with a run on it. What ends the machine ends the story: `GoneError`; so does a long time."""

    def __init__(self, name: str, tmp_path: Path, stops: dict[str, Stop], api: rented.Api | None) -> None:
        self.name, self.api, self.stops, self.tmp_path = name, api, stops, tmp_path
        self.box = _box(name, tmp_path / "root")
        self.run = make_run(tmp_path / "runs/exp")
        self.journal = Journal(self.run)
        self.environ = environ_of(self.box, tmp_path)
        self.rsync("exit 0")
        self.ends = True  # a stop that is accepted ends the machine
        self.slept, self.said = 0.0, []  # type: tuple[float, list[str]]

    def rsync(self, body: str) -> None:
        """Say what the copy does."""
        put(self.box.root / "bin", "rsync", f"#!/bin/sh\n{body}\n", 0o755)

    def command(self, *, stop: str = "exit 0", proof: str = "") -> None:
        """Say what the platform's commands do."""
        proof = proof or ANSWERS.get(self.name, ("exit 0",))[0]
        for name in COMMANDS.get(self.name, ()):
            place = self.box.root / ("usr/bin" if self.name == "autodl" else "bin")
            body = f'case "$0 $*" in *DryRun*|*Describe*|*/true*) {proof} ;; *) {stop} ;; esac'
            put(place, name, f'#!/bin/sh\necho "{name} $*" >> "{self.box.root}/calls"\n{body}\n', 0o755)

    def preflight(self) -> Armed | None:
        """Prove it before step 0."""
        given = ("--poweroff", "success", "--sync", "me@home:x", "--sync-time", "1", *PLATFORMS[self.name].options)
        armed = gate.preflight(
            options(*given), self.run, self.environ, root=self.box.root, stops=self.stops, say=self.said.append
        )
        # Whatever is called from here on is ours.
        for way in armed.plan.ways if armed and armed.plan else ():
            assert not way.stop.argv or way.stop.argv[0].startswith(str(self.tmp_path))
        return armed

    def close(self, armed: Armed | None) -> bool | None:
        """End the run; None when the machine was stopped, else what the gate says of it."""
        try:
            return gate.close(
                armed,
                self.run,
                self.journal,
                Outcome("done"),
                self.environ,
                say=self.said.append,
                sleep=self.sleep,
                clock=lambda: self.slept,
            )
        except GoneError:
            return None

    def sleep(self, seconds: float) -> None:
        """Let time pass, on a machine that is up."""
        self.slept += seconds
        if self.ends and PLATFORMS[self.name].stop in self.calls:
            raise GoneError
        if self.slept > LONG:
            raise TimeoutError("the machine is up")

    @property
    def calls(self) -> list[str]:
        """What was called."""
        path = self.box.root / "calls"
        return self.api.calls if self.api else path.read_text().splitlines() if path.exists() else []


def _box(name: str, root: Path) -> Box:
    if name in VENDORS:
        put(root, "sys/class/dmi/id/sys_vendor", f"{VENDORS[name]}\n")
        return rented._make(root, PLAIN, {})
    makers = {"autodl": rented.autodl, "vast": rented.vast, "runpod": rented.runpod, "lambda": rented.lambda_box}
    return makers[name](root)


@contextmanager
def metadata(name: str) -> Iterator[str]:
    """Serve what a cloud tells its machines."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = METADATA.get(self.path, {}).get(name)
            self.send_response(200 if text else 404)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A box of the platform that the test is about; none of its calls leaves this machine."""
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "CRAB_NOTIFY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{tmp_path}/root/bin:/usr/bin:/bin")
    monkeypatch.setattr("hermitcrab.train.gate.busy.PROC", tmp_path / "no-proc")
    name: str = request.param
    with ExitStack() as stack:
        api = stack.enter_context(served(name)) if name in SERVED else None
        stops = at(api) if api else dict(STOPS)
        row = stops[name]
        if any(value.url for value in row.values):
            base = stack.enter_context(metadata(name))
            values = [value._replace(url=f"{base}/latest{value.url.partition('/latest')[2]}") for value in row.values]
            stops[name] = row._replace(values=tuple(values))
        made = World(name, tmp_path, stops, api)
        made.command()
        put(made.box.root, "bin/sudo", '#!/bin/sh\nshift\nexec "$@"\n', 0o755)  # where a user runs the tests
        yield made


each = pytest.mark.parametrize("world", PLATFORMS, indirect=True)


@each
def test_success(world: World) -> None:
    """Proven, copied, counted down, stopped by one call; the machine is gone with it."""
    assert world.close(world.preflight()) is None
    assert world.calls == expected(world.name, "success")
    assert world.slept >= 300


@each
def test_failure(world: World) -> None:
    """A stop that is refused is tried again, and then it is shouted that the box still bills."""
    armed = world.preflight()
    world.ends = False
    world.command(stop="exit 1")
    if world.api:
        world.api.stop_statuses = [403] * 99
    assert world.close(armed) is False
    assert world.calls == expected(world.name, "failure")
    assert world.said[-1].startswith("STILL BILLING")
    assert world.journal.state["poweroff"]["decision"] == "failed"


@each
def test_sync_failure(world: World) -> None:
    """The box is stopped only where its disk survives that."""
    armed = world.preflight()
    world.rsync("exit 12")
    assert world.close(armed) is (None if PLATFORMS[world.name].keeps else True)
    assert world.calls == expected(world.name, "sync failure")
    assert "FAILED, results are not synced" in " ".join(world.said)


@each
def test_hold(world: World) -> None:
    """As long as it is held nothing is called, however long that is."""
    armed = world.preflight()
    world.run.hold.touch()
    with pytest.raises(TimeoutError, match="is up"):
        world.close(armed)
    assert world.calls == expected(world.name, "hold")


@each
def test_timeout(world: World) -> None:
    """A stop that never answers is given up in its time, and tried again."""
    row = world.stops[world.name]
    ways = tuple(way._replace(stop=way.stop._replace(timeout=0.4)) for way in row.ways)
    world.stops[world.name] = row._replace(ways=ways)
    armed = world.preflight()
    world.ends = False
    world.command(stop="exec sleep 30")
    if world.api:
        world.api.answer = _slow(world.api.answer, world.api)  # type: ignore[method-assign]
    begun = time.monotonic()
    assert world.close(armed) is False
    assert time.monotonic() - begun < 25, "it was waited for"
    wanted = expected(world.name, "timeout")
    while len(world.calls) < len(wanted) and time.monotonic() - begun < 30:
        time.sleep(0.01)  # what a server that was not waited for has still to read
    assert world.calls == wanted
    assert world.said[-1].startswith("STILL BILLING")


@each
def test_not_rented(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine cannot be stopped from inside the run is refused before step 0, after one question."""
    if world.api:
        world.api.rented = False
    elif world.name == "autodl":
        (world.box.root / "usr/bin/shutdown").unlink()
    elif world.name == "aws":
        monkeypatch.setattr(calls.os, "geteuid", lambda: 1000)  # type: ignore[attr-defined]
        refuses = f'#!/bin/sh\nshift\necho "${{1##*/}} " >> "{world.box.root}/calls"\nexit 1\n'
        put(world.box.root, "bin/sudo", refuses, 0o755)
    else:
        world.command(proof=ANSWERS[world.name][1])
    with pytest.raises(UserError):
        world.preflight()
    assert world.calls == expected(world.name, "not rented")


def test_every_platform_that_is_stopped_is_in_the_table() -> None:
    """A new row has its six stories from its first day."""
    assert set(PLATFORMS) == set(STOPS)


def _slow(plain: Callable[[str, str, str], tuple[int, Any]], api: rented.Api) -> Callable[..., tuple[int, Any]]:
    """A server that takes a stop, and answers when nobody listens any more."""

    def answer(method: str, path: str, body: str) -> tuple[int, Any]:
        if method == "GET":
            return plain(method, path, body)
        api.calls.append(f"{method} {path} {body}".strip())
        time.sleep(1.0)
        return 500, {}

    return answer
