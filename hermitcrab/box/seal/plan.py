"""What is to be done with what a scan found."""

from __future__ import annotations

from typing import NamedTuple, Sequence

from hermitcrab.box.seal.rows import CHOICES
from hermitcrab.box.seal.scan import Item, Scan
from hermitcrab.box.seal.waste import ENVIRONMENT, ROWS
from hermitcrab.errors import UserError

# Should the machine stop half-way, the worst is gone already.
_FIRST = ("state", "token", "key", "history", "identity")


class Plan(NamedTuple):
    """Each item has one place."""

    chosen: tuple[Item, ...]  # to clean
    asked: tuple[Item, ...]  # stay until included or kept by name
    kept: tuple[Item, ...]  # stay, as the user said
    unread: tuple[tuple[str, str], ...]


def decide(found: Scan, *, include: Sequence[str], keep: Sequence[str]) -> Plan:
    """Sort the items by what the user said of them; keeping wins over all else."""
    for option, names in (("--include", include), ("--keep", keep)):
        _expect(option, names, found)
    kept = [item for item in found.items if _named(item, keep)]
    rest = [item for item in found.items if not _named(item, keep)]
    chosen = [item for item in rest if item.row.clean != "name" and (not item.asked or _named(item, include))]
    asked = [item for item in rest if item not in chosen]
    chosen.sort(key=lambda item: (item.row.kind not in _FIRST, item.path))
    return Plan(tuple(chosen), tuple(asked), tuple(kept), found.unread)


def remaining(plan: Plan) -> tuple[Item, ...]:
    """Return what should not be in an image: all but what the user keeps, and work of his that is no secret."""
    return (*plan.chosen, *(item for item in plan.asked if item.row.kind not in CHOICES))


def fails(plan: Plan) -> bool:
    """Whether the box is not ready; what could not be looked at is no pass."""
    return bool(remaining(plan) or plan.unread)


def _named(item: Item, names: Sequence[str]) -> bool:
    return item.row.id in names or item.path in names


def _expect(option: str, names: Sequence[str], found: Scan) -> None:
    rows = {row.id: row for row in (*ROWS, ENVIRONMENT)}
    paths = {item.path: item.row for item in found.items}
    for name in names:
        row = rows.get(name) or paths.get(name)
        if row is None:
            known = "no such path was found" if name.startswith("/") else f"valid: {', '.join(sorted(rows))}"
            raise UserError(f"{option} {name}: {known}; `crab seal` lists what there is", code=2)
        if option == "--include" and row.clean == "name":
            raise UserError(f"--include {name}: is never removed; edit the files, or say --keep {name}", code=2)
