"""The matrix: every combo of images/matrix.yaml, validated, and the choice among them."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import yaml

from hermitcrab.errors import UserError

MATRIX: Final = Path(__file__).resolve().parent.parent / "images" / "matrix.yaml"


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A pinned file that installs wheels: uv or pip."""

    version: str
    file: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Base:
    """A root filesystem an image starts from."""

    id: str
    reference: str
    digest: str
    distro: str
    suite: str
    python: str

    @property
    def image(self) -> str:
        """Its name in a registry, by digest; the tag stays for the reader."""
        return f"{self.reference}@{self.digest}"


@dataclass(frozen=True, kw_only=True)
class Combo:
    """One row: CUDA build, torch, Python and base; ``id`` is its name everywhere."""

    id: str
    cuda: str
    torch: str
    torchvision: str
    torchaudio: str
    python: str
    base: Base
    wheels: str
    also: tuple[str, ...]
    driver: str
    arch: tuple[str, ...]
    ptx: tuple[str, ...]
    disk_gb: float
    gzip_gb: float
    zstd_gb: float
    compiles: bool
    default: bool
    status: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """The whole file."""

    epoch: int
    platform: str
    tools: dict[str, Tool]
    packages: tuple[str, ...]
    bases: dict[str, Base]
    combos: tuple[Combo, ...]


def numbers(version: str) -> tuple[int, ...]:
    """A dotted version as integers, so that 2.10 follows 2.9."""
    return tuple(int(part) for part in version.split("."))


def load(path: Path = MATRIX) -> Matrix:
    """Read and validate the matrix; a fault is named by row and field."""
    top = _mapping(_parse(path), "matrix", "epoch platform tools packages bases combos")
    bases = {key: _base(key, row) for key, row in _rows(top["bases"], "bases").items()}
    if not isinstance(top["combos"], list) or not top["combos"]:
        raise _fault("matrix", "combos", "needs a list of rows")
    combos = tuple(_combo(n, row, bases) for n, row in enumerate(top["combos"], 1))
    _refuse_clashes(combos)
    return Matrix(
        epoch=int(_scalar("matrix", "epoch", top["epoch"])),
        platform=_scalar("matrix", "platform", top["platform"]),
        tools=_tools(_mapping(top["tools"], "tools", "uv pip")),
        packages=_list("matrix", "packages", top["packages"]),
        bases=bases,
        combos=combos,
    )


def select(matrix: Matrix, cuda: str, torch: str = "") -> Combo:
    """The row for a CUDA version: its default, or the one with this torch; never a near miss.

    ``torch`` may leave out trailing components: 2.4 means 2.4.1, 2.1 never means 2.10.0.
    """
    known = ", ".join(sorted({combo.cuda for combo in matrix.combos}, key=numbers))
    if not cuda:
        raise UserError(f"which CUDA? Choose one with --cuda: {known}", code=2)
    if not re.fullmatch(_TWO, cuda, re.ASCII):
        raise UserError(f"--cuda {cuda!r} is not a version such as 12.1; choose {known}", code=2)
    if torch and not re.fullmatch(_UP_TO_THREE, torch, re.ASCII):
        raise UserError(f"--torch {torch!r} is not a version such as 2.4 or 2.4.1", code=2)
    rows = [combo for combo in matrix.combos if combo.cuda == cuda]
    if not rows:
        near = _nearest(matrix.combos, "cuda", cuda)
        raise UserError(f"no combo for CUDA {cuda}; nearest: {near}; choose {known}", code=2)
    fits = [combo for combo in rows if _has_torch(combo, torch)]
    if not fits:
        raise UserError(_impossible(matrix.combos, rows, torch), code=2)
    return max(fits, key=lambda combo: (combo.default, numbers(combo.torch)))


_TRIO: Final = ("torch", "torchvision", "torchaudio")
_BOOLS: Final = ("compiles", "default")
_BUDGETS: Final = ("disk_gb", "gzip_gb", "zstd_gb")
_NUMBER: Final = r"(?:0|[1-9]\d{0,8})"
_TWO: Final = rf"{_NUMBER}\.{_NUMBER}"
_THREE: Final = rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}"
_UP_TO_THREE: Final = rf"{_NUMBER}(\.{_NUMBER}){{0,2}}"

