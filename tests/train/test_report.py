"""Claims: a report is one file that shows a run, loads and runs nothing, and cannot be used to fool its reader."""

from __future__ import annotations

import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hermitcrab import cli
from hermitcrab.train import places, report
from hermitcrab.train.journal import Journal
from hermitcrab.train.places import Run
from hermitcrab.train.report import page, phrases

START = 1_796_000_000
VOID = {"meta", "br", "line"}
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> & \x00\x1b[31m\u202egnp.exe \ud800 {}"


class Page(HTMLParser):
    """Reads a page: its tags, whether they are closed, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words = ""
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def stamp(seconds: float) -> str:
    """A time as the journal writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(START + seconds)) + ".250Z"


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write a file of lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of an hour that failed once."""
    made = Run(tmp_path / "runs/exp")
    made.folder.mkdir(parents=True)
    samples = [
        {
            "time": stamp(10 * number),
            "step": 30 * number,
            "loss": 3.0 / (number + 1),
            "rate": 3.0,
            "gpu_util": 95.0,
            "gpu_memory": 30 << 30,
            "gpu_memory_total": 40 << 30,
            "ram": 20 << 30,
            "ram_limit": 64 << 30,
            "spent": number / 80,
            "disk_free": None,
        }
        for number in range(360)
    ]
    write(made.samples, samples)
    events: list[dict[str, Any]] = [
        {"time": stamp(0), "kind": "attempt", "number": 1, "argv": ["python", "a b.py"], "resume": "auto"},
        *({"time": stamp(60 * number), "kind": "checkpoint", "step": 180 * number} for number in range(1, 30)),
        {"time": stamp(1800), "kind": "failure", "what": "hang", "reason": "no progress", "advice": ["try this"]},
        {"time": stamp(1810), "kind": "attempt", "number": 2, "argv": ["python", "a b.py"], "resume": "/ckpt/step_5"},
        {"time": stamp(3600), "kind": "ended", "verdict": "done", "reason": "finished"},
    ]
    write(made.events, events)
    state = {
        "argv": ["python", "a b.py", "--api-key", "abcdefgh12345678"],
        "verdict": "done",
        "reason": "finished",
        "step": 10_770,
        "total": 10_800,
        "attempt": 2,
        "spent": 4.5,
        "currency": "CNY",
        "synced": True,
        "sync_to": "oss:bucket",
        "poweroff": {"policy": "success", "decision": "fire", "reason": "all is safe"},
    }
    made.state.write_text(json.dumps(state))
    return made


def read(run: Run, language: str = "en") -> Page:
    """Render a run and read its page."""
    return Page(report.render(run, language).decode())


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_page_shows_the_run(run: Run, language: str) -> None:
    """Its command, its figures, its curves, its events and its end."""
    found = read(run, language)
    words = phrases.LANGUAGES[language]
    for name in (
        "done",
        "steps",
        "loss",
        "rate",
        "gpu_util",
        "gpu_memory",
        "ram",
        "spent",
        "events",
        "ended",
        "poweroff",
    ):
        assert words[name] in found.words
    for said in ("'a b.py'", "4.50 CNY", "10770", "/ 10800", "oss:bucket", "all is safe", "no progress", "→ try this"):
        assert said in found.words
    assert words["folded"].format(29) in found.words
    assert f"{words['from']} /ckpt/step_5" in found.words
    assert found.tags.count("svg") == 6  # what was never measured has no chart


def test_it_needs_nothing_from_elsewhere(run: Run) -> None:
    """No scripts, no addresses, no images: and the browser is told to allow none."""
    found = read(run)
    assert not {"script", "link", "img", "iframe", "object", "base", "form", "a"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name in {"src", "href", "srcset"} or name.startswith("on")]
    text = report.render(run).decode()
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_light_and_dark_are_both_there() -> None:
    """The reader's own choice decides."""
    assert "prefers-color-scheme: dark" in page.STYLE
    assert "color-scheme: light dark" in page.STYLE
    assert set(re.findall(r"var\((--\w+)\)", page.STYLE)) <= set(re.findall(r"(--\w+):", page.STYLE))


