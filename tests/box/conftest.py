"""Boxes under test: containers of one built combo, and of plain Debian with the box's part of the package.

What is not built, or no engine, is a skip that names the command to run. ``--combo`` chooses.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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
from tests.box import bootstrapping, machine
from tests.box.bootstrapping import First, Ready, Served
from tests.box.debian import SUITES, Suite
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
    with _starter(engine) as start:
        yield start


@pytest.fixture
def start_once(engine: Engine) -> Iterator[Start]:
    """Start boxes for one test; all are removed."""
    with _starter(engine) as start:
        yield start


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


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The small script, served."""
    with pytest.MonkeyPatch.context() as patch:
        scripts = {"small": bootstrapping.small(patch, tmp_path_factory.mktemp("locks"))}
    with bootstrapping.serving(scripts) as found:
        yield found


@pytest.fixture(scope="session")
def first(engine: Engine, served: Served) -> Iterator[Callable[[Suite], First]]:
    """Do the first run in a bare box of a suite, once: what apt takes is not taken again."""
    if engine.network != "host":
        pytest.skip("the engine's containers have a network of their own: this machine's loopback is not theirs")
    with _starter(engine) as start:

        @functools.cache
        def first(suite: Suite) -> First:
            try:
                name = bootstrapping.bare(engine, suite)
            except UserError as error:
                pytest.skip(str(error))
            box = start(name, ["sleep", "infinity"], **bootstrapping.options())
            command = f"{served.curl()} | bash -s -- {bootstrapping.WORDS}"
            done = First(box, *bootstrapping.run(box, command, seconds=500))
            if not done.status:
                box.container.commit(*_kept("ran", suite).split(":"))
            return done

        yield first
    for suite in SUITES:
        engine.remove(_kept("ran", suite))


@pytest.fixture(scope="session")
def ready(engine: Engine, first: Callable[[Suite], First], served: Served) -> Iterator[Ready]:
    """Start boxes with all packages, after `--uninstall`, for what is not about apt."""
    made = functools.cache(lambda suite: _ready(engine, first(suite), suite, served))

    def ready(start: Start, suite: Suite = SUITES[1], **options: Any) -> Box:
        return start(made(suite), ["sleep", "infinity"], **{**bootstrapping.options(), **options})

    yield ready
    for suite in SUITES:
        engine.remove(_kept("ready", suite))


def _ready(engine: Engine, first: First, suite: Suite, served: Served) -> str:
    """Make the image that such boxes start from."""
    assert first.status == 0, first.said
    with _starter(engine) as start:
        box = start(_kept("ran", suite), ["sleep", "infinity"], **bootstrapping.options())
        status, said = bootstrapping.run(box, f"{served.curl()} | sh -s -- --uninstall && {bootstrapping.USERS}")
        assert status == 0, said
        box.container.commit(*_kept("ready", suite).split(":"))
    return _kept("ready", suite)


def _kept(what: str, suite: Suite) -> str:
    """The name of an image that lasts as long as these tests, and is not another session's."""
    return f"hermitcrab-test:{what}{suite.version}-{os.getpid()}"


@contextmanager
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
