"""Each card: whether it is the one that was paid for, whole, healthy and free."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Iterator

from hermitcrab.box.check.driver import Facts
from hermitcrab.box.check.findings import FAIL, PASS, SKIP, WARN, Finding, gib
from hermitcrab.box.check.nvml import Card

# Words in a card's name that make it another card when they were not asked for.
VARIANTS = {"d", "ti", "super", "laptop", "max", "s", "mig", "nvl", "ada", "mobile"}
MEMORY_SLACK = 0.1  # a card of "24GB" has 23.99 GiB, one of "16GB" 14.75
HELD = 2**30  # less is the driver's own
# NVML's reasons for a lower clock that mean trouble; an idle or power-capped card is in order.
THROTTLES = {0x08: "hardware slowdown", 0x20: "too hot", 0x40: "too hot (hardware)", 0x80: "power brake"}


def findings(facts: Facts, expect: str | None, root: Path) -> Iterator[Finding]:
    """Give the findings on all cards; none without a card."""
    if expect is not None:
        yield expected(facts, expect)
    for index, card in enumerate(facts.cards):
        yield memory(f"gpu{index}.memory", card)
        yield slices(f"gpu{index}.mig", card)
        yield health(f"gpu{index}.health", card)
        yield users(f"gpu{index}.users", card, root)


def expected(facts: Facts, expect: str) -> Finding:
    """Compare every card that can be used with the one that was asked for."""
    devices = facts.cuda.devices
    others = [
        device.name or "a card of unknown name" for device in devices if not is_card(device.name, device.memory, expect)
    ]
    if devices and not others:
        return Finding("gpu.expect", PASS, f"it is the {expect} that was expected")
    found = ", ".join(sorted(set(others))) or "no card"
    cause = "The machine is not the one that was ordered, or the order was for another."
    return Finding("gpu.expect", FAIL, f"expected {expect}, found {found}", cause, "Give it back and take another.")


def is_card(name: str, memory: int | None, expect: str) -> bool:
    """Say whether a card is the expected one: ``4090`` is no ``4090 D``, and ``80GB`` may be its memory."""
    words, wanted = _words(name), _words(expect)
    if not wanted or (VARIANTS & set(words)) - set(wanted):
        return False
    return all(word in words or _is_memory(word, memory) for word in wanted)


def memory(id: str, card: Card) -> Finding:  # noqa: A002 - a finding's id is called id
    """Say the memory; unknown is no pass."""
    text = f"{card.name or 'a card of unknown name'}, memory {gib(card.memory)}, used {gib(card.used)}"
    if card.memory is not None and card.used is not None:
        return Finding(id, PASS, text)
    return Finding(id, WARN, text, "The driver does not tell it here.", "Look at torch.cuda.mem_get_info().")


def slices(id: str, card: Card) -> Finding:  # noqa: A002
    """Say whether the card is whole; of a sliced one a process uses one slice."""
    if not card.mig:
        text = "the whole card (MIG is off)" if card.mig is False else "the card has no MIG, or does not tell"
        return Finding(id, PASS if card.mig is False else SKIP, text)
    if not card.slices:
        return Finding(id, WARN, "MIG is on; its slices are not to be seen", "Without rights they stay hidden.", "")
    each = ", ".join(f"{piece.name.partition('MIG ')[2] or 'a slice'} of {gib(piece.memory)}" for piece in card.slices)
    text = f"MIG: {each}; a process uses one slice, not the card's {gib(card.memory)}"
    return Finding(id, PASS, text)


def health(id: str, card: Card) -> Finding:  # noqa: A002
    """Say whether the card lost data or runs slower to save itself."""
    if card.ecc_errors:
        text = f"{card.ecc_errors} uncorrected memory errors"
        return Finding(id, FAIL, text, "The card's memory is failing.", "Take another machine: results may be wrong.")
    if card.throttle is None:
        return Finding(id, SKIP, "the driver does not tell whether it is slowed down")
    reasons = [text for bit, text in THROTTLES.items() if card.throttle & bit]
    if reasons:
        text = f"slowed down: {', '.join(reasons)}"
        return Finding(
            id, WARN, text, "Cooling or power of the host is short.", "Measure again later, or take another."
        )
    return Finding(id, PASS, "no uncorrected memory errors known, not slowed down")


def users(id: str, card: Card, root: Path) -> Finding:  # noqa: A002
    """Say whether others hold the card's memory."""
    if card.used is None:
        return Finding(id, SKIP, "used memory is unknown")
    if card.used < HELD:
        return Finding(id, PASS, "nobody else holds its memory")
    rows = [f"{_program(root, row.pid)} ({gib(row.memory)})" for row in card.processes]
    text = f"{gib(card.used)} of its memory is held by {', '.join(rows) or 'processes not to be seen from here'}"
    cause = "Another program of yours, or another tenant, uses the card."
    return Finding(id, WARN, text, cause, "End what is yours; if nothing is, the card is shared: take another.")


def _words(name: str) -> list[str]:
    """Split a name into what tells cards apart: "RTX4090D" and "RTX 4090 D" are one."""
    spaced = re.sub(r"\b(rtx|gtx)(?=\d)", r"\1 ", name.lower())
    spaced = re.sub(r"(?<=\d{4})(d|ti)\b", r" \1", spaced)
    words = re.findall(r"[a-z0-9.]+", spaced)
    return [word for word in words if word not in {"nvidia", "geforce", "tesla", "gpu"}]


def _is_memory(word: str, memory: int | None) -> bool:
    size = re.fullmatch(r"(\d+)gb?", word)
    return bool(size) and memory is not None and abs(memory / 2**30 / int(size[1]) - 1) <= MEMORY_SLACK  # type: ignore[index]


def _program(root: Path, pid: int) -> str:
    try:
        name = (root / "proc" / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:  # in a container it is another tenant's, or the number is the host's
        name = "a process"
    return f"{name} {pid}"
