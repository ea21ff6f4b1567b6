"""Containers under test: started through the SDK, asked through testinfra or by their own command."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from docker.models.containers import Container

from hermitcrab.build import image
from hermitcrab.build.engine import Engine
from hermitcrab.matrix import Combo

START_S: Final = 30.0  # a loaded machine makes an RSA host key in some seconds


class Result(NamedTuple):
    """How a container's command ended."""

    status: int
    out: bytes
    err: bytes


def create(engine: Engine, combo: Combo, command: list[str] | None = None, **options: Any) -> Container:
    """A container of the combo's image, not started; whoever creates it removes it."""
    labels = {"hermitcrab.test": "image"}
    return engine.client.containers.create(
        image.tag(combo), command, network_mode=engine.network, labels=labels, **options
    )


def finish(container: Container, seconds: float = 120) -> Result:
    """Let the container run to its end."""
    container.start()
    status = container.wait(timeout=seconds)["StatusCode"]
    return Result(status, container.logs(stderr=False), container.logs(stdout=False))


def ask(host: Any, *words: str, seconds: int = 60) -> str:
    """What a command says inside a container; it must succeed, and in time."""
    done = attempt(host, *words, seconds=seconds)
    assert done.rc == 0, f"{' '.join(words)[:200]} ended with {done.rc}: {done.stderr[-2000:]}"
    return str(done.stdout).strip()


def attempt(host: Any, *words: str, seconds: int = 60) -> Any:
    """The result of a command inside a container, whatever it is."""
    return host.run(" ".join(["timeout", str(seconds), *(["%s"] * len(words))]), *words)


def free_port() -> int:
    """A port that nobody holds, below those that outgoing connections take in the meantime."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise AssertionError("no free port from 20000 to 30000")


def until(
    what: str, happens: Callable[[], object], container: Container | None = None, seconds: float = START_S
) -> None:
    """Wait for something; when it does not come, say what it was and what the container says."""
    end = time.monotonic() + seconds
    while not happens():
        said = container.logs()[-2000:] if container and time.monotonic() > end else b""
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s {said.decode()}"
        time.sleep(0.1)


def answers_ssh(port: int) -> bool:
    """Whether an SSH daemon greets on this machine's port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
