"""`crab status`: how a run stands, on one screen."""

from __future__ import annotations

import argparse
import json
import shlex
import time
from pathlib import Path
from typing import Any, Iterator, Sequence

from hermitcrab import status as statuses
from hermitcrab.box import files
from hermitcrab.train import journal, owner, places, process
from hermitcrab.train.places import Run
from hermitcrab.train.watch import cost

EVENTS = 5
OTHERS = 8
WIDTH = 10
LONGEST = 240
STILL = 60.0  # seconds without a word in run.json, which has one every ten


def main(arguments: Sequence[str]) -> int:
    """Print how a run stands."""
    options = _parser().parse_args(arguments)
    run = places.find(options.run)
    state = read(run)
    if options.json:
        print(json.dumps(state, indent=1, sort_keys=True))
        return 0
    print("\n".join(screen(run, state)))
    others = [other for other in places.known() if other.folder != run.folder and owner.is_locked(other)]
    for other in others[:OTHERS]:
        print(f"also running: {other.name}  {_progress(read(other))}")
    return 0


def read(run: Run) -> dict[str, Any]:
    """Return what run.json says, corrected by what is true now: a killed supervisor could not say so."""
    state = files.read_json(run.state)
    alive = process.lives(state.get("pid"), state.get("started"))
    state["folder"], state["alive"], state["done"] = str(run.folder), alive, run.done.exists()
    if alive and state.get("state") == "running":
        status = statuses.read(run.status)
        fresh = {"step": status.step, "total": status.total, "committed": status.committed, "phase": status.phase}
        state.update({name: value for name, value in fresh.items() if value not in {None, ""}})
    if alive and state.get("state") == "running":
        state["silent"] = round(max(0.0, time.time() - run.state.stat().st_mtime))
    state["orphans"] = [] if alive or state.get("state") == "ended" else [one.pid for one in process.marked(run.folder)]
    return state


def screen(run: Run, state: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the screen."""
    yield f"{run.name}: {_standing(state)}"
    argv = state.get("argv")
    rows = {
        "command": shlex.join(map(str, argv)) if isinstance(argv, list) else "",
        "folder": state["folder"],
        "progress": _progress(state),
        "saved": _saved(state),
        "spent": _spent(state),
        "sync": _sync(state),
        "power-off": _power_off(state),
        "reason": str(state.get("reason") or ""),
        "journal": _journal(state),
    }
    yield from (f"  {name:<{WIDTH}}{_line(text)}" for name, text in rows.items() if text)
    advice = state.get("advice")
    for line in advice if isinstance(advice, list) else []:
        yield f"  {'try':<{WIDTH}}{line}"
    events = [event for event in journal.lines(run.events) if event.get("kind") != "checkpoint"]
    for event in events[-EVENTS:]:
        yield f"  {_event(event)}"


def span(seconds: float) -> str:
    """Say a time for people."""
    minutes, hours = seconds / 60, seconds / 3600
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 100 else f"{hours:.1f} h"


def _standing(state: dict[str, Any]) -> str:
    if not state["alive"] and state.get("state") != "ended":
        if state["orphans"]:
            pids = ", ".join(map(str, state["orphans"]))
            return f"its supervisor was killed, its training is alive (processes {pids})"
        if state["done"] and state.get("state") != "closing":
            return "done, by its marker; its journal was not written to the end, was its disk full?"
        return "its supervisor was killed; the same command goes on with it"
    words = str(state.get("verdict") or state.get("state") or "unknown")
    if words == "failed":
        words += f" ({state.get('failure')})"
    phase = f", {state['phase']}" if state.get("phase") else ""
    return f"{words}{phase}, attempt {state.get('attempt', 0)}" + (
        f", process {state['pid']}" if state["alive"] else ""
    )


def _progress(state: dict[str, Any]) -> str:
    step, total, rate, loss = (state.get(name) for name in ("step", "total", "rate", "loss"))
    if not isinstance(step, int):
        return ""
    words = [f"step {step}"]
    if isinstance(total, int) and total > 0:
        words[0] += f" of {total} ({100 * (step + 1) / total:.0f} %)"
    if isinstance(rate, (int, float)) and rate > 0:
        words.append(f"{rate:.3g} steps/s")
        if isinstance(total, int) and total > step and state.get("state") == "running":
            words.append(f"about {span((total - step - 1) / rate)} left")
    if loss is not None:
        words.append(f"loss {loss:.5g}" if isinstance(loss, (int, float)) else f"loss {loss}")
    return ", ".join(words)


def _saved(state: dict[str, Any]) -> str:
    if state.get("committed") is None:
        return ""
    path = Path(str(state.get("checkpoint") or ""))
    age = ""
    if state.get("checkpoint") and path.exists():
        age = f", {span(max(0.0, time.time() - path.stat().st_mtime))} ago, {path}"
    return f"step {state['committed']}{age}"


def _journal(state: dict[str, Any]) -> str:
    silent = state.get("silent") or 0.0
    return "" if silent < STILL else f"stands still for {span(silent)}: is its disk full? The training goes on"


def _spent(state: dict[str, Any]) -> str:
    spent = state.get("spent")
    return cost.money(spent, str(state.get("currency") or "")) if isinstance(spent, (int, float)) else ""


def _sync(state: dict[str, Any]) -> str:
    if not state.get("sync_to"):
        return ""
    words = {True: "verified at", False: "NOT synced to", None: "to be synced to"}
    return f"{words.get(state.get('synced'), '')} {state['sync_to']}"


def _power_off(state: dict[str, Any]) -> str:
    told = state.get("poweroff")
    if not isinstance(told, dict) or told.get("policy") in {None, "never"}:
        return ""
    return f"{told['policy']}: {told['reason']}" if told.get("reason") else str(told["policy"])


def _event(event: dict[str, Any]) -> str:
    when = str(event.get("time", ""))[:19].replace("T", " ")
    said = event.get("text") or event.get("reason") or event.get("verdict") or ""
    if event.get("kind") == "attempt":
        said = f"number {event.get('number')}"
    return _line(f"{when}  {event.get('kind', '')}: {said}")


def _line(text: str) -> str:
    """One line of a screen."""
    return "; ".join(part.strip() for part in text.splitlines() if part.strip())[:LONGEST]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="crab status", description="How a run stands.")
    parser.add_argument("run", nargs="?", default="", metavar="RUN", help="name or folder; the newest without it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