# What each scalar must look like, and how to say so.
_SCALARS: Final = {
    "epoch": (r"[1-9]\d{8,9}", "seconds since 1970"),
    "platform": (r"linux/amd64", "linux/amd64"),
    "version": (_UP_TO_THREE, "a version such as 26.3"),
    "file": (r"[A-Za-z0-9_.+-]+\.whl", "the file name of a wheel"),
    "sha256": (r"[0-9a-f]{64}", "64 hexadecimal digits"),
    "reference": (r"[a-z0-9./-]+:[\w.-]+", "an image name with a tag"),
    "digest": (r"sha256:[0-9a-f]{64}", "sha256: and 64 hexadecimal digits"),
    "distro": (r"debian|ubuntu", "debian or ubuntu"),
    "suite": (r"[a-z]+", "a suite such as bookworm"),
    "id": (r"cuda[\d.]+-torch[\d.]+-py\d+", "cuda<cuda>-torch<torch>-py<python>"),
    "cuda": (_TWO, "two numbers such as 12.1"),
    **dict.fromkeys(_TRIO, (_THREE, "three numbers such as 2.4.1")),
    "python": (r"3\.[1-9]\d*", "a version such as 3.11"),
    "base": (r"[a-z]+[\d.]+", "the name of a base"),
    "wheels": (r"pypi|cu\d+", "pypi or a build such as cu118"),
    "driver": (r"[1-9]\d*(\.\d+){0,2}", "a driver version such as 525.60.13"),
    **dict.fromkeys(_BUDGETS, (r"[1-9]\d*\.\d+", "decimal GB such as 5.1")),
    **dict.fromkeys(_BOOLS, (r"true|false", "true or false")),
    "status": (r"current|legacy|unbuilt", "current, legacy or unbuilt"),
    "reason": (r"(?!.*<!--)\S[^\x00-\x1f\x7f]*", "one line of text"),  # it stands in the README
    # items of lists
    "packages": (r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]", "a distribution package"),  # `gcc-` would remove gcc
    "also": (r"[a-z0-9][a-z0-9-]*([<>=]=?\d[\d.]*)?", "a requirement such as numpy<2"),
    **dict.fromkeys(("arch", "ptx"), (r"[1-9]\d{1,2}", "a compute capability such as 86")),
}
_COMBO: Final = " ".join(field.name for field in fields(Combo) if field.name != "reason")
_CVE: Final = "CVE-2025-32434"


