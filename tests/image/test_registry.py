"""A registry of our own, on loopback: what is pushed can be had again by its digest, and what is not is named."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermitcrab import matrix as matrices
from hermitcrab.build import archive, base
from hermitcrab.build import engine as engines
from hermitcrab.build.engine import Engine
from hermitcrab.errors import UserError
from tests.image import conftest

CONFIG = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""
BASE = matrices.load().bases["debian12"]
NOWHERE = "sha256:" + "0" * 64


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The engine that holds a base made from packages."""
    found = conftest.find_engine()
    if isinstance(found, str):
        pytest.skip(f"{found}; start one with: ./invoke build --cuda 12.1")
    if found.image(base.tag(BASE)) is None:
        pytest.skip("no base made from packages here; make one with: ./invoke build --cuda 12.1 --base packages")
    return found


@pytest.fixture(scope="module")
def registry(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a registry from the Debian archive."""
    host = archive.host()
    if not engine.embedded or host.distro != "debian":
        pytest.skip("needs the embedded engine on Debian: it shares our loopback, and the archive has a registry")
    folder = tmp_path_factory.mktemp("registry")
    packages = archive.fetch(folder / "apt", archive.sources(host.distro, host.suite), ["docker-registry"])
    archive.unpack(packages, folder / "root")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "config.yml").write_text(CONFIG.format(folder=folder, port=port))
    command = [str(folder / "root/usr/bin/docker-registry"), "serve", str(folder / "config.yml")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _wait_for(port)
        yield f"127.0.0.1:{port}"
        process.terminate()


@pytest.fixture(scope="module")
def pushed(engine: Engine, registry: str) -> Iterator[str]:
    """The reference, by digest, of a base that was pushed."""
    repository = f"{registry}/debian"
    engine.client.images.get(base.tag(BASE)).tag(repository, tag="slim")
    yield f"{repository}:slim@{engine.push(f'{repository}:slim')}"
    engine.remove(f"{repository}:slim")


def test_push_gives_the_digest_the_registry_keeps(engine: Engine, pushed: str) -> None:
    """A pushed image is found by the digest that push returned."""
    engine.registry_has(pushed)


def test_base_from_a_registry_is_taken_by_digest(engine: Engine, pushed: str) -> None:
    """`--base registry` gives the pinned reference, and an image is built from it."""
    reference, _, digest = pushed.partition("@")
    row = dataclasses.replace(BASE, reference=reference, digest=digest)

    assert base.resolve(engine, row, "registry", epoch=0, say=pytest.fail) == pushed


def test_build_from_a_registry_base(engine: Engine, pushed: str, tmp_path: Path) -> None:
    """BuildKit pulls a base by digest."""
    (tmp_path / "Dockerfile").write_text(f"FROM {pushed}\nRUN true\n")
    tag = "hermitcrab-test:registry"
    engine.build(tmp_path, tag=tag, arguments={}, secrets={}, cache=False, show=lambda _: None)

    assert engine.image(tag) is not None
    engine.remove(tag)


@pytest.mark.usefixtures("pushed")
def test_a_withdrawn_base_is_named_before_the_build(engine: Engine, registry: str) -> None:
    """A digest the registry does not have is one line, not a traceback; `registry` takes no other way."""
    row = dataclasses.replace(BASE, reference=f"{registry}/debian:slim", digest=NOWHERE)

    with pytest.raises(UserError, match=r"withdrawn|no such|not have|unknown") as caught:
        base.resolve(engine, row, "registry", epoch=0, say=pytest.fail)

    assert "\n" not in str(caught.value)


def test_a_silent_registry_is_no_traceback(engine: Engine) -> None:
    """A registry that does not answer is named, within the time `auto` gives it."""
    row = dataclasses.replace(BASE, reference="127.0.0.1:9/debian:slim", digest=NOWHERE)
    started = time.monotonic()

    with pytest.raises(UserError):
        engine.registry_has(row.image, timeout=engines.PROBE_S)

    assert time.monotonic() - started < engines.PROBE_S + 5


def _wait_for(port: int) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail("the registry did not start")
