"""The rules of the house, each with a fault that it must find: layers, sizes, one place for data.

A rule is a function from a source tree to its faults; the project must have none, and a planted
tree must have exactly the planted one.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]

# What runs on the box, and what of the project it may import besides the standard library.
BOX = {
    "hermitcrab/__init__.py": (),
    "hermitcrab/errors.py": (),
    "hermitcrab/status.py": ("hermitcrab.box",),
    "hermitcrab/cli.py": ("hermitcrab", "hermitcrab.errors"),  # it names the modules of its commands as texts
    "hermitcrab/box": ("hermitcrab", "hermitcrab.errors", "hermitcrab.box", "torch"),
    "hermitcrab/checkpoint": (
        "hermitcrab",
        "hermitcrab.errors",
        "hermitcrab.box",
        "hermitcrab.status",
        "hermitcrab.checkpoint",
        "torch",
    ),
    # What it may use of the checkpointer runs without torch: a supervisor must start before it and outlive it.
    "hermitcrab/train": (
        "hermitcrab",
        "hermitcrab.errors",
        "hermitcrab.box",
        "hermitcrab.status",
        "hermitcrab.checkpoint",
        "hermitcrab.train",
    ),
}
# In the standard library of some Python from 3.8 on, but not of all.
NOT_EVERYWHERE = {
    *("aifc", "asynchat", "asyncore", "audioop", "cgi", "cgitb", "chunk", "crypt", "distutils"),
    *("graphlib", "imghdr", "imp", "lib2to3", "mailcap", "msilib", "nis", "nntplib"),
    *("ossaudiodev", "pipes", "smtpd", "sndhdr", "spwd", "sunau", "telnetlib", "tomllib", "uu"),
    *("xdrlib", "zoneinfo"),
}
# The face calls down, the matrix calls nobody.
AT_HOME = {
    "hermitcrab/matrix.py": ("hermitcrab.build", "hermitcrab.connect", "hermitcrab.box"),
    "hermitcrab/build": ("hermitcrab.connect", "hermitcrab.cli", "hermitcrab.checkpoint", "hermitcrab.train", "tasks"),
    "hermitcrab/connect": ("hermitcrab.cli", "hermitcrab.checkpoint", "hermitcrab.train", "tasks"),
}
# The modules that may talk to Docker through its SDK.
DOCKER_MODULES = {"hermitcrab/build/engine.py"}
MAX_LINES = 300
TYPE_NAMES = {kind.__name__ for kind in (bool, bytes, dict, float, frozenset, int, list, set, str, tuple, type)}

# Joined here, so that this file does not hold what it forbids.
HOSTS = tuple(
    ".".join(labels)
    for labels in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("download", "pytorch", "org"),
        ("deb", "debian", "org"),
        ("security", "debian", "org"),
        ("snapshot", "debian", "org"),
        ("archive", "ubuntu", "com"),
        ("security", "ubuntu", "com"),
        ("registry", "npmjs", "org"),
        ("npmjs", "com"),
        ("proxy", "golang", "org"),
        ("crates", "io"),
    )
)

# Where the versions of torch and CUDA belong, and what only tells or tests.
VERSIONS_BELONG = (".ci/", "images/", "bootstrap/", "tests/", "benchmarks/", "docs/")
# Facts about other people's versions, which no row of the matrix holds.
VERSION_FACTS = {"hermitcrab/build/lint.py": "the tags of nvidia/cuda that were withdrawn"}
VERSION_FIELDS = {"cuda", "torch", "torchvision", "torchaudio"}
VERSION = re.compile(r"\btorch(?:vision|audio)?\s*[=<>~!]=?\s*\d|\bcu1\d\d\b|\bcuda\d")


def box_faults(root: Path) -> Iterator[str]:
    """Box code imports what every Python from 3.8 on has, torch, and its own kind."""
    library = sys.stdlib_module_names - NOT_EVERYWHERE
    for place, allowed in BOX.items():
        for path, name in imported(root, place):
            if name.split(".")[0] not in library and not within(name, allowed):
                yield f"{path}: imports {name}"


def layer_faults(root: Path) -> Iterator[str]:
    """At home nothing calls upward."""
    for place, refused in AT_HOME.items():
        for path, name in imported(root, place):
            if within(name, refused):
                yield f"{path}: imports {name}"


def docker_faults(root: Path) -> Iterator[str]:
    """Only the modules of the table import Docker's SDK."""
    for path, name in [*imported(root, "hermitcrab"), *imported(root, "tasks.py")]:
        if path not in DOCKER_MODULES and within(name, ("docker",)):
            yield f"{path}: imports {name}"


