"""Caches go to the data disk when there is one, and never against the user's will."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from hermitcrab.box import caches, layout, platform, setup

NAMES = [*(name for name, _ in caches.CACHES), "UV_LINK_MODE", "HF_TOKEN_PATH"]


def told(disk: Path, place: Path, **environ: str) -> dict[str, str]:
    """The cache variables of a shell that has read the lines twice."""
    (place / "caches.sh").write_bytes(caches.render(str(disk)))
    script = ". ./caches.sh; . ./caches.sh; env"
    done = subprocess.run(
        ["sh", "-euc", script], cwd=place, env={"PATH": "/usr/bin:/bin", "HOME": str(place), **environ},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stderr, "crab_caches" in done.stdout) == ("", False)
    return {
        name: value for name, _, value in (line.partition("=") for line in done.stdout.splitlines()) if name in NAMES
    }


@pytest.mark.parametrize("name", ["disk", "my disk's $(touch RAN)"])
def test_every_tool_s_cache_is_on_the_disk(name: str, tmp_path: Path) -> None:
    """Whatever its path is called."""
    disk = tmp_path / name
    disk.mkdir()

    assert told(disk, tmp_path) == {
        "PIP_CACHE_DIR": f"{disk}/.cache/pip",
        "UV_CACHE_DIR": f"{disk}/.cache/uv",
        "HF_HOME": f"{disk}/.cache/huggingface",
        "TORCH_HOME": f"{disk}/.cache/torch",
        "UV_LINK_MODE": "copy",
    }
    assert not (tmp_path / "RAN").exists()


def test_what_is_set_already_stays(tmp_path: Path) -> None:
    """The user's choice, or the platform's."""
    found = told(tmp_path, tmp_path, HF_HOME="/mine", UV_LINK_MODE="symlink")

    assert (found["HF_HOME"], found["UV_LINK_MODE"]) == ("/mine", "symlink")
    assert found["PIP_CACHE_DIR"].startswith(str(tmp_path))


def test_a_disk_that_is_gone_moves_nothing(tmp_path: Path) -> None:
    """An image started without its data disk falls back to the tools' own places."""
    assert told(tmp_path / "gone", tmp_path) == {}


def test_a_token_that_is_there_is_still_found(tmp_path: Path) -> None:
    """HF_HOME moves the token's place too; whoever chose another HF_HOME has it there."""
    token = tmp_path / ".cache/huggingface/token"
    token.parent.mkdir(parents=True)
    token.touch()

    assert told(tmp_path, tmp_path)["HF_TOKEN_PATH"] == str(token)
    assert "HF_TOKEN_PATH" not in told(tmp_path, tmp_path, HF_HOME="/mine")


def disk_of(path: str | None, root: Path, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Ask for the data disk of a machine that has this one."""
    found = SimpleNamespace(data=None if path is None else SimpleNamespace(path=path))
    monkeypatch.setattr(platform, "detect", lambda *_: found)
    return caches.data_disk(root, {})


def test_the_data_disk_is_the_platform_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None when there is none, when it is the system disk, or when it is not there to be written to."""
    (tmp_path / "data").mkdir()

    assert disk_of("/data", tmp_path, monkeypatch) == "/data"
    assert disk_of(None, tmp_path, monkeypatch) is None
    assert disk_of("/", tmp_path, monkeypatch) is None
    assert disk_of("/not/mounted", tmp_path, monkeypatch) is None


def test_a_read_only_data_disk_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would make every install fail."""
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)

    assert disk_of("/data", tmp_path, monkeypatch) is None


@pytest.mark.parametrize("disk", [None, "/data"])
def test_setup_writes_the_lines_only_where_a_disk_is(
    disk: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command itself."""
    monkeypatch.setattr(caches, "data_disk", lambda *_: disk)
    box = layout.Box(tmp_path, tmp_path / "root", {})
    setup.run(setup._parser().parse_args([]), box, tmp_path / ".ssh/authorized_keys")
    written = box.own / "caches.sh"

    assert (written.read_bytes() if written.exists() else None) == (caches.render(disk) if disk else None)
