"""Tables and words for the terminal; plain and complete also where it is none."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hermitcrab.build import embedded, image
from hermitcrab.build import engine as engines
from hermitcrab.build import size as sizes
from hermitcrab.build.dockerfile import instructions
from hermitcrab.build.engine import Engine
from hermitcrab.build.lint import Finding, lint_dockerfile
from hermitcrab.build.requirements import lint_requirements
from hermitcrab.errors import UserError
from hermitcrab.matrix import Combo, Matrix

LARGEST = 20


def matrix(rows: Matrix) -> None:
    """One line per combo."""
    table = _table("combo", "CUDA", "torch", "Python", "driver from", "cards (sm)", "disk", "status")
    for combo in rows.combos:
        default = " (default)" if combo.default else ""
        cards = " ".join(combo.arch)
        table.add_row(
            combo.id, combo.cuda, combo.torch + default, combo.python, combo.driver, cards,
            f"{combo.disk_gb} GB", combo.status,
        )  # fmt: skip
    _console().print(table)


def result(engine: Engine, combo: Combo) -> None:
    """What a build ends with; raises UserError when the image is over its budget."""
    name = image.tag(combo)
    console = _console()
    _sizes(console, engine, combo)
    console.print(f"image   {image.built(engine, name).id}\ntag     {name}")
    docker, network = "docker", ""
    if engine.embedded:
        docker, network = f"{embedded.DOCKER.relative_to(embedded.ROOT)} --host {engine.host}", "--network host "
        console.print("engine  the embedded one goes on running; stop it with: ./invoke engine --stop")
    console.print(f"run     {docker} run --rm -it --gpus all {network}{name} bash", soft_wrap=True)
    console.print(
        f"save    ./invoke save --cuda {combo.cuda}      push    ./invoke push --cuda {combo.cuda} --to registry/name"
    )


def size(engine: Engine, combo: Combo, *, compressed: bool) -> None:
    """Layers, largest packages and verdicts of an image; raises UserError when over budget."""
    image.built(engine, image.tag(combo))
    if compressed:
        sizes.measure(engine, image.tag(combo))
    console = _console()
    table = _table("package", "version", "kind", "MB")
    for package in sizes.packages(engine, image.tag(combo))[:LARGEST]:
        table.add_row(package.name, package.version, package.kind, _mb(package.bytes))
    console.print(table)
    _sizes(console, engine, combo)


def engine() -> None:
    """Which engine is used, without starting one."""
    found = engines.find(start=False)
    print(f"engine: {'embedded' if found.embedded else 'yours'}, at {found.host}")


def lint(path: Path, choose: Callable[[], Combo]) -> None:
    """Print the findings on a user's own file; raises UserError when there are faults.

    What is named or begins like one is a Dockerfile; all else are requirements, read beside the combo chosen then.
    """
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", code=2) from error
    is_dockerfile = "dockerfile" in path.name.lower() or any(one.word == "FROM" for one in instructions(text))
    found = lint_dockerfile(text) if is_dockerfile else lint_requirements(text, choose())
    for finding in found:
        print(_finding(path, finding))
    faults = [finding for finding in found if not finding.is_note]
    if faults:
        raise UserError(f"{path}: {len(faults)} to mend")
    print(f"{path}: nothing to mend in this {'Dockerfile' if is_dockerfile else 'list of requirements'}")


def _sizes(console: Console, engine: Engine, combo: Combo) -> None:
    found = sizes.layers(engine, image.tag(combo))
    table = _table("layer", "disk MB", "gzip MB", "zstd MB")
    for layer in found:
        table.add_row(_what(layer.made_by), _mb(layer.disk), _mb(layer.gzip), _mb(layer.zstd))
    console.print(table)
    verdicts = sizes.verdicts(combo, found)
    for verdict in verdicts:
        word = "within" if verdict.kept else "OVER"
        console.print(f"budget  {verdict.what}: {verdict.found:.2f} GB, {word} {verdict.allowed} GB")
    if over := [verdict.what for verdict in verdicts if not verdict.kept]:
        raise UserError(
            f"{combo.id} is over its budget ({', '.join(over)}) - see `invoke size`; budgets are in images/matrix.yaml"
        )


def _what(made_by: str) -> str:
    """The layer's name out of the COPY that made it."""
    found = re.search(r"COPY /?(?:layers/)?(\S*) /", made_by)
    return (found[1].strip("/") or "system") if found else made_by[:40]


def _finding(path: Path, finding: Finding) -> str:
    said = f"{path}:{finding.line}: {finding.id}: {finding.message} - {finding.remedy}"
    return re.sub(r"[^\S ]|[\x00-\x1f\x7f-\x9f]", "?", said)  # the file's own words must not steer the terminal


def _mb(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:.1f}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column.endswith("MB") else "left", no_wrap=True)
    return table


def _console() -> Console:
    # Nothing is cut where the width is not a terminal's, and no name is taken for a colour.
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=200)
