"""Claims: each cloud's notice is understood as it gives it, within one poll, and nothing else is taken for one."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from hermitcrab.checkpoint import store
from hermitcrab.status import Status
from hermitcrab.train import watch
from hermitcrab.train.places import Run
from hermitcrab.train.watch import preemption
from hermitcrab.train.watch.preemption import CLOUDS, Poller
from tests.train.training import Folder, alive

LIMIT = 30.0  # seconds that a busy machine may take
UNTIL = 1_798_761_600.0  # 2027-01-01 00:00:00 UTC
WHEN = "2027-01-01T00:00:00Z"
AZURE = {
    "Events": [
        {
            "EventId": "A",
            "EventType": "Preempt",
            "ResourceType": "VirtualMachine",
            "Resources": ["mine"],
            "EventStatus": "Scheduled",
            "NotBefore": "Fri, 01 Jan 2027 00:00:00 GMT",
        }
    ]
}
# Cloud, what it says while all is well, its notice, and when the machine ends by it (0: not told).
NOTICES = [
    ("aws", (404, ""), json.dumps({"action": "terminate", "time": WHEN}), UNTIL),
    ("gcp", (200, "FALSE"), "TRUE", 0.0),
    ("azure", (200, json.dumps({"DocumentIncarnation": 1, "Events": []})), json.dumps(AZURE), UNTIL),
    ("aliyun", (404, ""), WHEN, UNTIL),
    ("tencent", (404, ""), "2027-01-01 08:00:00", UNTIL),
]


class Metadata(BaseHTTPRequestHandler):
    """A metadata server; it refuses whoever does not ask as its cloud wants to be asked."""

    cloud: ClassVar[str]
    answer: ClassVar[tuple[int, str]]
    asked: ClassVar[list[str]]
    tokens: ClassVar[list[str]]
    wait: ClassVar[float]

    def do_PUT(self) -> None:
        stem = CLOUDS[self.cloud].session
        right = self.path == "/latest/api/token" and self.headers.get(f"{stem}-ttl-seconds")
        self.tokens.append(f"token{len(self.tokens)}")
        self._say(200 if stem and right else 405, self.tokens[-1])

    def do_GET(self) -> None:
        time.sleep(self.wait)
        cloud = CLOUDS[self.cloud]
        self.asked.append(self.path)
        if any(self.headers.get(name) != value for name, value in cloud.headers.items()):
            self._say(400, "no header")
        elif cloud.session and self.headers.get(cloud.session) != self.tokens[-1]:
            self._say(401, "no token")
        elif self.path == cloud.notice:
            self._say(*self.answer)
        else:
            self._say(200 if self.path == cloud.hello else 404, "mine")

    def _say(self, code: int, text: str) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        """Be quiet."""


Server = Callable[[str], str]


@pytest.fixture
def server() -> Iterator[Server]:
    """Start the metadata server of a cloud; returns its address."""
    made: list[ThreadingHTTPServer] = []

    def start(cloud: str) -> str:
        Metadata.cloud, Metadata.asked, Metadata.tokens, Metadata.wait = cloud, [], [], 0.0
        one = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
        Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        made.append(one)
        return f"http://127.0.0.1:{one.server_port}"

    yield start
    for one in made:
        one.shutdown()
        one.server_close()


@pytest.mark.parametrize(("name", "well", "notice", "until"), NOTICES)
def test_a_notice_is_found_at_the_next_question(
    server: Server, name: str, well: tuple[int, str], notice: str, until: float
) -> None:
    """And not before; with the time at which the machine is taken."""
    poller = Poller(CLOUDS[name], server(name), timeout=LIMIT)
    Metadata.answer = well
    assert poller.hello()
    assert poller.ask() is None
    Metadata.answer = (200, notice)
    found = poller.ask()
    assert found is not None
    assert (found.kind, found.fatal) == ("preempted", True)
    assert CLOUDS[name].name in found.text
    assert found.until == until if until else abs((found.until or 0) - time.time() - 30) < 20
    assert "00:00:00 UTC" in found.text or not until


@pytest.mark.parametrize(("name", "well", "notice"), [row[:3] for row in NOTICES])
def test_the_watch_ends_the_run_within_one_poll(
    server: Server, tmp_path: Path, name: str, well: tuple[int, str], notice: str
) -> None:
    """From the server to a fatal finding, by way of the thread that asks."""
    base = server(name)
    Metadata.answer = well
    parser = argparse.ArgumentParser()
    watch.add_options(parser)
    watched = watch.Watch(
        parser.parse_args([]),
        Run(tmp_path),
        environ={preemption.VARIABLE: f"{name}={base}"},
        root=tmp_path,
        poll=0.05,
    )
    assert watched._poller
    watched._poller._timeout = LIMIT
    until_asked(CLOUDS[name].notice)
    assert not watched.tick(Status(), time.monotonic())
    Metadata.answer = (200, notice)
    until_asked(CLOUDS[name].notice)
    end = time.monotonic() + LIMIT
    found = watched.tick(Status(), time.monotonic())
    while not found and time.monotonic() < end:
        time.sleep(0.01)
        found = watched.tick(Status(), time.monotonic())
    watched.close()
    assert [(finding.kind, finding.fatal) for finding in found] == [("preempted", True)]


def until_asked(path: str) -> None:
    """Wait for a question that has not been asked yet."""
    before, end = Metadata.asked.count(path), time.monotonic() + LIMIT
    while Metadata.asked.count(path) == before:
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("aws", "<html>please log in</html>"),
        ("aws", "[]"),
        ("aws", json.dumps({"action": "rebalance", "time": WHEN})),
        ("aws", json.dumps({"action": "terminate"})),
        ("aws", json.dumps({"action": "terminate", "time": 5})),
        ("gcp", "<html>TRUE</html>"),
        ("gcp", ""),
        ("azure", "[]"),
        ("azure", json.dumps({"Events": [{"EventType": "Freeze", "Resources": ["mine"]}]})),
        ("azure", json.dumps({"Events": [{**AZURE["Events"][0], "Resources": ["another"]}]})),
        ("azure", json.dumps({"Events": [{**AZURE["Events"][0], "NotBefore": "soon"}]})),
        ("azure", json.dumps({"Events": None})),
        ("aliyun", "not a time"),
        ("aliyun", ""),
        ("tencent", WHEN),
        ("tencent", "2027-13-01 08:00:00"),
    ],
)
def test_what_is_no_notice_ends_nothing(server: Server, name: str, answer: str) -> None:
    """A login page, another machine's event, a text that is no time."""
    poller = Poller(CLOUDS[name], server(name), timeout=LIMIT)
    Metadata.answer = (200, answer)
    assert poller.hello()
    assert poller.ask() is None


