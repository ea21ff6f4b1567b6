"""Boxes for the bootstrap: plain Debian with nothing but curl, and the script served on the loopback.

The small script is the real one with one difference: its locks hold pip alone, so that a run takes seconds
and not three gigabytes. apt takes half a minute in a bare box, and so is left to the tests that are about it:
the others start from what a first run left behind.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import pytest
from docker.types import Mount

from hermitcrab import matrix as matrices
from hermitcrab.build import base as bases
from hermitcrab.build import bootstrap, image
from hermitcrab.build.engine import Engine
from hermitcrab.errors import UserError
from hermitcrab.matrix import Base
from tests.box.debian import Suite
from tests.box.machine import Box
from tests.image import boxes

CA: Final = "/ca.pem"  # where a box finds the certificates of the network that it is tested in
INSTALL: Final = (
    "export DEBIAN_FRONTEND=noninteractive; apt-get update -q && apt-get install -qy --no-install-recommends"
)
PASSED: Final = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", *image.PROXIES, *map(str.lower, image.PROXIES))
STAMP: Final = "/etc/hermitcrab/bootstrap.json"
LOG: Final = "/var/log/hermitcrab-bootstrap.log"
HASTE: Final = {"PIP_RETRIES": "1"}  # where it is sure to fail: pip tries for nine seconds
WORDS: Final = "--cuda 12.1 --mirror none"  # a probe of mirrors takes its three seconds
# Every file, folder and link with all that could change, but not folders' times, the log, or apt's digest of lists.
TREE: Final = (
    f"find / -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path {LOG} -o -name '*pkgcache.bin' \\) -prune"
    " -o -type d -printf '%p/ %m %u\\n' -o -printf '%p %m %u %s %T@ %l\\n' | sort"
)
# What a box of users has beside the packages: one who may nothing, one with sudo, and a pip to make environments with.
USERS: Final = (
    f"{INSTALL} sudo python3-venv >/dev/null; useradd -m -s /bin/bash me; useradd -m -s /bin/bash boss;"
    " echo 'boss ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/boss"
)
NO_PIP: Final = "rm -r /usr/lib/python3*/ensurepip /usr/share/python-wheels"


class Served(NamedTuple):
    """Scripts by name, and the address they are served at."""

    address: str
    scripts: dict[str, bytes]

    def curl(self, name: str = "small") -> str:
        """The words that a user pipes into a shell."""
        return f"curl -fsSL {self.address}/{name}"


class First(NamedTuple):
    """The box of a first run, from nothing, and what it said."""

    box: Box
    status: int
    said: str


class Ready(Protocol):
    """Starts boxes that have every package and are otherwise as before the first run."""

    def __call__(self, start: Any, suite: Suite = ..., **options: Any) -> Box: ...


def bare(engine: Engine, suite: Suite) -> str:
    """The image of a suite with curl, made unless it is there; UserError says why not."""
    tag = f"hermitcrab-test:bare{suite.version}"
    if engine.image(tag) is None:
        base = Base(id=f"debian{suite.version}", reference="", digest="", distro="debian", suite=suite.name, python="")
        source = bases.resolve(engine, base, "packages", epoch=matrices.load().epoch, say=print)
        # Not in the container's environment, which would become the image's.
        command = ["env", *(f"{name}={value}" for name, value in environment().items()), "sh", "-c", f"{INSTALL} curl"]
        container = engine.client.containers.create(source, command, network_mode=engine.network)
        try:
            if boxes.finish(container, 300).status:
                raise UserError(f"curl cannot be installed in {source}")
            repository, _, version = tag.partition(":")
            container.commit(repository=repository, tag=version, conf={"Cmd": ["bash"]})
        finally:
            container.remove(force=True)
    return tag


def environment() -> dict[str, str]:
    """What a user in this network must set: the machine's own proxies and indexes, and its certificates."""
    own = {name: os.environ[name] for name in PASSED if name in os.environ}
    return {**own, "HERMITCRAB_CA": CA, "CURL_CA_BUNDLE": CA} if certificates() else own


def certificates() -> str:
    """The file of certificates that this machine trusts, where it has one of its own."""
    found = next((os.environ[name] for name in ("PIP_CERT", "SSL_CERT_FILE") if name in os.environ), "")
    return found if found and Path(found).is_file() else ""


def options() -> dict[str, Any]:
    """How a container is made that can reach the indexes; the environment comes with each run, as in a session."""
    # A mount, not a volume, which an image that is saved from the container would ask for again.
    return {"mounts": [Mount(CA, certificates(), type="bind", read_only=True)]} if certificates() else {}


def small(monkeypatch: pytest.MonkeyPatch, folder: Path) -> bytes:
    """The script with locks of one package."""
    matrix = matrices.load()
    pip = matrix.tools["pip"]
    lock = folder / "pip.lock"
    lock.write_text(f"pip=={pip.version} --hash=sha256:{pip.sha256}\n")
    old = folder / "old.lock"
    with contextlib.suppress(OSError):
        line = next(
            line
            for path in bootstrap.LOCKS.glob("*/py39.lock")
            for line in path.read_text().splitlines()
            if line.startswith("pip==")
        )
        old.write_text(f"{line}\n")
    locks = {"3.9": old, "3.11": lock, "3.13": lock}
    monkeypatch.setattr(bootstrap, "locks", lambda combo: locks if combo.wheels == "pypi" else {})
    return bootstrap.script(matrix).encode()


@contextlib.contextmanager
def serving(scripts: dict[str, bytes]) -> Iterator[Served]:
    """Serve scripts on the loopback."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = scripts.get(self.path.lstrip("/"))
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Served(f"http://127.0.0.1:{server.server_address[1]}", scripts)
        server.shutdown()


def run(
    box: Box, command: str, *, user: str = "root", seconds: int = 300, environ: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a shell line in a box, without a terminal; return status and all that was said.

    An environment that is given is the whole of it.
    """
    home = "/root" if user == "root" else f"/home/{user}"
    done = box.container.exec_run(
        ["timeout", str(seconds), "bash", "-c", command],
        user=user,
        environment={"HOME": home, **(environment() if environ is None else environ)},
        workdir="/tmp",
    )
    assert isinstance(done.output, bytes)
    return int(done.exit_code or 0), done.output.decode(errors="replace")


def begin(box: Box, command: str, **environ: str) -> None:
    """Run a shell line and do not wait; what it says goes to /said, its status to /status."""
    line = f"{{ {command}; }} > /said 2>&1; echo $? > /status"
    box.container.exec_run(
        ["bash", "-c", line], detach=True, environment={"HOME": "/root", **environment(), **environ}, workdir="/tmp"
    )


def told(box: Box, path: str = STAMP) -> dict[str, Any]:
    """What a stamp says; without one the assertion shall show what the run said."""
    if not box.host.file(path).exists:
        return {"result": "no stamp"}
    found: dict[str, Any] = json.loads(box.read(path))
    return found


def changed(before: str, after: str) -> list[str]:
    """The lines in which two trees differ."""
    return sorted(set(before.splitlines()) ^ set(after.splitlines()))
