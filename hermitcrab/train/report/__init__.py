"""`crab report`: one page about a run, to keep or to send: its curves, what it cost, what happened, how it ended."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path
from statistics import median
from typing import Callable, Iterator, Mapping, NamedTuple, Sequence

from hermitcrab import __version__
from hermitcrab.box import files
from hermitcrab.box.mask import mask, mask_words
from hermitcrab.errors import UserError
from hermitcrab.train import places
from hermitcrab.train.places import Run
from hermitcrab.train.report import chart, page, story
from hermitcrab.train.report.chart import Line, Mark, elapsed
from hermitcrab.train.report.phrases import LANGUAGES
from hermitcrab.train.report.story import Story, Words, number
from hermitcrab.train.watch.cost import money

GIB = 2.0**30
MOST_EVENTS = 300
MOST_MARKS = 100
MARKED = {"attempt", "failure", "preemption", "warning"}
VERDICTS = {"waiting", "running", "restarting", "closing", "done", "failed", "stopped", "preempted", "smoke"}


def main(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Write the page and say where it is."""
    parser = argparse.ArgumentParser(prog="crab report", description="Write one self-contained page about a run.")
    parser.add_argument("run", nargs="?", default="", help="name or folder of the run; without it, the newest")
    parser.add_argument("--lang", choices=sorted(LANGUAGES), default=_language(environ), help="of the page")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write it; - is the standard output")
    options = parser.parse_args(arguments)
    run = places.find(options.run, environ)
    made = render(run, options.lang)
    if options.output == "-":
        sys.stdout.buffer.write(made)
        return 0
    target = Path(options.output).absolute() if options.output else run.report
    try:
        files.write(target, made)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {files.because(error)}; -o FILE writes elsewhere") from error
    print(target)
    return 0


class Sheet(NamedTuple):
    """One chart: its name among the phrases, and of each line the name and where in a sample it stands."""

    name: str
    lines: tuple[tuple[str, str], ...]
    say: Callable[[float], str]
    zero: bool = True
    unit: float = 1.0  # what one on the axis is


def _plain(value: float) -> str:
    return f"{value:.4g}"


def _percent(value: float) -> str:
    return f"{value:.0f} %"


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _gib(value: float) -> str:
    return f"{value:g} GiB"


SHEETS = (
    Sheet("loss", (("loss", "loss"),), _plain, zero=False),
    Sheet("rate", (("rate", "rate"),), _plain),
    Sheet("gpu_util", (("gpu_util", "gpu_util"),), _percent),
    Sheet("gpu_memory", (("used", "gpu_memory"), ("limit", "gpu_memory_total")), _gib, unit=GIB),
    Sheet("temperature", (("temperature", "gpu_temperature"),), lambda value: f"{value:.0f} °C", zero=False),
    Sheet("ram", (("used", "ram"), ("limit", "ram_limit")), _gib, unit=GIB),
    Sheet("disk_free", (("disk_free", "disk_free"),), _gib, unit=GIB),
    Sheet("spent", (("spent", "spent"),), lambda value: f"{value:.2f}"),
    Sheet("grad_norm", (("grad_norm", "grad_norm"),), _plain, zero=False),
)


def render(run: Run, language: str = "en", now: float | None = None) -> bytes:
    """Return the page of a run."""
    words, told = LANGUAGES[language], story.read(run)
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time.time() if now is None else now))
    cards = [page.card(words[name], value, more) for name, value, more in (*_times(told), *_numbers(told, words))]
    body = [
        *_header(run, told, words),
        f'<div class="cards">{"".join(cards)}</div>',
        *_charts(told, words),
        *_end(told, words),
        *_events(told, words),
        f"<footer>{page.text(words['made'].format(__version__, made))}</footer>",
    ]
    title = f"{run.name} · {words['report']}"
    return page.page(title, "zh-CN" if language == "zh" else language, body).encode("utf-8", "replace")


def _header(run: Run, told: Story, words: Words) -> Iterator[str]:
    verdict = str(told.state.get("verdict") or told.state.get("state") or "unknown")
    known = verdict if verdict in VERDICTS else "unknown"
    failure = told.state.get("failure")
    said = words[known] + (f" · {failure}" if failure and known == "failed" else "")
    yield f'<header><span class="kicker">{page.text(words["report"])}</span><h1>{page.text(run.name)}</h1>'
    yield f'<span class="badge {known}">{page.text(said)}</span></header>'
    argv = told.state.get("argv")
    if isinstance(argv, list) and argv:
        yield f"<pre>{page.text(shlex.join(mask_words([str(word) for word in argv])))}</pre>"


