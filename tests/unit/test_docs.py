"""The documents keep up with the code: the table, the commands, the links, the tree, the version.

A check is a function from a source tree to its faults; the project must have none, and a planted
fault must be found.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from datetime import date
from os.path import normpath
from pathlib import Path

import pytest
from invoke.collection import Collection
from invoke.exceptions import ParseError
from invoke.parser import Parser
from invoke.program import Program

import tasks
from hermitcrab import __version__
from hermitcrab.build import readme
from hermitcrab.errors import UserError
from hermitcrab.matrix import load, select

ROOT = Path(__file__).parents[2]
DOCS = ("*.md", "docs/**/*.md", "benchmarks/*.md")
TOP = 15  # a reader who stops here can build
TREE = re.compile(r"^## What is where\n+```\n(.*?)^```", re.MULTILINE | re.DOTALL)
# ./invoke anywhere, and plain invoke at the start of a code span.
COMMAND = re.compile(r"(?:\./|(?<=`))invoke((?: +[^\s`#;|&]+)+)")
COMBO = re.compile(r"\bcuda\d[\d.]*-torch[\d.]+-py\d+")
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def table_faults(root: Path) -> Iterator[str]:
    """The README's table is what the matrix gives."""
    text = (root / "README.md").read_text()
    if readme.render(text, load()) != text:
        yield "README.md: the table of combos is stale - run ./invoke render"


def top_faults(root: Path) -> Iterator[str]:
    """The first lines of the README build a combo that exists, and run it by its name."""
    top = "\n".join((root / "README.md").read_text().splitlines()[:TOP])
    built = re.search(r"^\./invoke build --cuda (\S+)$", top, re.MULTILINE)
    if built is None:
        yield f"README.md: no build command in the first {TOP} lines"
    elif not re.search(rf"^docker run .*hermitcrab:{select(load(), built[1]).id}\b", top, re.MULTILINE):
        yield f"README.md: what the first {TOP} lines build is not what they run"


def combo_faults(root: Path) -> Iterator[str]:
    """What tells the present names combos that exist; the changelog and the measurements tell the past."""
    known = {combo.id for combo in load().combos}
    for path, text in documents(root):
        if not path.startswith(("CHANGELOG", "benchmarks/")):
            yield from (f"{path}: no combo {name}" for name in COMBO.findall(text) if name not in known)


def command_faults(root: Path) -> Iterator[str]:
    """Invoke understands every command: its task, its options, what it needs."""
    contexts = Collection.from_module(tasks).to_contexts()
    for path, text in documents(root):
        for found in COMMAND.finditer(text):
            parser = Parser(contexts=contexts, initial=Program().initial_context)
            try:
                parser.parse_argv(shlex.split(found[1]))
            except ParseError as error:
                yield f"{path}: invoke{found[1]}: {error}"


def link_faults(root: Path) -> Iterator[str]:
    """A relative link leads to a file of the project, its heading, or the function it is named after."""
    for path, text in documents(root):
        for label, target in LINK.findall(text):
            if "://" in target:
                continue
            name, _, heading = target.partition("#")
            file = Path(normpath((root / path).parent / name)) if name else root / path
            if not file.exists() or not file.is_relative_to(root):
                yield f"{path}: {target} is not there"
            elif heading and heading not in headings(file):
                yield f"{path}: {target} has no such heading"
            elif file.suffix == ".py" and not named(label, file):
                yield f"{path}: {target} has no {label}"


def tree_faults(root: Path) -> Iterator[str]:
    """Every line of the README's tree names what exists, and says what it is."""
    found = TREE.search((root / "README.md").read_text())
    folders: list[str] = []
    for line in found[1].splitlines() if found else ["no tree"]:
        name, _, phrase = line.strip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // 2
        folders[depth:] = [name]
        pattern = re.sub(r"<\w+>", "*", "".join(folders))
        if not phrase.strip() or not any(root.glob(pattern)):
            yield f"README.md: tree: {line.strip()}"


def changelog_faults(root: Path) -> Iterator[str]:
    """The changelog has the version of the package, with a date."""
    text = (root / "CHANGELOG.md").read_text()
    found = re.search(rf"^## \[{re.escape(__version__)}\] - (\S+)$", text, re.MULTILINE)
    try:
        date.fromisoformat(found[1] if found else "")
    except ValueError:
        yield f"CHANGELOG.md: no dated section for {__version__}"


def documents(root: Path) -> Iterator[tuple[str, str]]:
    """Read every document by its path."""
    for path in sorted({path for pattern in DOCS for path in root.glob(pattern)}):
        yield path.relative_to(root).as_posix(), path.read_text()