def test_azure_without_a_time_is_a_notice(server: Server) -> None:
    """The event has begun: its time is empty."""
    poller = Poller(CLOUDS["azure"], server("azure"), timeout=LIMIT)
    Metadata.answer = (200, json.dumps({"Events": [{**AZURE["Events"][0], "NotBefore": ""}]}))
    assert poller.hello()
    assert poller.ask() is not None


@pytest.mark.parametrize("code", [401, 403, 404, 500, 503])
def test_an_error_is_no_notice(server: Server, code: int) -> None:
    """The server has its troubles."""
    poller = Poller(CLOUDS["aws"], server("aws"), timeout=LIMIT)
    Metadata.answer = (code, json.dumps({"action": "terminate", "time": WHEN}))
    assert poller.hello()
    assert poller.ask() is None


def test_a_token_that_expired_is_renewed(server: Server) -> None:
    """It holds for six hours; a training takes longer."""
    poller = Poller(CLOUDS["aws"], server("aws"), timeout=LIMIT)
    assert poller.hello()
    Metadata.tokens.append("another")
    Metadata.answer = (200, json.dumps({"action": "stop", "time": WHEN}))
    assert poller.ask() is not None
    assert len(Metadata.tokens) == 3


def test_where_nobody_answers_nobody_is_asked(tmp_path: Path) -> None:
    """No server, no poll after the first tries; no cloud, not even those."""
    poller = Poller(CLOUDS["aws"], "http://127.0.0.1:9", every=0.01).start()
    poller._thread.join(LIMIT)
    assert not poller._thread.is_alive()
    assert not poller.answers
    assert preemption.poller({}, tmp_path) is None


