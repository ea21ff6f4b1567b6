"""Claim: `crab setup` adds what the running box knows, keeps what the user wrote, and takes it all back."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from hermitcrab.build.engine import Engine
from tests.box import machine
from tests.box.conftest import Start
from tests.box.machine import Box, public
from tests.image.boxes import until

DISK: Final = "/root/autodl-tmp"
THEIRS: Final = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "B" * 43 + " theirs"  # no newline at its end
MINE: Final = {
    "/root/.bashrc": "alias ll='ls -l'\r\nexport PS1='> '\n# é漢 no newline at the end",
    "/root/.tmux.conf": "set -g mouse off\n",
    "/root/.gitconfig": "[user]\n\tname = me\n",
    "/root/.ssh/authorized_keys": THEIRS,
}
PAST: Final = "/root/.ssh/authorized_keys"  # --undo leaves it: it may be the way in


@pytest.fixture(scope="module")
def box(start: Start, name: str, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Box:
    """A box of AutoDL's kind, with a data disk, that somebody has lived in."""
    if not engine.host.startswith("unix://"):
        pytest.skip("the engine is another machine: this one's folders cannot be mounted there")
    mounts = {str(tmp_path_factory.mktemp("disk")): {"bind": DISK, "mode": "rw"}}
    environment = {"AutoDLContainerUUID": "it's me", "HTTP_PROXY": "http://me:secret@proxy.example:1"}
    box = start(name, environment=environment, volumes=mounts)
    until("the entry's last word", lambda: b"waiting, without sshd" in box.container.logs(), box.container)
    machine.put(box.container, MINE)
    return box


def test_a_dry_run_changes_nothing(box: Box) -> None:
    """It tells the plan and no more."""
    before = box.snapshot()
    assert "this was a dry run" in box.ask("crab", "setup", "--dry-run")
    assert box.snapshot() == before


def test_twice_and_back(box: Box, keys: tuple[Path, Path]) -> None:
    """What the user wrote stays, a second run changes nothing, and --undo gives back every byte but the key."""
    before = box.snapshot()
    machine.put(box.container, {f"{DISK}/laptop.pub": f"{public(keys[0])}\r\n"})
    assert "kept back as secrets: HTTP_PROXY" in box.ask("crab", "setup", "--key", f"{DISK}/laptop.pub")
    once = box.snapshot()
    assert all(box.read(path).endswith(text) for path, text in MINE.items() if path != PAST)
    assert box.read(PAST) == f"{THEIRS}\n{public(keys[0])}\n"
    _sessions_are_right(box)
    assert box.ask("crab", "setup", "--key", f"{DISK}/laptop.pub").endswith("nothing to change")
    assert box.snapshot() == once
    box.ask("crab", "setup", "--undo")
    assert {line for line in box.snapshot() ^ before if PAST not in line} == set()


def test_home_comes_from_passwd(box: Box) -> None:
    """Without HOME, or with / for it, root's own home is set up and nothing is written to /."""
    for home in ("-u HOME", "HOME=/"):
        before = box.shell("ls -A /")
        assert "/root/.config/hermitcrab/caches.sh" in box.shell(f"env {home} crab setup")
        box.shell(f"env {home} crab setup --undo")
        assert box.shell("ls -A /") == before


def test_wrong_use_is_two(box: Box) -> None:
    """A key that is none is refused before anything is changed, and only an image's root may be --system."""
    before = box.snapshot()
    machine.put(box.container, {f"{DISK}/none.pub": "ssh-ed25519 AAAA"})
    done = box.crab("setup", "--key", f"{DISK}/none.pub")
    assert (done.rc, len(done.stderr.splitlines())) == (2, 1)
    assert "cut short" in done.stderr
    assert box.snapshot() == before


def _sessions_are_right(box: Box) -> None:
    """The caches are on the data disk, PID 1's variables are there, and no tool minds its settings."""
    words = "env -i HOME=/root TERM=xterm-256color bash -lc 'printenv HF_HOME TORCH_HOME AutoDLContainerUUID'"
    assert box.shell(words).splitlines() == [f"{DISK}/.cache/huggingface", f"{DISK}/.cache/torch", "it's me"]
    assert box.shell("bash -ic 'printenv UV_CACHE_DIR' 2>/dev/null") == f"{DISK}/.cache/uv"
    tmux = "export TMUX_TMPDIR=/dev/shm; tmux -f /dev/null new-session -d; tmux source-file ~/.tmux.conf; "
    assert box.shell(f"{tmux} tmux kill-server") == ""
    assert box.ask("git", "config", "--global", "user.name") == "me"
    assert box.ask("git", "config", "pull.ff") == "only"
