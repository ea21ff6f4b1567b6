"""Claim: a sealed box, saved as an image, holds nobody's secrets and starts as a new box in which everything works.

`docker commit` is what the platforms' "save image" does. The module is one story; each test looks at a part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from docker.models.containers import Container
from docker.models.images import Image

from hermitcrab.build import compare
from hermitcrab.build.engine import Engine
from hermitcrab.matrix import Combo
from tests.box import machine
from tests.box.conftest import Start
from tests.box.machine import Box, public, ssh, told
from tests.box.planted import ASKED, NAMED, TAKEN, WORK, Plant
from tests.image import scan

SAVED: Final = "hermitcrab-test:saved"
PLANTS: Final = (*TAKEN, *ASKED, NAMED)
INCLUDE: Final = tuple(word for plant in ASKED for word in ("--include", plant.row))
EVER: Final = 1 << 40  # the saved image's times are of today
# Where the box has changed anything; the rest is the fresh image's, and its test looks at that.
FOLDERS: Final = ("/etc", "/home", "/root", "/run", "/tmp", "/var")
# What a used box has and may keep: logs that were emptied, and the user's own settings, without their secrets.
HARMLESS: Final = {"byte-compiled file", "log"}
MINE: Final = {*WORK, *(plant.path for plant in PLANTS if plant.left)}
BY_NAME: Final = {what for what, _ in scan.NAMES}
DELTA_GB: Final = 0.1


class Story(NamedTuple):
    """What `crab seal` did to the box, step by step."""

    planted: list[scan.Finding]
    before: Any
    dry: Any
    unchanged: bool
    done: Any
    left: Any
    after: Any
    host_keys: dict[str, str]


@pytest.fixture(scope="module", autouse=True)
def no_image_stays(engine: Engine) -> Iterator[None]:
    """Remove the saved image after the last box of it; the first fixture is the last to end."""
    yield
    engine.remove(SAVED)


@pytest.fixture(scope="module")
def old(serve: Start, name: str, keys: tuple[Path, Path]) -> Box:
    """A box that somebody works on, with secrets of every kind in it."""
    box = serve(name, {"PUBLIC_KEY": public(keys[0]), "RUNPOD_POD_ID": "old-pod"})
    box.ask("git", "init", "-q", "/root/code")
    machine.put(box.container, {plant.path.replace("{0}", plant.secret): plant.content for plant in PLANTS}, 0o600)
    machine.put(box.container, WORK, 0o755)
    return box


@pytest.fixture(scope="module")
def story(old: Box) -> Story:
    """Look, rehearse, do it, see what is left to the user, do that, look again."""
    host_keys, planted = machine.host_keys(old), _scan(old.container)
    before = old.crab("seal", "--check", "--json")
    snapshot = old.snapshot()
    dry = old.crab("seal", "--json")
    unchanged = old.snapshot() == snapshot
    done = old.crab("seal", "--yes", "--keys", "remove", "--json")
    left = old.crab("seal", "--check", "--json")
    machine.put(old.container, {NAMED.path: "login(os.environ['HF_TOKEN'])\n"})
    old.ask("crab", "seal", "--yes", "--keys", "remove", *INCLUDE)
    return Story(planted, before, dry, unchanged, done, left, old.crab("seal", "--check", "--json"), host_keys)


@pytest.fixture(scope="module")
def saved(old: Box, story: Story) -> Image:
    """The box's system disk, saved."""
    assert story.after.rc == 0, story.after.stdout[-3000:]
    repository, _, tag = SAVED.partition(":")
    return old.container.commit(repository=repository, tag=tag)


@pytest.fixture(scope="module")
def new(serve: Start, saved: Image, keys: tuple[Path, Path]) -> Box:
    """Another box, from the saved image, for somebody with another key."""
    assert saved.id
    return serve(saved.id, {"PUBLIC_KEY": public(keys[1]), "RUNPOD_POD_ID": "new-pod"})


def test_check_names_every_plant(story: Story) -> None:
    """Before, --check fails, and what was planted is found by the row it belongs to."""
    assert story.before.rc == 1
    found = {(item["row"], item["path"]) for item in told(story.before)["items"]}
    assert [plant for plant in PLANTS if not _is_found(plant.row, plant.path, found)] == []


def test_the_scan_finds_every_plant(story: Story) -> None:
    """What the saved image is searched with does find each secret where it lies."""
    found = {finding.what for finding in story.planted}
    assert [plant for plant in PLANTS if _needle(plant) not in found] == []


def test_without_yes_nothing_changes(story: Story) -> None:
    """The plan has the bytes of each item, and the disk is as it was."""
    assert story.dry.rc == 0
    assert story.unchanged
    removed = [item for item in told(story.dry)["items"] if item["decision"] == "remove"]
    assert all(item["bytes"] > 0 for item in removed if item["clean"] == "delete")


