"""`docker buildx`: which one is taken, and its messages in every form it writes them."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from hermitcrab.build import buildx
from hermitcrab.errors import UserError

# As 0.13 writes a message, spread over many lines; later versions write one line each.
SPREAD = """\
{
  "vertexes": [
    {
      "digest": "sha256:aa",
      "name": "[base 1/1] FROM debian",
      "started": "2026-01-01T00:00:00.5Z"
    }
  ]
}
"""
SPREAD_MESSAGE = json.loads(SPREAD)
ON_ONE_LINE = '{"statuses":[{"id":"extracting","vertex":"sha256:aa"}]}\n'
ON_ONE_LINE_MESSAGE = json.loads(ON_ONE_LINE)


def docker(folder: Path, body: str) -> Path:
    """A fake docker command in a folder of its own."""
    folder.mkdir()
    path = folder / "docker"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def read(text: str) -> list[buildx.Message | str]:
    """What a stream is taken for."""
    return list(buildx.messages(text.splitlines(keepends=True)))


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("github.com/docker/buildx v0.13.1 788433953af10f2a698f5c07611dddce2e08c7a0", (0, 13)),
        ("github.com/docker/buildx 0.13.1+ds1-3+b2 ", (0, 13)),
        ("buildx v0.33.0-desktop.1", (0, 33)),
        ("github.com/docker/buildx v1.0.0-rc1 abc", (1, 0)),
        ("buildah 1.33.7", ()),
        ("github.com/docker/buildx", ()),
        ("", ()),
    ],
)
def test_the_version_is_read_as_every_packager_writes_it(said: str, version: tuple[int, ...], tmp_path: Path) -> None:
    """Docker's, Debian's and Desktop's; what is no buildx has none."""
    program = docker(tmp_path / "bin", f"echo '{said}'")

    assert buildx._version(str(program), os.environ) == version


def test_a_docker_without_buildx_is_passed_over(tmp_path: Path) -> None:
    """The first on the PATH that can build is taken, not the first."""
    docker(tmp_path / "none", "echo \"docker: 'buildx' is not a docker command.\" >&2; exit 1")
    docker(tmp_path / "broken", "").write_bytes(b"\x7fELF of another machine")
    docker(tmp_path / "old", "echo github.com/docker/buildx v0.12.1 x")
    good = docker(tmp_path / "good", "echo github.com/docker/buildx v0.13.0 x")
    path = os.pathsep.join(
        ["", *(str(tmp_path / name) for name in ("empty", "none", "broken", "old", "good")), os.environ["PATH"]]
    )

    assert buildx.command({**os.environ, "PATH": path}) == str(good)


@pytest.mark.parametrize("folder", ["none", "empty"])
def test_no_buildx_at_all_says_what_to_install(folder: str, tmp_path: Path) -> None:
    """One line with the package's names."""
    docker(tmp_path / "none", "exit 1")

    with pytest.raises(UserError, match=r"docker-buildx .*docker-buildx-plugin"):
        buildx.command({"PATH": str(tmp_path / folder)})


def test_messages_in_both_forms() -> None:
    """Spread over lines, on one line, and plain lines between and around them."""
    assert read(SPREAD * 2 + ON_ONE_LINE * 2) == [SPREAD_MESSAGE] * 2 + [ON_ONE_LINE_MESSAGE] * 2
    text = f"warning: old\n{SPREAD}between\n{ON_ONE_LINE}ERROR: last"
    assert read(text) == ["warning: old", SPREAD_MESSAGE, "between", ON_ONE_LINE_MESSAGE, "ERROR: last"]


@pytest.mark.parametrize("garbage", ["{not json\n", "{not json\n}\n", "{\n  half\n", "}\n", "[1]\n", "{}x\n", "\n"])
@pytest.mark.parametrize("then", [SPREAD, ON_ONE_LINE])
def test_garbage_is_kept_as_text_and_swallows_nothing(garbage: str, then: str) -> None:
    """What is no message can still be the reason of a failure; the next message is read."""
    *before, last = read(garbage + then)

    assert last == json.loads(then)
    assert "".join(str(text) for text in before).replace("\n", "") == garbage.replace("\n", "")


def test_a_message_cut_off_is_text() -> None:
    """The stream of a killed build ends anywhere."""
    assert read(SPREAD[:30]) == [SPREAD[:30]]
    assert read("") == []


def test_run_shows_messages_and_returns_all_that_was_said(tmp_path: Path) -> None:
    """Log lines and errors inside messages count as said, like plain lines."""
    said = base64.b64encode(b"one\ntwo\n").decode()
    log = json.dumps({"logs": [{"vertex": "sha256:aa", "stream": 1, "data": said}]})
    fault = json.dumps({"vertexes": [{"digest": "sha256:aa", "name": "x", "error": "exit code: 1"}]})
    program = docker(tmp_path / "bin", f"echo plain >&2; echo '{log}' >&2; echo '{fault}' >&2; echo out; exit 3")
    shown: list[dict[str, Any]] = []

    status, lines = buildx.run([str(program)], os.environ, shown.append)

    assert status == 3
    assert lines == ["plain", "one", "two", "exit code: 1"]
    assert shown == [json.loads(log), json.loads(fault)]


def test_a_display_that_fails_ends_the_build(tmp_path: Path) -> None:
    """Ctrl-C while a message is shown leaves no build behind."""
    pid = tmp_path / "pid"
    program = docker(tmp_path / "bin", f"echo $$ > {pid}; echo '{{}}' >&2; exec sleep 60")

    def interrupted(_: buildx.Message) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        buildx.run([str(program)], os.environ, interrupted)
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
