"""The README's table of combos: rendered from the matrix like every other file that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hermitcrab.errors import UserError
from hermitcrab.matrix import Combo, Matrix

START: Final = "<!-- combos -->"
END: Final = "<!-- /combos -->"
COLUMNS: Final = (
    *("build it with", "torch", "torchvision", "torchaudio"),
    *("Python", "base", "driver from", "cards (sm)", "status"),
)


def render(text: str, matrix: Matrix) -> str:
    """The README with the table the matrix gives; every other byte stays.

    Raises UserError unless both markers stand in it once, in their order.
    """
    before, _, rest = text.partition(START)
    _, closed, after = rest.partition(END)
    if not closed or text.count(START) != 1 or text.count(END) != 1:
        raise UserError(f"README.md needs {START} and {END} once each, around its table of combos")
    return f"{before}{START}\n\n{table(matrix)}\n\n{END}{after}"


def table(matrix: Matrix) -> str:
    """Every combo as a row of Markdown, and below it why some are not current."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(_row(combo) for combo in matrix.combos)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", *_notes(matrix)]).rstrip()


def _row(combo: Combo) -> tuple[str, ...]:
    torch = "" if combo.default else f" --torch {combo.torch}"
    trio = (combo.torch, combo.torchvision, combo.torchaudio)
    cards = [*combo.arch, *(f"{sm}+ptx" for sm in combo.ptx)]
    status = combo.status if combo.compiles else f"{combo.status}, no torch.compile"
    return (
        f"`--cuda {combo.cuda}{torch}`", *trio,
        combo.python, combo.base.id, combo.driver, " ".join(cards), status,
    )  # fmt: skip


def _notes(matrix: Matrix) -> Iterator[str]:
    """One line per reason, with the combos it holds for."""
    reasons = dict.fromkeys((combo.status, combo.reason) for combo in matrix.combos if combo.reason)
    for status, reason in reasons:
        same = [combo for combo in matrix.combos if (combo.status, combo.reason) == (status, reason)]
        yield f"- {status} ({', '.join(combo.id for combo in same)}): {reason}"