class _Loader(yaml.BaseLoader):
    """All scalars as strings; a repeated key is an error where PyYAML would let the last win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"{str(node.start_mark).strip()}: key {key!r} is given twice")
        return super().construct_mapping(node, deep)


def _parse(path: Path) -> object:
    try:
        data: object = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"cannot read {path.name}: {' '.join(str(error).split())}", code=2) from error
    return data


def _fault(row: str, field: str, problem: str) -> UserError:
    return UserError(f"images/matrix.yaml: {row}: {field}: {problem}", code=2)


def _rows(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise UserError(f"images/matrix.yaml: {where}: needs named fields", code=2)
    return value


def _mapping(value: object, row: str, needed: str, optional: str = "") -> dict[str, object]:
    """The fields of one row: all of ``needed``, at most ``optional`` besides."""
    found = _rows(value, row)
    for field in needed.split():
        if field not in found:
            raise _fault(row, field, "is missing")
    for field in found:
        if field not in f"{needed} {optional}".split():
            raise _fault(row, field, f"is unknown; known are {', '.join(needed.split())}")
    return found


def _scalar(row: str, field: str, value: object) -> str:
    pattern, wanted = _SCALARS[field]
    if not isinstance(value, str) or not re.fullmatch(pattern, value, re.ASCII):
        raise _fault(row, field, f"{value!r} is not {wanted}")
    return value


def _list(row: str, field: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _fault(row, field, f"{value!r} is not a list")
    items = tuple(_scalar(row, field, item) for item in value)
    if len(set(items)) < len(items):
        raise _fault(row, field, "names something twice")
    if not items and field in ("packages", "arch"):
        raise _fault(row, field, "is empty")
    return items


def _tools(rows: dict[str, object]) -> dict[str, Tool]:
    def tool(name: str) -> Tool:
        row = _mapping(rows[name], f"tool {name}", "version file sha256")
        return Tool(**{field: _scalar(f"tool {name}", field, row[field]) for field in row})

    return {name: tool(name) for name in rows}


def _base(key: str, value: object) -> Base:
    where = f"base {key}"
    row = _mapping(value, where, "reference digest distro suite python")
    return Base(id=key, **{field: _scalar(where, field, row[field]) for field in row})


def _combo(number: int, value: object, bases: dict[str, Base]) -> Combo:
    where = f"combo {_rows(value, f'combo {number}').get('id') or number}"
    row = _mapping(value, where, _COMBO, "reason")
    lists = {field: _list(where, field, row[field]) for field in ("also", "arch", "ptx")}
    text = {field: _scalar(where, field, row[field]) for field in row if field not in lists}
    _refuse_contradictions(where, text, bases)
    converted: dict[str, Any] = {field: float(text[field]) for field in _BUDGETS}
    converted |= {field: text[field] == "true" for field in _BOOLS}
    converted["base"] = bases[text["base"]]
    return Combo(**{"reason": "", **text, **lists, **converted})


def _refuse_contradictions(where: str, row: dict[str, str], bases: dict[str, Base]) -> None:
    """Fields that are well formed each, and wrong together."""
    wanted = f"cuda{row['cuda']}-torch{row['torch']}-py{row['python'].replace('.', '')}"
    build = f"cu{row['cuda'].replace('.', '')}"
    base = bases.get(row["base"])
    if row["id"] != wanted:
        raise _fault(where, "id", f"must be {wanted}")
    if base is None:
        raise _fault(where, "base", f"{row['base']!r} is not one of {', '.join(bases)}")
    if row["python"] != base.python:
        raise _fault(where, "python", f"{row['python']} is not the {base.python} of {base.id}")
    if row["wheels"] not in ("pypi", build):
        raise _fault(where, "wheels", f"{row['wheels']} is not pypi or {build}")
    if (row["status"] == "current") == ("reason" in row):
        raise _fault(where, "reason", "is for legacy and unbuilt rows, and only for them")
    if numbers(row["torch"]) < (2, 6) and _CVE not in row.get("reason", ""):
        raise _fault(where, "reason", f"must name {_CVE}, which torch before 2.6 carries")


def _refuse_clashes(combos: tuple[Combo, ...]) -> None:
    ids = [combo.id for combo in combos]
    for combo in combos:
        if ids.count(combo.id) > 1:
            raise _fault(f"combo {combo.id}", "id", "is given twice")
        defaults = sum(other.default for other in combos if other.cuda == combo.cuda)
        if defaults != 1:
            problem = f"CUDA {combo.cuda} has {defaults} default rows, it needs one"
            raise _fault(f"combo {combo.id}", "default", problem)


def _has_torch(combo: Combo, torch: str) -> bool:
    wanted = numbers(torch) if torch else ()
    return numbers(combo.torch)[: len(wanted)] == wanted


def _nearest(combos: tuple[Combo, ...], field: str, version: str) -> str:
    """The rows just below and just above a version that no row has."""
    rows = sorted(combos, key=lambda combo: (numbers(getattr(combo, field)), combo.default))
    below = [row.id for row in rows if numbers(getattr(row, field)) < numbers(version)][-1:]
    above = [row.id for row in rows if numbers(getattr(row, field)) > numbers(version)][:1]
    return " and ".join(below + above)


def _impossible(combos: tuple[Combo, ...], rows: list[Combo], torch: str) -> str:
    has = f"CUDA {rows[0].cuda} has torch " + ", ".join(f"{row.torch} ({row.id})" for row in rows)
    owners = [combo.id for combo in combos if _has_torch(combo, torch)]
    if owners:
        return f"{has}; torch {torch} is in {', '.join(owners)}"
    return f"{has}; no combo has torch {torch}, nearest: {_nearest(combos, 'torch', torch)}"
