"""Boxes under test: containers of one built combo, and of plain Debian with the box's part of the package.

What is not built, or no engine, is a skip that names the command to run. ``--combo`` chooses.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import testinfra

from hermitcrab import matrix as matrices
from hermitcrab.build import engine as engines
from hermitcrab.build import image
from hermitcrab.build.engine import Engine
from hermitcrab.errors import UserError
from hermitcrab.matrix import Combo
from tests.box import machine
from tests.box.machine import Box
from tests.image.boxes import answers_ssh, free_port, until
from tests.image.conftest import docker_cli, missing

__all__ = ["docker_cli"]  # a fixture

Start = Callable[..., Box]


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The engine that holds the images; tests never start one."""
    try:
        return engines.find(start=False)
    except UserError as error:
        pytest.skip(f"{error}; build an image with: ./invoke build --cuda 12.1")


@pytest.fixture(scope="session")
def combo(pytestconfig: pytest.Config) -> Combo:
    """The first built combo of the chosen ones: what the box does is the same in all."""
    chosen = pytestconfig.getoption("combo")
    rows = [row for row in matrices.load().combos if row.id in chosen or not chosen]
    if not rows:
        raise pytest.UsageError(f"--combo {chosen[0]!r} is no combo; see ./invoke list")
    found = next((row for row in rows if not missing(row)), None)
    if found is None:
        pytest.skip(missing(rows[0]))
    return found


@pytest.fixture(scope="session")
def name(combo: Combo) -> str:
    """The image's name in the engine."""
    return image.tag(combo)


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two private keys, made now."""
    if not shutil.which("ssh") or not shutil.which("ssh-keygen"):
        pytest.skip("no ssh here; get it with: apt-get install openssh-client")
    folder = tmp_path_factory.mktemp("keys")
    return machine.make_key(folder / "one"), machine.make_key(folder / "two")


@pytest.fixture(scope="module")
def start(engine: Engine) -> Iterator[Start]:
    """Start boxes that last as long as the module's tests; all are removed."""
    yield from _starter(engine)


@pytest.fixture
def start_once(engine: Engine) -> Iterator[Start]:
    """Start boxes for one test; all are removed."""
    yield from _starter(engine)


@pytest.fixture(scope="module")
def serve(start: Start, engine: Engine) -> Start:
    """Start boxes that answer SSH, with the given environment."""
    if not engine.host.startswith("unix://"):
        pytest.skip("the engine is another machine: its ports are not on this one's loopback")

    def serve(name: str, environment: dict[str, str], **options: Any) -> Box:
        port = free_port()
        published = {} if engine.network == "host" else {"ports": {f"{port}/tcp": (machine.LOOPBACK, port)}}
        box = start(name, environment={**environment, "SSH_PORT": str(port)}, **published, **options)
        until(f"sshd on port {port}", lambda: answers_ssh(port), box.container)
        return box._replace(port=port)

    return serve


def _starter(engine: Engine) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(name: str, command: list[str] | None = None, *, hooks: Any = None, **options: Any) -> Box:
            settings = {"network_mode": engine.network, "labels": {"hermitcrab.test": "box"}, **options}
            container = engine.client.containers.create(name, command, **settings)
            stack.callback(container.remove, force=True, v=True)
            for mode, files in (hooks or {}).items():
                machine.put(container, files, mode)
            container.start()
            return Box(container, testinfra.get_host(f"docker://{container.id}"))

        yield start