def test_whatever_is_in_the_journal_is_only_text(run: Run) -> None:
    """Names, reasons, kinds, numbers that are none: nothing gets out of its place."""
    state: dict[str, Any] = json.loads(run.state.read_text())
    for name in ("reason", "currency", "failure", "sync_to", "verdict"):
        state[name] = EVIL
    state.update(argv=[EVIL], advice=[EVIL], poweroff={"policy": EVIL, "reason": [EVIL]}, step=EVIL, spent=1e999)
    run.state.write_text(json.dumps(state))
    write(run.events, [{"time": stamp(1), "kind": kind, "text": EVIL, EVIL: EVIL} for kind in (EVIL, "warning", "x y")])
    write(
        run.samples, [{"time": stamp(n), "loss": bad} for n, bad in enumerate((EVIL, True, 10**400, None, [1], -1.5))]
    )

    for language in phrases.LANGUAGES:
        found = read(run, language)
        assert not {"script", "img"} & set(found.tags)
        assert "<script>alert(1)</script>" in found.words
        assert not set("\x00\x1b\u202e") & set(found.words)
        assert not [name for name, _ in found.attributes if name.startswith("on")]


def test_secrets_are_masked(run: Run) -> None:
    """In the command and in what was printed."""
    with open(run.events, "a") as file:
        rows: list[dict[str, Any]] = [
            {"kind": "failure", "reason": "x", "evidence": "401 for token=abcdefgh12345678"},
            {"kind": "attempt", "number": 3, "argv": ["x", "--api-key", "abcdefgh12345678"]},
        ]
        file.writelines(json.dumps({"time": stamp(2), **row}) + "\n" for row in rows)
    assert b"abcdefgh12345678" not in report.render(run)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_run_of_which_nothing_is_known_has_a_page(tmp_path: Path, language: str) -> None:
    """Just begun, or its files are broken."""
    (tmp_path / "exp").mkdir()
    run = Run(tmp_path / "exp")
    assert phrases.LANGUAGES[language]["nothing"] in read(run, language).words
    run.state.write_text("[1")
    run.events.write_bytes(b"\xff\xfe{}\n[]\n{}\nnull\n" + b'{"time": "yesterday", "kind": 5}\n{"time": null}\n')
    write(run.samples, [{"time": stamp(0), "loss": 1.0}])
    assert phrases.LANGUAGES[language]["unknown"] in read(run, language).words


def test_every_phrase_is_there_in_both_languages() -> None:
    """One that is missing would break a page of one of them only."""
    assert phrases.ENGLISH.keys() == phrases.CHINESE.keys()
    assert all(phrases.CHINESE.values())
    assert all(f"event.{kind}" in phrases.ENGLISH for kind in report.MARKED)
    assert all(verdict in phrases.ENGLISH for verdict in report.VERDICTS)
    for name, text in phrases.ENGLISH.items():
        assert text.count("{}") == phrases.CHINESE[name].count("{}")


def test_a_long_run_stays_a_small_page(run: Run) -> None:
    """A week of samples and thousands of events."""
    write(run.samples, [{"time": stamp(10 * n), "loss": 1.0 + n % 7, "gpu_util": n % 100} for n in range(60_000)])
    write(run.events, [{"time": stamp(100 * n), "kind": "warning", "text": f"number {n}"} for n in range(5000)])
    begun = time.process_time()
    made = report.render(run)
    assert time.process_time() - begun < 20
    assert len(made) < 400_000
    assert b"number 4999" in made
    assert b"4700 earlier events" in made


def test_the_command_writes_the_page(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the run, or where one wants it, and says where."""
    assert cli.main(["report", str(run.folder)]) == 0
    assert capsys.readouterr().out.strip() == str(run.report)
    assert run.report.read_bytes().startswith(b"<!DOCTYPE html>")

    target = run.folder.parent / "new folder/r.html"
    assert cli.main(["report", str(run.folder), "--lang", "zh", "-o", str(target)]) == 0
    assert "训练报告" in target.read_text()


def test_the_page_can_go_to_the_standard_output(run: Run, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """For a pipe."""
    assert cli.main(["report", str(run.folder), "-o", "-"]) == 0
    assert capfdbinary.readouterr().out.startswith(b"<!DOCTYPE html>")


def test_the_language_is_that_of_the_reader(run: Run) -> None:
    """As the environment says."""
    environ = {"LANG": "zh_CN.UTF-8", "XDG_STATE_HOME": str(run.folder / "state")}
    places.register(run, environ)
    Journal(run).update(verdict="failed", failure="nan")
    assert report.main([], environ) == 0
    assert "失败 · nan" in run.report.read_text()


def test_wrong_use_is_one_line(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """No such run; a place that cannot be written."""
    assert cli.main(["report", "no such run"]) == 2
    assert "no run" in capsys.readouterr().err
    assert cli.main(["report", str(run.folder), "-o", "/proc/report.html"]) == 1
    assert "cannot be written" in capsys.readouterr().err
