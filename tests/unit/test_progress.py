"""What a user sees of a build, from messages as BuildKit sends them."""

from __future__ import annotations

import base64
import io
import json
import time
from typing import Any

import pytest
from rich.console import Console

from hermitcrab import matrix as matrices
from hermitcrab.build import progress, render
from hermitcrab.build.progress import STAGES, BuildProgress


def vertex(name: str, **state: object) -> dict[str, Any]:
    """A message about one step; its digest is made from its name."""
    return {"vertexes": [{"digest": f"sha256:{name}", "name": name, **state}]}


def log(name: str, text: str) -> dict[str, Any]:
    """A message with what a step said."""
    data = base64.b64encode(text.encode()).decode()
    return {"logs": [{"vertex": f"sha256:{name}", "stream": 2, "data": data, "timestamp": "2026-01-01T00:00:00Z"}]}


WHEELS = "[wheels 3/3] RUN <<SH (set -eu...)"
RECORDED: list[dict[str, Any]] = [
    vertex("[internal] load build definition from Dockerfile", started="1", completed="1"),
    vertex("[base 1/1] FROM docker.io/library/hermitcrab-base:debian12", started="1", completed="1", cached=True),
    vertex("[tools 1/1] RUN <<SH (set -eu...)", started="1", completed="1", cached=True),
    vertex("[wheels 1/3] FROM x", started="1"),
    vertex("[wheels 1/3] FROM x", started="1", completed="1"),
    vertex("[wheels 2/3] COPY requirements.lock /requirements.lock", started="1", completed="1"),
    vertex(WHEELS, started="1"),
    log(WHEELS, "Downloading torch (760.1MiB)\nDownloading numpy (17.4MiB)\nDownloading nvidia-"),
    log(WHEELS, "cudnn (1.0GiB)\n Downloaded numpy\n"),
    log(WHEELS, " Downloaded torch\n Downloaded nvidia-cudnn\n"),
    log("[unknown 1/1]", "not a step of ours\n"),
    vertex(WHEELS, started="1", completed="2"),
    vertex("exporting to image", started="1"),
    {"statuses": [{"id": "exporting layers", "vertex": "sha256:exporting to image"}]},
    vertex("exporting to image", started="1", completed="2"),
    {"vertexes": None, "logs": None},
    {},
]


def shown(messages: list[dict[str, Any]], *, terminal: bool = False) -> str:
    """All that is written while these messages come."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100)
    with BuildProgress(console) as display:
        for message in messages:
            display.show(json.loads(json.dumps(message)))
    return file.getvalue()


def test_plain_lines_where_no_terminal_is() -> None:
    """One when a stage begins, one with bytes and time when it ends; nothing for what was cached."""
    lines = shown(RECORDED).splitlines()

    assert [line.strip() for line in lines] == [
        "torch and its wheels ...",
        "torch and its wheels 1.9 GB of 1.9 GB: 0 s",
        "storing the image ...",
        "storing the image: 0 s",
    ]


def test_a_rebuild_of_nothing_says_nothing() -> None:
    """All cached, from first to last, whether told in one message or in two."""
    for state in ({"started": "1"}, {"started": "1", "completed": "1"}):
        assert shown([vertex(f"[{stage} 1/1] RUN", cached=True, **state) for stage in STAGES]) == ""


def test_the_time_is_the_stage_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the start of its first step to the end of its last, waiting for other stages not counted before."""
    clock = iter([100.0, 167.4])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    messages = [
        vertex("[system 1/2] RUN", started="1"),
        vertex("[system 1/2] RUN", started="1", completed="1"),
        vertex("[system 2/2] RUN", started="1"),
        vertex("[system 2/2] RUN", started="1", completed="1"),
    ]

    assert shown(messages).splitlines()[-1].strip() == "system packages: 67 s"


def test_a_terminal_gets_a_display() -> None:
    """The same end lines, between the frames of a moving display."""
    said = shown(RECORDED, terminal=True)

    assert "torch and its wheels 1.9 GB of 1.9 GB: 0 s" in said
    assert "\x1b[" in said


def test_bytes_are_decimal_and_counted_once() -> None:
    """What uv tells in MiB is shown as the rest of the world counts, and a repeated line adds nothing."""
    step = progress.Step("wheels")

    assert step.bytes == ""
    assert progress._count(step, "Downloading a (1.0MiB)\nDownloading b (512.0KiB)\n")
    assert step.bytes == "0 bytes of 1.6 MB"
    assert progress._count(step, " Downloaded a\n")
    assert step.bytes == "1.0 MB of 1.6 MB"
    assert not progress._count(step, " Downloaded unheard-of\nPrepared 2 packages in 3s\n")


def test_every_stage_of_the_template_has_a_name() -> None:
    """A stage without words would run unseen."""
    matrix = matrices.load()
    text = render.dockerfile(matrix, matrices.select(matrix, "12.1"))
    stages = {line.split()[-1] for line in text.splitlines() if line.startswith("FROM ")}

    assert STAGES.keys() - {"exporting"} <= stages
    assert stages - STAGES.keys() == {"base"}  # it takes no time