def headings(file: Path) -> set[str]:
    """Name the headings of a document as a link does."""
    lines = re.findall(r"^#+ +(.+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def named(label: str, file: Path) -> bool:
    """Say whether a label in code font is a function of the file; any other label is prose."""
    found = re.fullmatch(r"`(\w+)`", label)
    return not found or re.search(rf"^def {found[1]}\(", file.read_text(), re.MULTILINE) is not None


Check = Callable[[Path], Iterator[str]]
CHECKS: tuple[Check, ...] = (
    table_faults,
    top_faults,
    combo_faults,
    command_faults,
    link_faults,
    tree_faults,
    changelog_faults,
)
# The check, the document, what is replaced in it by what, and what the check must say.
FAULTS: tuple[tuple[Check, str, tuple[str, str], str], ...] = (
    (table_faults, "README.md", ("525.60.13", "525.60.14"), "stale"),
    (table_faults, "README.md", ("| legacy |", "| current |"), "stale"),
    (table_faults, "README.md", (readme.END, f"one line more\n{readme.END}"), "stale"),
    (top_faults, "README.md", ("# hermitcrab\n", "# hermitcrab\n" + "news\n" * TOP), "no build"),
    (top_faults, "README.md", ("./invoke build", "./invoke make"), "no build"),
    (top_faults, "README.md", ("build --cuda 12.1\n", "build --cuda 12.4\n"), "not what they run"),
    (combo_faults, "docs/images.md", ("torch2.4.1-py311", "torch2.4.0-py311"), "no combo cuda12.1-torch2.4.0-py311"),
    (command_faults, "README.md", ("./invoke list ", "./invoke show "), "'show'"),
    (command_faults, "README.md", ("engine --stop", "engine --halt"), "'--halt'"),
    (command_faults, "README.md", ("./invoke --list", "./invoke --all"), "'--all'"),
    (command_faults, "docs/images.md", ("lint Dockerfile", "lint"), "'path'"),
    (command_faults, "docs/adr/0005-reproducible-by-construction.md", ("`invoke verify", "`invoke prove"), "'prove'"),
    (link_faults, "README.md", ("(LICENSE)", "(LICENCE)"), "LICENCE is not there"),
    (link_faults, "README.md", ("(LICENSE)", "(../LICENSE)"), "../LICENSE is not there"),
    (link_faults, "README.md", ("#the-engine", "#the-motor"), "#the-motor has no such heading"),
    (link_faults, "docs/images.md", ("(#ssh)", "(#telnet)"), "#telnet has no such heading"),
    (link_faults, "CONTRIBUTING.md", ("[`box_faults`]", "[`sea_faults`]"), "no `sea_faults`"),
    (tree_faults, "README.md", ("## What is where", "## Where"), "no tree"),
    (tree_faults, "README.md", ("  matrix.py  ", "  mattress.py  "), "mattress.py"),
    (tree_faults, "README.md", ("<combo>/  ", "<combo>s/  "), "<combo>s/"),
    (tree_faults, "README.md", ("errors.py", "errors.py\n  cli.py"), "tree: errors.py"),
    (changelog_faults, "CHANGELOG.md", (f"[{__version__}]", "[0.0.9]"), "no dated section"),
    (changelog_faults, "CHANGELOG.md", (f"[{__version__}] - 20", f"[{__version__}] - 30 Nov 20"), "no dated section"),
)


@pytest.mark.parametrize("check", CHECKS)
def test_the_documents_are_true(check: Check) -> None:
    """No document of the project says what is not so."""
    assert list(check(ROOT)) == []


@pytest.mark.parametrize(("check", "name", "change", "said"), FAULTS)
def test_a_planted_fault_is_found(check: Check, name: str, change: tuple[str, str], said: str, tmp_path: Path) -> None:
    """One change in a copy of the documents is found and named."""
    mirror(tmp_path)
    before = list(check(tmp_path))
    text = (tmp_path / name).read_text()
    assert change[0] in text
    (tmp_path / name).write_text(text.replace(*change, 1))

    found = [fault for fault in check(tmp_path) if fault not in before]
    assert found
    assert name in found[0]
    assert said in found[0]


def test_every_check_has_a_planted_fault() -> None:
    """A check that cannot fail is no check."""
    assert {row[0] for row in FAULTS} == set(CHECKS)


def test_the_checks_look_at_real_documents() -> None:
    """A check over an empty list would always pass."""
    names = dict(documents(ROOT))
    assert {"README.md", "CONTRIBUTING.md", "docs/images.md"} <= names.keys()
    assert len([name for name in names if name.startswith("docs/adr/")]) >= 6
    assert sum(len(COMMAND.findall(text)) for text in names.values()) > 30


@pytest.mark.parametrize(
    "text",
    [
        "no table",
        f"{readme.START}\n",
        f"{readme.END}\n{readme.START}\n",
        f"{readme.START}{readme.START}{readme.END}",
        f"{readme.START}{readme.END}{readme.END}",
    ],
)
def test_a_readme_without_its_two_markers_is_refused(text: str) -> None:
    """A lost marker is an error, or the table would silently grow old."""
    with pytest.raises(UserError, match="once each"):
        readme.render(text, load())


def test_rendering_keeps_the_rest_and_is_stable() -> None:
    """Only what stands between the markers is written, and a second time changes nothing."""
    matrix = load()
    once = readme.render(f"before {readme.START}old{readme.END} after\n", matrix)

    assert once.startswith(f"before {readme.START}\n\n| ")
    assert once.endswith(f"\n\n{readme.END} after\n")
    assert "old" not in once.removeprefix("before")
    assert readme.render(once, matrix) == once


def test_the_table_has_every_combo_and_every_reason() -> None:
    """One row for each combo, and each reason in words."""
    matrix = load()
    table = readme.table(matrix)

    assert table.count("\n| `--cuda ") == len(matrix.combos)
    assert all(combo.torch in table and combo.driver in table for combo in matrix.combos)
    assert all(combo.reason in table for combo in matrix.combos)


def mirror(folder: Path) -> None:
    """Make a tree that looks like the project, of links, with documents of its own."""
    for path in ROOT.iterdir():
        if path.name not in {".git", ".venv", ".cache", "docs"} and path.suffix != ".md":
            (folder / path.name).symlink_to(path)
    for name, text in documents(ROOT):
        if not name.startswith("benchmarks/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
