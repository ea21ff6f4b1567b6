"""What changes the box, in order: packages, torch or crab beside one, settings. Each step may be run again."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, NamedTuple

from hermitcrab.box.bootstrap import adopt, apt, beside, environment, mirrors, pins, settle
from hermitcrab.box.bootstrap.adopt import Torch
from hermitcrab.box.bootstrap.environment import Fetch, Where
from hermitcrab.box.bootstrap.pick import Choice
from hermitcrab.box.bootstrap.pip import NoPipError
from hermitcrab.box.bootstrap.plan import Plan
from hermitcrab.box.bootstrap.run import Run

CERTIFICATES = "ca-certificates"
SUITES = {
    "11": "bullseye",
    "12": "bookworm",
    "13": "trixie",
    "20.04": "focal",
    "22.04": "jammy",
    "24.04": "noble",
}


class Made(NamedTuple):
    """The environment that is there now."""

    python: str
    venv: Path | None
    pins: list[str]  # what later installations may not move
    facts: dict[str, Any]  # for the stamp


class Wishes(NamedTuple):
    """Where packages shall come from, and for which system."""

    mirror: str = mirrors.AUTO
    distro: str = "debian"
    release: str = ""


def carry_out(run: Run, decided: Plan, known: pins.Pins, wheel: bytes, wishes: Wishes) -> tuple[str, dict[str, Any]]:
    """Change the box; return the Python that has torch, and what the stamp shall tell."""
    options = tuple(os.environ.get("CRAB_APT_OPTIONS", "").split())
    options += _from_mirror(run, wishes)
    if run.places.stamp.exists():
        run.places.stamp.unlink()  # until the end is reached again
    if decided.packages:
        apt.update(run, options)
    with ThreadPoolExecutor(1) as pool:
        packages = pool.submit(_packages, run, decided, options)
        if CERTIFICATES in decided.packages:
            packages.result()  # without them no index could be trusted
        try:
            made = _torch(run, decided, known, wheel, (options, wishes))
        except NoPipError:
            packages.result()
            made = _torch(run, decided, known, wheel, (options, wishes))
        packages.result()
    settle.protect(run, made.pins, made.venv)
    _give(made.venv, run)
    timed(run, "settings", lambda: f"{len(settle.settings(run))} files changed by crab setup")
    return made.python, {**made.facts, "driver": decided.machine.driver, "cards": list(decided.machine.names)}


def _packages(run: Run, decided: Plan, options: tuple[str, ...]) -> None:
    """Install packages, beside the download of torch: with notes of its own."""
    if decided.packages:
        own = run._replace(work=run.work / "packages")
        own.work.mkdir()
        timed(run, "packages", lambda: apt.install(own, decided.packages, options))


def _torch(run: Run, decided: Plan, known: pins.Pins, wheel: bytes, asked: tuple[tuple[str, ...], Wishes]) -> Made:
    """Put crab beside a torch that is there, or make an environment."""
    if decided.choice is None or decided.where is None:
        return _beside(run, decided.adopted or adopt.without_torch(), wheel)
    fetch = Fetch(known.uv, decided.memory, asked[0], asked[1].mirror)
    return _install(run, decided.choice, decided.where, wheel, fetch)


def timed(run: Run, name: str, work: Callable[[], Any]) -> Any:
    """Run one step, and say how long it took."""
    run.say(f"{name} …")
    begun = time.monotonic()
    result = work()
    said = f": {result}" if isinstance(result, str) else ""
    run.say(f"{name}: {time.monotonic() - begun:.1f} s{said}")
    return result


def _give(venv: Path | None, run: Run) -> None:
    """Give an environment that sudo made to whoever called, so that pip works there without it."""
    owner = run.environ.get("SUDO_UID", ""), run.environ.get("SUDO_GID", "")
    if not run.root or venv is None or not all(one.isdigit() for one in owner):
        return
    top = os.path.realpath(str(venv))
    for folder, folders, names in os.walk(top):
        for name in (".", *folders, *names):
            os.chown(os.path.join(folder, name), int(owner[0]), int(owner[1]), follow_symlinks=False)


def _from_mirror(run: Run, wishes: Wishes) -> tuple[str, ...]:
    """Make apt use a mirror that was asked for; by itself it stays with what the box has configured."""
    mirror = mirrors.table().get(wishes.mirror)
    suite = SUITES.get(wishes.release)
    return mirrors.apt_options(mirror, wishes.distro, suite, run.work) if mirror and suite else ()


def _beside(run: Run, found: Torch, wheel: bytes) -> Made:
    timed(run, "crab", lambda: beside.install(run, found, wheel))
    to = beside.home(run, found)
    facts = {"adopted": to.python, "site": str(to.site), "scripts": str(to.scripts)}
    return Made(to.python, to.venv, found.pins, {**facts, "torch": found.torch, "torch_site": str(found.site)})


def _install(run: Run, choice: Choice, where: Where, wheel: bytes, fetch: Fetch) -> Made:
    timed(run, "torch", lambda: environment.make(run, where, choice, wheel, fetch))
    facts = {"combo": choice.row.id, "python": choice.python, "venv": str(where.folder)}
    protected = environment.constraints(pins.lock(choice.row, choice.python))
    return Made(str(where.python), run.places.venv, protected, facts)
