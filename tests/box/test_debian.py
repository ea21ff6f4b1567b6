"""Claim: the box's part of the package runs where hermitcrab's image is not: Debian 11, 12 and 13 without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from hermitcrab import __version__
from hermitcrab.build import wheel
from hermitcrab.build.engine import Engine
from hermitcrab.errors import UserError
from tests.box import debian, machine
from tests.box.conftest import Start
from tests.box.debian import SUITES, Suite
from tests.box.machine import Box, public, told

CRAB: Final = '#!/bin/sh\nPYTHONPATH=/opt/crab exec python3 -m hermitcrab.cli "$@"\n'
LISTS: Final = "find /var/lib/apt/lists -type f"
MINE: Final = "alias ll='ls -l'\r\n# no newline at the end"


@pytest.fixture(scope="module", params=SUITES, ids=lambda suite: f"debian{suite.version}")
def suite(request: pytest.FixtureRequest) -> Suite:
    """Each Debian in turn."""
    found: Suite = request.param
    return found


@pytest.fixture(scope="module")
def box(start: Start, engine: Engine, suite: Suite) -> Box:
    """A box of that Debian, with the wheel unpacked."""
    try:
        name = debian.made(engine, suite)
    except UserError as error:
        pytest.skip(str(error))
    box = start(name, ["sleep", "infinity"])
    machine.put(box.container, {f"/opt/{wheel.NAME}": wheel.box_wheel()})
    machine.put(box.container, {"/usr/local/bin/crab": CRAB}, 0o755)
    box.ask("python3", "-m", "zipfile", "-e", f"/opt/{wheel.NAME}", "/opt/crab")
    return box


def test_it_is_that_python(box: Box, suite: Suite) -> None:
    """The test means what its name says, and crab starts."""
    assert box.ask("python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])") == suite.python
    assert box.ask("crab", "--version") == f"crab {__version__}"
    assert all(command in box.ask("crab", "--help") for command in ("check", "entry", "platform", "seal", "setup"))


def test_platform(box: Box) -> None:
    """A container of nobody's."""
    found = told(box.crab("platform", "--json"))
    assert (found["platform"], found["kind"]) == ("unknown", "container")
    assert "confidence     none" in box.ask("crab", "platform")


def test_check(box: Box) -> None:
    """Neither GPU nor torch: skipped, with a warning that there is no torch, and no pass."""
    done = box.crab("check", "--json")
    check = told(done)
    assert (done.rc, check["verdict"]) == (3, "skip")
    status = {row["id"]: row["status"] for row in check["findings"]}
    assert (status["gpu.count"], status["torch.build"], status["kernel.fp32"]) == ("skip", "warn", "skip")


def test_setup_and_back(box: Box, keys: tuple[Path, Path]) -> None:
    """Settings and a key come in, sshd takes its own, a second run changes nothing, and --undo takes them back."""
    machine.put(box.container, {"/root/.bashrc": MINE, "/key.pub": public(keys[0])})
    box.shell("mkdir -p /run/sshd")
    before = box.snapshot()
    box.ask("crab", "setup", "--key", "/key.pub")
    once = box.snapshot()
    assert box.read("/root/.bashrc").endswith(MINE)
    assert "clientaliveinterval 30" in box.ask("/usr/sbin/sshd", "-T")
    assert box.shell("bash -lc 'echo $LANG'") == "C.UTF-8"
    assert box.ask("crab", "setup", "--key", "/key.pub") == "nothing to change"
    assert box.snapshot() == once
    box.ask("crab", "setup", "--undo")
    assert [line for line in box.snapshot() ^ before if "authorized_keys" not in line] == []


def test_seal(box: Box) -> None:
    """The package lists that apt left and a token make --check fail; --yes takes them; nobody would make host keys."""
    machine.put(box.container, {"/root/.netrc": "machine x password y\n"})
    assert box.shell(LISTS)
    assert box.crab("seal", "--check").rc == 1
    assert box.crab("seal").rc == 0
    assert box.host.file("/root/.netrc").exists
    box.ask("crab", "seal", "--yes")
    assert not box.host.file("/root/.netrc").exists
    assert box.shell(LISTS) == ""
    assert box.shell("ls /etc/ssh/ssh_host_rsa_key")
    assert "host-keys" in box.crab("seal", "--check").stdout
    assert box.crab("seal", "--check", "--keep", "host-keys").rc == 0