def test_yes_leaves_what_it_asks_about(story: Story) -> None:
    """Work and what may be work stays; of that the secrets make --check fail, and nothing else does."""
    assert story.done.rc == 0
    assert story.left.rc == 1
    assert {item["row"] for item in told(story.left)["items"] if item["decision"] != "keep"} == {
        *(plant.row for plant in ASKED),
        NAMED.row,
    }


def test_afterwards_check_passes(story: Story) -> None:
    """When the user has dealt with what was left to him."""
    assert told(story.after)["passed"] is True
    assert story.after.rc == 0


def test_the_saved_image_holds_no_secret(engine: Engine, old: Box, saved: Image) -> None:
    """Of all that is not the fresh image's: none of the planted, and nothing that such an image may not hold."""
    changed = {str(row["Path"]) for row in old.container.diff()}
    container = engine.client.containers.create(saved, network_mode=engine.network)
    try:
        findings = _scan(container)
    finally:
        container.remove(force=True)
    assert [path for path in changed if not path.startswith(FOLDERS) and not _is_pythons(path, changed)] == []
    assert [finding for finding in findings if f"/{finding.path}" in changed and not _is_fine(finding)] == []


def test_the_saved_image_is_no_larger(combo: Combo, saved: Image) -> None:
    """The budget of its row, and little more for what a used box has."""
    assert sum(row["Size"] for row in saved.history()) / 1e9 <= combo.disk_gb + DELTA_GB
    assert saved.history()[0]["Size"] / 1e9 <= DELTA_GB


def test_the_new_box_has_host_keys_of_its_own(story: Story, new: Box) -> None:
    """No two boxes of one saved image can be taken for each other."""
    made = machine.host_keys(new)
    assert made.keys() == story.host_keys.keys() == {"ssh-ed25519", "ssh-rsa"}
    assert all(made[kind] != story.host_keys[kind] for kind in made)


def test_only_the_new_key_opens_it(new: Box, keys: tuple[Path, Path]) -> None:
    """With --keys remove the one who saved the image cannot enter other people's boxes."""
    assert ssh(new, keys[1], "printenv RUNPOD_POD_ID").stdout == "new-pod\n"
    assert "Permission denied" in ssh(new, keys[0], "true").stderr


def test_everything_works(new: Box, combo: Combo, keys: tuple[Path, Path]) -> None:
    """All over SSH: torch, tmux, git, pip, the hooks and crab itself; and the work is there."""
    said = ssh(new, keys[1], "python -c 'import torch; print(torch.__version__, torch.ones(2).sum().item())'")
    assert said.stdout.split("+")[0].split()[0] == combo.torch, said
    assert new.ask("crab", "platform").startswith("platform       RunPod")
    assert new.crab("check", "--quick").rc == 3
    assert new.shell("tmux new-session -d; tmux kill-server; git -C /root/code remote") == "o"
    new.ask("pip", "check")
    assert new.host.file("/run/hooked").exists
    assert [path for path, text in WORK.items() if new.read(path) != text] == []
    assert [plant.path for plant in PLANTS if plant.left and plant.left not in new.read(plant.path)] == []


def test_nothing_is_armed(new: Box) -> None:
    """No deadline, no machine id of another box, nobody's variables."""
    assert new.shell("ls -A /var/lib/hermitcrab 2>/dev/null || true") == ""
    assert new.shell("cat /etc/machine-id") == ""
    assert "old-pod" not in new.shell("cat /root/.config/hermitcrab/session.sh")


def _scan(container: Container) -> list[scan.Finding]:
    """Look through the folders that the box has changed."""
    foreign = {_needle(plant): plant.secret.encode() for plant in PLANTS}
    findings: list[scan.Finding] = []
    for folder in FOLDERS:
        chunks, _ = container.get_archive(folder, chunk_size=1 << 20)
        findings += scan.scan(compare.stream(chunks), epoch=EVER, foreign=foreign)
    return findings


def _needle(plant: Plant) -> str:
    """What the scan calls a planted secret."""
    return f"{plant.row} of {plant.path}"


def _is_found(row: str, path: str, found: set[tuple[str, str]]) -> bool:
    """Whether a row found the path, or the folder that it goes with."""
    return any(row == name and f"{path}/".startswith(f"{place}/") for name, place in found)


def _is_fine(finding: scan.Finding) -> bool:
    """Whether a finding on the saved image is none."""
    return finding.what in HARMLESS or (f"/{finding.path}" in MINE and finding.what in BY_NAME)


def _is_pythons(path: str, changed: set[str]) -> bool:
    """Whether a changed path is a byte-compiled file, or only the way to what else was changed."""
    return "__pycache__" in path or any(other.startswith(f"{path}/") for other in changed)
