"""Locks for the Pythons that boxes have and images have not: bootstrap/locks, beside each combo's own lock.

A wheel of torch fits one Python; the rest of a lock is the same for most. `./invoke bootstrap --lock` makes
them when a row of the matrix has moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from hermitcrab.box import files
from hermitcrab.build import bootstrap, lock
from hermitcrab.errors import UserError
from hermitcrab.matrix import Combo, Matrix, Tool, numbers

# The Python of each distribution that the bootstrap serves, and the first and last torch with wheels for it.
PYTHONS: Final = {
    "3.8": ((2, 0, 0), (2, 4, 1)),  # Ubuntu 20.04
    "3.9": ((2, 0, 0), (2, 8, 0)),  # Debian 11
    "3.10": ((2, 0, 0), (2, 14, 1)),  # Ubuntu 22.04
    "3.11": ((2, 0, 0), (99,)),  # Debian 12
    "3.12": ((2, 2, 0), (99,)),  # Ubuntu 24.04
    "3.13": ((2, 5, 0), (99,)),  # Debian 13
}
OLD_PIP: Final = {"3.8": "25.0.1", "3.9": "25.3"}  # the last for it; newer ones are those of the matrix


def path(combo: Combo, python: str) -> Path:
    """Where the lock of a combo for another Python stands."""
    return bootstrap.LOCKS / combo.id / f"py{python.replace('.', '')}.lock"


def wanted(combo: Combo) -> Iterator[str]:
    """The Pythons for which a combo needs a lock besides its own."""
    for python, (first, last) in PYTHONS.items():
        if combo.wheels == "pypi" and python != combo.python and first <= numbers(combo.torch) <= last:
            yield python


def refresh_all(matrix: Matrix) -> Iterator[Path]:
    """Resolve every combo for every other Python."""
    for combo in matrix.combos:
        for python in wanted(combo):
            yield refresh(combo, matrix, python)


def refresh(combo: Combo, matrix: Matrix, python: str) -> Path:
    """Resolve a combo for another Python, near the versions of its own lock, and write the lock."""
    row = replace(combo, python=python)
    pip = matrix.tools["pip"]
    if python in OLD_PIP:
        pip = Tool(version=OLD_PIP[python], file="", sha256="")
    try:
        packages = lock._resolve(row, pip, lock.read(lock.lock_path(combo)))  # noqa: SLF001
    except UserError:  # a version of its own lock may not exist for this Python
        packages = lock._resolve(row, pip, ())  # noqa: SLF001
    pins = tuple(lock._pins(row, packages))  # noqa: SLF001
    target = path(combo, python)
    files.write(target, lock._text(row, pins).encode("ascii"))  # noqa: SLF001
    return target
