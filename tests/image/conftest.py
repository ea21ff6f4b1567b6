"""The images under test: every combo that is built here, one long-lived container of each.

What is not built, or no engine, is a skip that names the command to run. ``--combo`` chooses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import testinfra
from docker.models.containers import Container

from hermitcrab import matrix as matrices
from hermitcrab.build import engine as engines
from hermitcrab.build import image
from hermitcrab.build.engine import Engine
from hermitcrab.errors import UserError
from hermitcrab.matrix import Combo, Matrix
from tests.image import boxes

Start = Callable[..., Container]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``combo`` is every built combo; ``row`` is every combo there is."""
    if not {"combo", "row"} & set(metafunc.fixturenames):
        return
    rows = _chosen(metafunc.config.getoption("combo"))
    built = [row for row in rows if not missing(row)]
    if "row" in metafunc.fixturenames:
        metafunc.parametrize("row", rows, ids=lambda row: row.id)
    elif built:
        metafunc.parametrize("combo", built, ids=lambda combo: combo.id, scope="session")
    else:
        nothing = pytest.param(None, id="none", marks=pytest.mark.skip(reason=missing(rows[0])))
        metafunc.parametrize("combo", [nothing], scope="session")


def missing(combo: Combo) -> str:
    """Why there is no image of a combo to test; empty when there is one."""
    found = find_engine()
    if isinstance(found, str):
        return f"{found}; build an image with: ./invoke build --cuda {combo.cuda}"
    if found.image(image.tag(combo)) is None:
        return f"no image of {combo.id} here; build it with: ./invoke build --cuda {combo.cuda} --torch {combo.torch}"
    return ""


@pytest.fixture(scope="session")
def matrix() -> Matrix:
    """The matrix that the expected values come from."""
    return matrices.load()


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The engine that holds the images."""
    found = find_engine()
    assert isinstance(found, Engine), found
    return found


@pytest.fixture(scope="module", autouse=True)
def docker_cli() -> Iterator[None]:
    """Let testinfra's `docker exec` find the engine's own command and socket."""
    found = find_engine()
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(found, Engine):
            for name in sorted({"PATH", "DOCKER_CONFIG"} & found.environment.keys()):
                patch.setenv(name, found.environment[name])
            patch.setenv("DOCKER_HOST", found.host)
        yield


@pytest.fixture(scope="session")
def create(engine: Engine) -> Iterator[Start]:
    """Create containers that last as long as the tests; all are removed."""
    yield from _creator(engine)


@pytest.fixture
def create_once(engine: Engine) -> Iterator[Start]:
    """Create containers for one test; all are removed."""
    yield from _creator(engine)


@pytest.fixture(scope="session")
def box(create: Start, combo: Combo) -> Container:
    """The long-lived container: no command, no key."""
    container = create(combo)
    container.start()
    return container


@pytest.fixture(scope="session")
def host(box: Container) -> Any:
    """The long-lived container as testinfra sees it."""
    return testinfra.get_host(f"docker://{box.id}")


def _creator(engine: Engine) -> Iterator[Start]:
    with ExitStack() as stack:

        def create(combo: Combo, command: list[str] | None = None, **options: Any) -> Container:
            container = boxes.create(engine, combo, command, **options)
            stack.callback(container.remove, force=True, v=True)
            return container

        yield create


@functools.cache
def find_engine() -> Engine | str:
    """The engine, or the reason there is none; tests never start one."""
    try:
        return engines.find(start=False)
    except UserError as error:
        return str(error)


def _chosen(ids: list[str]) -> tuple[Combo, ...]:
    rows = matrices.load().combos
    known = [row.id for row in rows]
    if unknown := set(ids) - set(known):
        raise pytest.UsageError(f"--combo {min(unknown)!r} is none of {', '.join(known)}")
    return tuple(row for row in rows if row.id in ids or not ids)
