"""Plain Debian in several versions, as other people's boxes are: with Python and an SSH server, without torch.

Made from the package archive once, as images that the engine keeps; `./invoke engine --purge` deletes
them with the engine's data.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from hermitcrab import matrix as matrices
from hermitcrab.build import base as bases
from hermitcrab.build import image
from hermitcrab.build.engine import Engine
from hermitcrab.errors import UserError
from hermitcrab.matrix import Base
from tests.image import boxes

INSTALL: Final = (
    "export DEBIAN_FRONTEND=noninteractive; apt-get update -q && "
    "apt-get install -qy --no-install-recommends python3 openssh-server"
)


class Suite(NamedTuple):
    """A Debian release and its Python."""

    version: int
    name: str
    python: str


SUITES: Final = (Suite(11, "bullseye", "3.9"), Suite(12, "bookworm", "3.11"), Suite(13, "trixie", "3.13"))


def made(engine: Engine, suite: Suite) -> str:
    """The image of a suite, made unless it is there; UserError says why it cannot be had."""
    tag = f"hermitcrab-test:debian{suite.version}"
    if engine.image(tag) is None:
        base = Base(id=f"debian{suite.version}", reference="", digest="", distro="debian", suite=suite.name, python="")
        source = bases.resolve(engine, base, "packages", epoch=matrices.load().epoch, say=print)
        _install(engine, source, tag)
    return tag


def _install(engine: Engine, source: str, tag: str) -> None:
    both = (*image.PROXIES, *map(str.lower, image.PROXIES))
    proxies = {name: os.environ[name] for name in both if name in os.environ}
    command = ["sh", "-c", INSTALL]
    container = engine.client.containers.create(source, command, network_mode=engine.network, environment=proxies)
    try:
        done = boxes.finish(container)
        if done.status:
            reason = next((line for line in done.err.decode().splitlines() if line.startswith("E:")), "no word of why")
            raise UserError(f"python3 cannot be installed in {source}: {reason}")
        repository, _, version = tag.partition(":")
        # Without the proxies, which are this machine's own.
        container.commit(repository=repository, tag=version, conf={"Env": []})
    finally:
        container.remove(force=True)
