"""Boxes for the bootstrap: plain Debian with nothing but curl, and the script served on the loopback.

The small script is the real one with one difference: its locks hold pip alone, so that a run takes seconds
and not three gigabytes.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

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
    "export DEBIAN_FRONTEND=noninteractive; apt-get update -q && apt-get install -qy --no-install-recommends "
)
PASSED: Final = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", *image.PROXIES, *map(str.lower, image.PROXIES))


class Served(NamedTuple):
    """Scripts by name, and the address they are served at."""

    address: str
    scripts: dict[str, bytes]

    def curl(self, name: str = "small") -> str:
        """The words that a user pipes into a shell."""
        return f"curl -fsSL {self.address}/{name}"


def bare(engine: Engine, suite: Suite, *packages: str) -> str:
    """The image of a suite with curl and these packages, made unless it is there; UserError says why not."""
    tag = f"hermitcrab-test:bare{suite.version}{''.join(f'-{package}' for package in packages)}"
    if engine.image(tag) is None:
        base = Base(id=f"debian{suite.version}", reference="", digest="", distro="debian", suite=suite.name, python="")
        source = bases.resolve(engine, base, "packages", epoch=matrices.load().epoch, say=print)
        command = ["sh", "-c", INSTALL + " ".join(("curl", *packages))]
        container = engine.client.containers.create(source, command, network_mode=engine.network, environment=passed())
        try:
            if boxes.finish(container, 300).status:
                raise UserError(f"{packages} cannot be installed in {source}")
            repository, _, version = tag.partition(":")
            container.commit(repository=repository, tag=version, conf={"Env": [], "Cmd": []})
        finally:
            container.remove(force=True)
    return tag


def passed() -> dict[str, str]:
    """What of this machine's settings the network demands."""
    return {name: os.environ[name] for name in PASSED if name in os.environ}


def options() -> dict[str, Any]:
    """How a container is made that can reach the indexes: with the certificates that this machine trusts."""
    found = next((os.environ[name] for name in ("PIP_CERT", "SSL_CERT_FILE") if name in os.environ), "")
    if not found or not Path(found).is_file():
        return {"environment": passed()}
    volumes = {found: {"bind": CA, "mode": "ro"}}
    return {"environment": {**passed(), "HERMITCRAB_CA": CA, "CURL_CA_BUNDLE": CA}, "volumes": volumes}


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
    """Run a shell line in a box, without a terminal; return status and all that was said."""
    home = "/root" if user == "root" else f"/home/{user}"
    done = box.container.exec_run(
        ["timeout", str(seconds), "bash", "-c", command],
        user=user,
        environment={"HOME": home, **(environ or {})},
        workdir="/tmp",
    )
    assert isinstance(done.output, bytes)
    return int(done.exit_code or 0), done.output.decode(errors="replace")