def _times(told: Story) -> Iterator[tuple[str, str, str]]:
    begin, end = told.span
    if begin:
        yield "began", time.strftime("%Y-%m-%d %H:%M", time.gmtime(begin)), "UTC"
        yield "lasted", elapsed(end - begin), ""


def _numbers(told: Story, words: Words) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the value and a word more of each figure that is known."""
    known = {name: number(value) for name, value in told.state.items()}
    total, price = known.get("total"), known.get("price")
    currency = str(told.state.get("currency") or "")
    rows: tuple[tuple[str, str, Callable[[float], str], str], ...] = (
        ("steps", "step", _whole, f"/ {_whole(total)}" if total else ""),
        ("loss", "loss", _plain, ""),
        ("attempts", "attempt", _whole, ""),
        ("spent", "spent", lambda value: money(value, currency), f"{price:g}/h" if price is not None else ""),
        ("checkpoint", "committed", _whole, ""),
    )
    for name, field, say, more in rows:
        value = known.get(field)
        if value is not None:
            yield name, say(value), more
    for name, say in (("rate", _plain), ("gpu_util", _percent)):
        values = [value for _, value in told.points(name)]
        if values:
            yield name, say(median(values)), words["median"]


def _charts(told: Story, words: Words) -> Iterator[str]:
    marks = [
        Mark(at, story.tell(event, words), str(event["kind"]))
        for at, event in told.events
        if event.get("kind") in MARKED
    ]
    drawn = []
    for sheet in SHEETS:
        found = [
            Line(words[name], [(at, value / sheet.unit) for at, value in told.points(field)])
            for name, field in sheet.lines
        ]
        heading = words[sheet.name]
        svg = chart.draw(found, marks[-MOST_MARKS:], told.span, label=heading, say=sheet.say, zero=sheet.zero)
        if svg:
            drawn.append(page.figure(heading, svg, [line.name for line in found if line.points]))
    nothing = f'<p class="more">{page.text(words["nothing"])}</p>'
    yield f'<div class="charts">{"".join(drawn)}</div>' if drawn else nothing


def _end(told: Story, words: Words) -> Iterator[str]:
    """Say how it ended; nothing while it runs."""
    state = told.state
    if not state.get("verdict"):
        return
    parts = [f"<p>{_masked(state.get('reason') or state['verdict'])}</p>"]
    advice = state.get("advice")
    if isinstance(advice, list) and advice:
        tips = "".join(f"<li>{_masked(tip)}</li>" for tip in advice)
        parts.append(f"<p>{page.text(words['advice'])}</p><ul>{tips}</ul>")
    synced, power = state.get("synced"), state.get("poweroff")
    if isinstance(synced, bool):
        said = words["synced.true" if synced else "synced.false"]
        parts.append(f"<p>{page.text(words['synced'])}: {page.text(said)} {_masked(state.get('sync_to') or '')}</p>")
    if isinstance(power, dict):
        said = ", ".join(str(power[name]) for name in ("policy", "decision", "reason") if power.get(name))
        parts.append(f"<p>{page.text(words['poweroff'])}: {_masked(said)}</p>")
    yield f'<h2>{page.text(words["ended"])}</h2><div class="end">{"".join(parts)}</div>'


def _events(told: Story, words: Words) -> Iterator[str]:
    found = list(story.folded(told, words))
    if not found:
        return
    yield f"<h2>{page.text(words['events'])}</h2>"
    rows = [(kind, (_clock(at), words.get(f"event.{kind}", kind), said)) for at, kind, said in found[-MOST_EVENTS:]]
    yield page.table([words["time"], words["event"], words["details"]], rows)
    if len(found) > MOST_EVENTS:
        yield f'<p class="more">{page.text(words["earlier"].format(len(found) - MOST_EVENTS))}</p>'


def _masked(said: object) -> str:
    return page.text(mask(str(said)))


def _clock(at: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.gmtime(at))


def _language(environ: Mapping[str, str]) -> str:
    told = environ.get("LC_ALL") or environ.get("LC_MESSAGES") or environ.get("LANG") or ""
    return "zh" if told.lower().startswith("zh") else "en"
