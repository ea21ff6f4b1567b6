"""Rented machines that are none: a root filesystem each, a stub of each command, and servers that answer as theirs.

A stop that works ends the machine; here the clock of the code under test then raises `GoneError`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from hermitcrab.box.power.stops import STOPS, Stop

LAYERS = "1 0 0:50 / / rw - overlay overlay rw\n"
PLAIN = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
KEY = "key-0123456789abcdef"
ADDRESS = "10.19.60.24"
HOSTS = {
    "vast": "https://console.vast.ai",
    "runpod": "https://rest.runpod.io",
    "lambda": "https://cloud.lambda.ai",
}


class GoneError(Exception):
    """The machine was stopped: nothing after that is ever run."""


class Box(NamedTuple):
    """A machine to run code on: its root and what the platform gives to its first process."""

    root: Path
    environ: dict[str, str]


def autodl(root: Path, *, shutdown: str = "exit 0") -> Box:
    """A container of AutoDL; `shutdown` is the body of its stub, which records its call."""
    box = _make(root, LAYERS, {"AutoDLContainerUUID": "abc"})
    put(root, "usr/bin/shutdown", f'#!/bin/sh\necho "shutdown $*" >> "{root}/calls"\n{shutdown}\n', 0o755)
    return box


def vast(root: Path) -> Box:
    """A container of Vast.ai."""
    return _make(root, LAYERS, {"CONTAINER_ID": "", "VAST_CONTAINERLABEL": "C.1234", "CONTAINER_API_KEY": KEY})


def runpod(root: Path, *, volume: str = "") -> Box:
    """A pod of RunPod, with its volume mounted at a place."""
    mounts = LAYERS + (f"2 1 8:2 / {volume} rw - ext4 /dev/sdb rw\n" if volume else "")
    return _make(root, mounts, {"RUNPOD_POD_ID": "abc123pod", "RUNPOD_API_KEY": KEY})


def lambda_box(root: Path, *, mounted: str = "") -> Box:
    """An instance of Lambda with one file system."""
    put(root, "lambda/nfs/mine/.keep", "")
    put(root, "proc/net/fib_trie", f"Main:\n     |-- {ADDRESS}\n        /32 host LOCAL\n")
    mounts = PLAIN + (f"2 1 0:99 / {mounted} rw - nfs4 server:/mine rw\n" if mounted else "")
    return _make(root, mounts, {}, LAMBDA_API_KEY=KEY)


def workstation(root: Path) -> Box:
    """Somebody's own machine."""
    put(root, "sys/class/dmi/id/sys_vendor", "Dell Inc.\n")
    return _make(root, PLAIN, {})


def put(root: Path, name: str, text: str, mode: int = 0o644) -> Path:
    """Write a file below a root."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


class Api:
    """What a platform's server knows and was asked; it answers as Vast, RunPod and Lambda do."""

    def __init__(self, platform: str) -> None:
        self.platform, self.url = platform, ""
        self.calls: list[str] = []  # "PUT /api/v0/instances/1234/ {body}"
        self.keys: set[str] = set()
        self.statuses: list[int] = []  # to be given before all else, to whatever is asked
        self.stop_statuses: list[int] = []  # the same for stops only
        self.rented = True
        self.stopped = self.ends = False  # whether it was stopped; whether that ends the machine
        self.refuses = False  # answers a stop with "no success"
        self.addresses = [ADDRESS]

    def answer(self, method: str, path: str, body: str) -> tuple[int, Any]:
        """Return status and JSON of an answer."""
        self.calls.append(f"{method} {path} {body}".strip())
        stop = method in {"PUT", "POST"}
        for queue in (self.statuses, self.stop_statuses if stop else []):
            if queue:
                return queue.pop(0), {"error": "later"}
        if self.platform == "vast" and not path.startswith("/api/v0/instances/1234/"):
            return 401, {"success": False, "msg": "the key of an instance is for nothing else"}
        if not self.rented:
            return 404, {"success": False, "error": "no_such_instance"}
        if stop and not self.refuses:
            self.stopped = True
        return 200, ANSWERS[self.platform](self, stop)

    def sleep(self, _: float = 0.0) -> None:
        """Be the clock of the code under test."""
        if self.stopped and self.ends:
            raise GoneError


def _vast(api: Api, stop: bool) -> Any:
    if stop:
        return {"success": not api.refuses, "msg": "this instance cannot be stopped"}
    state = "stopped" if api.stopped else "running"
    return {
        "instances": {
            "id": 1234,
            "intended_status": state,
            "actual_status": state,
            "start_date": 1.0,
            "extra_env": [],
        }
    }


def _runpod(api: Api, stop: bool) -> Any:  # noqa: ARG001
    return {"id": "abc123pod", "desiredStatus": "EXITED" if api.stopped else "RUNNING"}


def _lambda(api: Api, stop: bool) -> Any:
    mine = [
        {
            "id": f"0920582c7ff041399e34823a0be6254{number}",
            "private_ip": address,
            "ip": "1.2.3.4",
            "file_system_names": ["mine"],
            "status": "terminating" if api.stopped else "active",
        }
        for number, address in enumerate(api.addresses)
    ]
    other = {"id": "f" * 32, "private_ip": "10.0.0.9", "ip": "5.6.7.8", "file_system_names": [], "status": "active"}
    return {"data": {"terminated_instances": mine} if stop else [other, *mine]}


ANSWERS: dict[str, Callable[[Api, bool], Any]] = {"vast": _vast, "runpod": _runpod, "lambda": _lambda}


@contextmanager
def served(platform: str) -> Iterator[Api]:
    """Serve an API on a port of the loopback address."""
    api = Api(platform)

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            api.keys.add(self.headers.get("Authorization", ""))
            status, answer = api.answer(self.command, self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def at(api: Api) -> dict[str, Stop]:
    """Return the table of stops with a platform's address replaced: by an argument, for no variable may do that."""
    row = STOPS[api.platform]
    text = HOSTS[api.platform]
    ways = tuple(
        way._replace(
            stop=way.stop._replace(url=way.stop.url.replace(text, api.url)),
            proof=way.proof and way.proof._replace(url=way.proof.url.replace(text, api.url)),
        )
        for way in row.ways
    )
    return {**STOPS, api.platform: row._replace(ways=ways)}


def _make(root: Path, mounts: str, given: dict[str, str], **environ: str) -> Box:
    put(root, "proc/1/environ", "".join(f"{name}={value}\0" for name, value in given.items()))
    put(root, "proc/self/mountinfo", mounts)
    put(root, "proc/cpuinfo", "flags : hypervisor\n")
    home = root / "home/me"
    home.mkdir(parents=True)
    return Box(root, {"PATH": f"{root}/bin:/usr/bin:/bin", "HOME": str(home), **environ})
