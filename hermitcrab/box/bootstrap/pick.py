"""Which combo: by driver and card together, since either alone picks what cannot run.

A driver tells which CUDA may be used, a card which code it runs; the row must have both, and a lock for a
Python of this box. Nothing is downloaded before this is decided.
"""

from __future__ import annotations

import re
from typing import Iterable, Mapping, NamedTuple, Sequence

from hermitcrab.box.bootstrap.pins import Row, numbers
from hermitcrab.box.check import build
from hermitcrab.errors import UserError

NOTHING_FITS = 4  # the exit status
# What a box without a driver is taken for: the oldest that runs CUDA 12, as most rented ones do.
ASSUMED = build.FLOORS[12]
BLACKWELL_DRIVER = "570"
# For a card that only nvidia-smi names: the first pattern that is in its name.
NAMES = (
    (r"\b(B200|GB200)\b", 100),
    (r"\b(B300|GB300)\b", 103),
    (r"RTX 50[5-9]0|RTX PRO \d+ Blackwell", 120),
    (r"\b(G?H[12]00|H800|H20)\b", 90),
    (r"RTX 40[5-9]0|\bL40S?\b|\bL20\b|\bL4\b|RTX \d+ Ada|RTX [456]000 Ada", 89),
    (r"RTX 30[5-9]0|\bA10G?\b|\bA40\b|\bA16\b|RTX A\d+", 86),
    (r"\bA100|\bA800|\bA30\b", 80),
    (r"\bT4\b|RTX 20[6-8]0|GTX 16\d\d|TITAN RTX|Quadro RTX", 75),
    (r"V100|TITAN V\b", 70),
    (r"P40\b|P4\b|GTX 10[5-8]0|TITAN X[Pp]", 61),
    (r"P100", 60),
)


class Machine(NamedTuple):
    """What decides; an empty driver and no cards mean that there is none to look at."""

    driver: str
    cards: tuple[int | None, ...]  # compute capabilities; None is a card of an unknown one
    names: tuple[str, ...] = ()
    processor: str = "x86_64"
    pythons: tuple[str, ...] = ()  # best first


class Choice(NamedTuple):
    """The row, the Python it will run in, and why."""

    row: Row
    python: str
    why: str


def choose(machine: Machine, rows: Sequence[Row], *, cuda: str = "", torch: str = "") -> Choice:
    """Choose the newest row that driver, cards and Pythons can use, or the one asked for.

    Raises UserError: status 2 for a row that does not exist, 4 when none fits this machine.
    """
    asked = [row for row in rows if _is(row.cuda, cuda) and _is(row.torch, torch)]
    if not asked:
        raise UserError(_unknown(rows, cuda, torch), code=2)
    reasons = {row.id: why_not(row, machine) for row in asked}
    fitting = [row for row in asked if not reasons[row.id]]
    if not fitting:
        raise UserError(_none(machine, rows, reasons, asked=bool(cuda or torch)), code=NOTHING_FITS)
    row = max(fitting, key=lambda row: _rank(row, machine))
    python = next(python for python in machine.pythons if python in row.locks)
    return Choice(row, python, _why(machine, asked=bool(cuda or torch)))


def why_not(row: Row, machine: Machine) -> str:
    """Say why a row cannot run on the machine; nothing when it can."""
    driver = machine.driver or ASSUMED
    if machine.processor != "x86_64":
        return f"its wheels are for x86_64, and this machine is {machine.processor}"
    if not row.locks:
        return "its wheels are on no index that the bootstrap may ask"
    if numbers(driver) < numbers(row.driver):
        return f"it needs driver {row.driver}, and this is {driver}"
    uncovered = [_uncovered(row, sm, driver, machine.names) for sm in machine.cards if sm is not None]
    if any(uncovered):
        return next(filter(None, uncovered))
    if not any(python in row.locks for python in machine.pythons):
        return f"it has wheels for Python {_list(row.locks)}, and here is {_list(machine.pythons) or 'none of them'}"
    return ""


def capability(name: str) -> int | None:
    """Tell a card's compute capability by its name, for a driver whose libraries do not answer."""
    return next((sm for pattern, sm in NAMES if re.search(pattern, name)), None)


def _uncovered(row: Row, sm: int, driver: str, names: Sequence[str]) -> str:
    if sm >= build.BLACKWELL and numbers(driver) < numbers(BLACKWELL_DRIVER):
        return f"no driver below {BLACKWELL_DRIVER} knows a card of sm_{sm}, and this is {driver}"
    covered = build.covers([f"sm_{one}" for one in row.arch], sm)
    return "" if covered else f"it has no code for sm_{sm} ({', '.join(names) or 'this card'})"


def _rank(row: Row, machine: Machine) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Newest first; with no card to look at, first what runs on most cards."""
    return (0 if machine.cards else len(row.arch), numbers(row.cuda), numbers(row.torch))


def _is(version: str, asked: str) -> bool:
    """Whether a version is the one asked for, which may leave out what comes last."""
    wanted = numbers(asked)
    return numbers(version)[: len(wanted)] == wanted and (not asked or bool(wanted))


def _why(machine: Machine, *, asked: bool) -> str:
    if asked:
        return "asked for"
    if not machine.cards:
        return "no card to look at: it runs on most"
    cards = ", ".join(dict.fromkeys(machine.names)) or "this card"
    return f"the newest for {cards} and driver {machine.driver or 'unknown'}"


def _unknown(rows: Sequence[Row], cuda: str, torch: str) -> str:
    given = " ".join(f"--{name} {value}" for name, value in (("cuda", cuda), ("torch", torch)) if value)
    known = ", ".join(f"CUDA {row.cuda} with torch {row.torch}" for row in rows)
    return f"no combo for {given}; there are {known}"


def _none(machine: Machine, rows: Sequence[Row], reasons: Mapping[str, str], *, asked: bool) -> str:
    """Say the obstacle, and what would work."""
    said = "; ".join(dict.fromkeys(f"{id_}: {reason}" for id_, reason in reasons.items()))
    others = [row for row in rows if row.id not in reasons and not why_not(row, machine)]
    if others:
        best = max(others, key=lambda row: _rank(row, machine))
        return f"{said}; what works here: --cuda {best.cuda} --torch {best.torch}"
    start = "" if asked else "no combo runs on this machine: "
    return f"{start}{said}; {_elsewhere(machine)}"


def _elsewhere(machine: Machine) -> str:
    if machine.processor != "x86_64":
        return "take a platform's image that has torch: bootstrap adopts it"
    if machine.driver and numbers(machine.driver) < numbers(min(build.FLOORS.values(), key=numbers)):
        return f"take a machine with driver {build.FLOORS[12]} or newer: a renter cannot change the driver"
    return "take another machine, or a platform's image that has torch: bootstrap adopts it"


def _list(items: Iterable[str]) -> str:
    return ", ".join(items)