@pytest.mark.parametrize(
    ("vendor", "cloud"),
    [
        ("Amazon EC2", "aws"),
        ("Google", "gcp"),
        ("Microsoft Corporation", "azure"),
        ("Alibaba Cloud", "aliyun"),
        ("Tencent Cloud", "tencent"),
        ("QEMU", None),
        ("Supermicro", None),
    ],
)
def test_only_the_cloud_that_the_firmware_names_is_asked(tmp_path: Path, vendor: str, cloud: str | None) -> None:
    """A rented container on somebody's server must not send questions into a strange network."""
    folder = tmp_path / "sys/class/dmi/id"
    folder.mkdir(parents=True)
    (folder / "sys_vendor").write_text(f"{vendor}\n")
    found = preemption.poller({}, tmp_path)
    assert (found.cloud if found else None) is (CLOUDS[cloud] if cloud else None)


def test_a_server_that_is_slow_is_not_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second at most; and a proxy of the user's is not asked."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    poller = Poller(CLOUDS["gcp"], server("gcp"), timeout=0.2)
    Metadata.answer = (200, "TRUE")
    assert poller.hello()
    Metadata.wait = 20.0
    begun = time.monotonic()
    assert poller.ask() is None
    assert time.monotonic() - begun < 10
    poller.close()


def test_times_are_told_in_utc() -> None:
    """Tencent's are in UTC+8."""
    read = CLOUDS["tencent"].read("2027-01-01 08:00:00\n", "")
    assert read is not None
    assert datetime.fromtimestamp(read, UTC).isoformat() == "2027-01-01T00:00:00+00:00"


# Trains, and commits at SIGTERM what it has done, which takes a while.
SAVING = """
import json, os, signal, sys, time
from pathlib import Path
from hermitcrab.checkpoint import commit
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
def tell(**more):
    fields = {"pid": os.getpid(), "attempt": int(os.environ["ATTEMPT"]), "signals": ["SIGTERM"], **more}
    Path("status.new").write_text(json.dumps(fields))
    os.replace("status.new", os.environ["STATUS_FILE"])
def slowly(file):
    time.sleep(1)
    file.write(b"x" * 1000)
step = 0
while not stop:
    step += 1
    tell(step=step)
    time.sleep(0.1)
commit.commit(Path(os.environ["CKPT_DIR"]), step, {"run": "r"}, {"state.pt": slowly})
tell(step=step, committed=step)
Path("committed").write_text(repr(time.time()))
sys.exit(143)
"""
IGNORING = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("rea" + "dy", flush=True)
time.sleep(60)
"""


def preempted(folder: Folder, server: Server, code: str, seconds: float) -> float:
    """Train on a machine that is taken back in some seconds; returns when that is."""
    Metadata.answer = (404, "")
    folder.environ["CRAB_METADATA"] = f"aws={server('aws')}"
    process = folder.start(sys.executable, folder.script(code))
    folder.wait(lambda: "ready" in folder.log() or folder.run.status.exists(), "a training")
    until = float(int(time.time() + seconds))
    Metadata.answer = (200, json.dumps({"action": "terminate", "time": f"{datetime.fromtimestamp(until, UTC):%FT%TZ}"}))
    assert process.wait(60) != 0
    return until


def test_what_was_done_is_committed_before_the_machine_is_taken(folder: Folder, server: Server) -> None:
    """From the metadata server to a checkpoint that verifies; and nothing is started again on a machine that goes."""
    until = preempted(folder, server, SAVING, 30)
    assert float((folder.path / "committed").read_text()) < until
    newest = store.found(folder.run.checkpoints)[0]
    store.verify(newest.path)
    state = folder.state()
    assert (state["verdict"], state["failure"], state["committed"]) == ("preempted", "preempted", newest.step)
    assert len(folder.events("attempt")) == 1
    assert "takes this machine back" in folder.events("preemption")[0]["text"]
    assert not folder.run.done.exists()
    assert not folder.run.failed.exists()


def test_the_journal_is_closed_before_the_machine_is_taken(folder: Folder, server: Server) -> None:
    """Whoever ignores the notice is ended in time: the grace is not that of a common stop."""
    until = preempted(folder, server, IGNORING, 15)
    assert time.time() < until
    state = folder.state()
    assert (state["verdict"], state["state"], state["exit"]) == ("preempted", "ended", 137)
    assert alive(folder.run.folder) == []