def size_faults(root: Path) -> Iterator[str]:
    """A file one can read at a sitting."""
    for path in modules(root, "hermitcrab"):
        lines = path.read_text().count("\n")
        if lines > MAX_LINES:
            yield f"{relative(root, path)}: {lines} lines"


def grammar_faults(root: Path) -> Iterator[str]:
    """Box code parses under Python 3.8, and no newer form of a type is evaluated."""
    for path in (path for place in BOX for path in modules(root, place)):
        text = path.read_text()
        try:
            tree = ast.parse(text, feature_version=(3, 8))
        except SyntaxError as error:
            yield f"{relative(root, path)}:{error.lineno}: {error.msg}"
            continue
        yield from (f"{relative(root, path)}:{line}: {said}" for line, said in generics(tree))
        if re.search(r"^(def|class|import|from) ", text, re.MULTILINE) and (
            "from __future__ import annotations" not in text
        ):
            yield f"{relative(root, path)}: no `from __future__ import annotations`"


def library_faults(root: Path) -> Iterator[str]:
    """Box code uses nothing of the standard library that came after Python 3.8."""
    paths = [str(path) for place in BOX for path in modules(root, place)]
    if paths:
        vermin = [sys.executable, "-c", "from vermin import main; main()"]
        done = subprocess.run(
            [*vermin, "--no-config-file", "--quiet", "--violations", "-t=3.8-", "-p=1", *paths],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            yield from done.stdout.splitlines() or [done.stderr]


def host_faults(root: Path) -> Iterator[str]:
    """No file names a registry or an archive: they are the user's own settings."""
    pattern = re.compile("|".join(rf"\b{re.escape(host)}\b" for host in HOSTS), re.IGNORECASE)
    for path, text in texts(root):
        for found in pattern.finditer(text):
            yield f"{path}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]}"


def version_faults(root: Path) -> Iterator[str]:
    """The versions of torch and CUDA stand in the matrix; code, templates and scripts get them."""
    known = matrix_versions(root)
    for path, text in texts(root):
        told = path.endswith((".md", ".toml", ".lock", ".in")) or path in VERSION_FACTS
        if told or path.startswith(VERSIONS_BELONG):
            continue
        strings = python_strings(text) if path.endswith(".py") else script_lines(text)
        for line, said in strings:
            words = {said} if path.endswith(".py") else set(re.findall(r"[\w.]+", said))
            if words & known or (VERSION.search(said) and "such as" not in said):
                yield f"{path}:{line}: {said.strip()}"


def modules(root: Path, place: str) -> list[Path]:
    """List the Python files of a folder, or the one file, or none."""
    path = root / place
    return sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.exists() else []


def imported(root: Path, place: str) -> Iterator[tuple[str, str]]:
    """Pair the files of a place with each name they import."""
    for path in modules(root, place):
        yield from ((relative(root, path), name) for name in imports(root, path))


def imports(root: Path, path: Path) -> Iterator[str]:
    """Name all that a file imports, wherever in it, relative imports resolved."""
    package = path.relative_to(root).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def within(name: str, allowed: tuple[str, ...]) -> bool:
    """Say whether an imported name is one of the modules, or of their contents.

    ``hermitcrab`` itself stands for its version only, or it would allow every module below.
    """
    return any(
        name in {"hermitcrab", "hermitcrab.__version__"}
        if module == "hermitcrab"
        else f"{name}.".startswith(f"{module}.")
        for module in allowed
    )


def generics(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Find ``list[int]`` and ``int | None`` outside annotations: 3.8 stumbles when it gets there."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        for field, value in ast.iter_fields(node):
            if field not in {"annotation", "returns"}:
                parts = value if isinstance(value, list) else [value]
                todo += [part for part in parts if isinstance(part, ast.AST)]
        sides = [node.left, node.right] if isinstance(node, ast.BinOp) else []
        sides += [node.value] if isinstance(node, ast.Subscript) else []
        if any(isinstance(side, ast.Name) and side.id in TYPE_NAMES for side in sides):
            yield node.lineno, f"{ast.unparse(node)} is evaluated"  # type: ignore[attr-defined]


def relative(root: Path, path: Path) -> str:
    """Name a file as the tables do."""
    return path.relative_to(root).as_posix()


def texts(root: Path) -> Iterator[tuple[str, str]]:
    """Read every text file that git tracks or would add."""
    command = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name in sorted(filter(None, listed.split("\0"))):
        data = (root / name).read_bytes() if (root / name).is_file() else b"\0"
        if b"\0" not in data:
            yield name, data.decode(errors="replace")


def python_strings(text: str) -> Iterator[tuple[int, str]]:
    """Yield the strings of a Python file that are no docstrings: comments and prose may tell."""
    tree = ast.parse(text)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value


def script_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are no comments."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.lstrip().startswith("#"):
            yield number, line


def matrix_versions(root: Path) -> set[str]:
    """Collect the versions that the rows hold."""
    # Every scalar a string: 12.10 is no 12.1.
    matrix = yaml.load((root / "images/matrix.yaml").read_text(), Loader=yaml.BaseLoader)  # noqa: S506 - it makes only strings
    return {row[field] for row in matrix["combos"] for field in VERSION_FIELDS & row.keys()}


Rule = Callable[[Path], Iterator[str]]
RULES: tuple[Rule, ...] = (
    box_faults,
    layer_faults,
    docker_faults,
    size_faults,
    grammar_faults,
    library_faults,
    host_faults,
    version_faults,
)
FUTURE = "from __future__ import annotations\n"
FAULTS: tuple[tuple[Rule, str, str, str], ...] = (
    (box_faults, "hermitcrab/box/x.py", "import yaml\n", "imports yaml"),
    (box_faults, "hermitcrab/box/x.py", "import tomllib\n", "imports tomllib"),
    (box_faults, "hermitcrab/checkpoint/x.py", "def f():\n    import docker.tls\n", "docker.tls"),
    (box_faults, "hermitcrab/box/a/x.py", "from ...build import render\n", "build.render"),
    (box_faults, "hermitcrab/box/x.py", "from hermitcrab import matrix\n", "hermitcrab.matrix"),
    (box_faults, "hermitcrab/box/x.py", "import hermitcrab.boxes\n", "hermitcrab.boxes"),
    (box_faults, "hermitcrab/box/x.py", "from hermitcrab.checkpoint import x\n", "checkpoint.x"),
    (box_faults, "hermitcrab/cli.py", "import hermitcrab.connect\n", "hermitcrab.connect"),
    (layer_faults, "hermitcrab/matrix.py", "import hermitcrab.build.lock\n", "build.lock"),
    (layer_faults, "hermitcrab/build/x.py", "import tasks\n", "imports tasks"),
    (docker_faults, "hermitcrab/build/x.py", "from docker import errors\n", "imports docker"),
    (docker_faults, "tasks.py", "import docker\n", "imports docker"),
    (size_faults, "hermitcrab/build/x.py", "x = 1\n" * (MAX_LINES + 1), "301 lines"),
    (grammar_faults, "hermitcrab/box/x.py", f"{FUTURE}match 1:\n    case 1: ...\n", "3.10"),
    (grammar_faults, "hermitcrab/cli.py", "def f(x: int | None): ...\n", "no `from __future__"),
    (library_faults, "hermitcrab/box/x.py", "'ab'.removeprefix('a')\n", "removeprefix"),
    (grammar_faults, "hermitcrab/errors.py", f"{FUTURE}Row = dict[str, int]\n", "dict[str, int]"),
    (grammar_faults, "hermitcrab/box/x.py", f"{FUTURE}isinstance(1, int | str)\n", "int | str"),
    (library_faults, "hermitcrab/cli.py", "x = {} | {}\n", "dict union"),
    (
        library_faults,
        "hermitcrab/checkpoint/x.py",
        "from dataclasses import dataclass\n@dataclass(kw_only=True)\nclass A: ...\n",
        "kw_only",
    ),
    *(
        (host_faults, name, f"\n# see https://files.{host.upper()}/x\n", f"{name}:2: ")
        for host in HOSTS
        for name in ("a b.sh", "docs/ünï.md")
    ),
    (version_faults, "hermitcrab/build/x.py", 'x = "2.4.1"\n', "x.py:1: 2.4.1"),
    (version_faults, "hermitcrab/build/x.py", 'def f(x="torch>=2"): ...\n', "torch>=2"),
    (version_faults, "tasks.py", 'x = f"{1}+cu121"\n', "cu121"),
    (version_faults, "templates/x.sh", "# CUDA 12.1\npip install torch==9\n", "x.sh:2: "),
    (version_faults, "templates/Dockerfile.j2", "ENV CUDA=12.1\n", "ENV CUDA=12.1"),
)
CLEAN: tuple[tuple[Rule, str, str], ...] = (
    (box_faults, "hermitcrab/box/x.py", "import os.path, torch.nn\nfrom . import keys\n"),
    (box_faults, "hermitcrab/checkpoint/x.py", "from hermitcrab.box import power\n"),
    (box_faults, "hermitcrab/cli.py", "from hermitcrab import __version__\n"),
    (layer_faults, "hermitcrab/build/x.py", "from hermitcrab import matrix\n"),
    (docker_faults, "hermitcrab/build/engine.py", "import docker\n"),
    (docker_faults, "hermitcrab/build/x.py", "from hermitcrab.build import dockerfile\n"),
    (size_faults, "hermitcrab/build/x.py", "x = 1\n" * MAX_LINES),
    (grammar_faults, "hermitcrab/build/x.py", "match 1:\n    case 1: ...\n"),
    (grammar_faults, "hermitcrab/box/x.py", f"{FUTURE}def f(x: dict[str, int] | None): ...\n"),
    (library_faults, "hermitcrab/box/x.py", f"{FUTURE}def f(x: dict[str, int] | None): ...\n"),
    (host_faults, "README.md", "a registry's host is never named; example.org is no registry\n"),
    (version_faults, "hermitcrab/build/x.py", '"""As in torch==2.4.1."""\n# cu121\nx = "3.11"\n'),
    (version_faults, "hermitcrab/matrix.py", 'x = "a build such as cu118"\n'),
    (version_faults, "README.md", "./invoke build --cuda 12.1 # torch==2.4.1\n"),
)


def plant(root: Path, name: str, text: str) -> None:
    """Make a source tree with a matrix and one file."""
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for path, said in (
        ("images/matrix.yaml", 'combos: [{cuda: "12.1", torch: 2.4.1}]\n'),
        (name, text),
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(said)


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps_its_rules(rule: Rule) -> None:
    """No file of the project breaks the rule."""
    assert list(rule(ROOT)) == []


@pytest.mark.parametrize(("rule", "name", "text", "said"), FAULTS)
def test_a_planted_fault_is_found(rule: Rule, name: str, text: str, said: str, tmp_path: Path) -> None:
    """The rule finds the fault, names the file and says what it is."""
    plant(tmp_path, name, text)

    found = "\n".join(rule(tmp_path))
    assert said in found
    assert Path(name).name in found


@pytest.mark.parametrize(("rule", "name", "text"), CLEAN)
def test_what_is_allowed_is_not_a_fault(rule: Rule, name: str, text: str, tmp_path: Path) -> None:
    """The rule does not cry wolf at its neighbour."""
    plant(tmp_path, name, text)

    assert list(rule(tmp_path)) == []


def test_every_rule_has_a_planted_fault_and_a_clean_neighbour() -> None:
    """A rule that nothing can break is no rule."""
    assert {row[0] for row in FAULTS} == set(RULES) == {row[0] for row in CLEAN}


def test_the_rules_look_at_real_files() -> None:
    """A rule over an empty list would always pass."""
    assert relative(ROOT, ROOT / "hermitcrab/box/entry.py") in dict(texts(ROOT))
    assert modules(ROOT, "hermitcrab/box")
    assert {"12.1", "2.4.1"} <= matrix_versions(ROOT)
