"""What must stand nowhere in what a box runs or an image is made with, each found when it is planted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hermitcrab import matrix as matrices

ROOT: Final = Path(__file__).parents[2]
NEVER: Final = {
    # C27: a network's own certificates are trusted by name, or nothing is fetched.
    "certificates go unverified": (
        r"--insecure|trusted-host|allow-insecure|Verify-(Peer|Host)|curl\s+(-\w+\s+)*-\w*k\b|--no-check-certificate"
        r"|SSL_NO_VERIFY|NODE_TLS_REJECT|sslVerify|CERT_NONE|_unverified_|check_hostname|verify\s*=\s*False|ssl_verify"
    ),
    # S44: a Python that its distribution manages is not changed.
    "a managed Python is changed": r"break-system-packages|EXTERNALLY-MANAGED.*unlink",
    # S47: git's own message names the one folder and the line; nobody is trusted everywhere.
    "git trusts folders of others": r"safe\.directory",
    # C25: a login that becomes a tmux breaks scp and editors.
    "a shell becomes a tmux": r"exec\s+tmux|tmux\s+(new|attach)[^\n]*\bexec\b",
    # C01, C08: neither a driver nor a card's mode is a renter's to change.
    "the card is set up anew": r"nvidia-smi[^\n]*\s-(mig|-gpu-reset|r)\b|apt-get[^\n]*install[^\n]*(nvidia|cuda)",
    # A saved password, or one that is asked for, would hang in a pipe.
    "sudo asks": r"\bsudo -(S|A|k)\b",
}
PLANTED: Final = {
    "certificates go unverified": ("pip install --trusted-host x", "curl -fsSk https://x", "context.verify = False"),
    "a managed Python is changed": ("pip install --break-system-packages x",),
    "git trusts folders of others": ("git config --global --add safe.directory '*'",),
    "a shell becomes a tmux": ('[ -n "$TMUX" ] || exec tmux new -A',),
    "the card is set up anew": ("nvidia-smi -mig 0", "apt-get install -y nvidia-utils-550"),
    "sudo asks": ("echo x | sudo -S true",),
}


def sources(top: Path = ROOT) -> Iterator[Path]:
    """Everything that runs on a box or makes an image."""
    for folder in ("hermitcrab", "templates"):
        yield from (path for path in (top / folder).rglob("*") if path.is_file() and path.suffix != ".pyc")


def faults(rule: str, top: Path = ROOT) -> list[str]:
    """Where a rule is broken."""
    word = re.compile(NEVER[rule])
    return [path.name for path in sources(top) if word.search(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("rule", NEVER)
def test_it_stands_nowhere(rule: str) -> None:
    """In no module, template, setting or part."""
    assert faults(rule) == []


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule, texts in PLANTED.items() for text in texts])
def test_it_would_be_found(rule: str, text: str, tmp_path: Path) -> None:
    """Planted in a template."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/x.sh").write_text(f"set -eu\n{text}\n")
    assert faults(rule, tmp_path) == ["x.sh"]
    assert NEVER.keys() == PLANTED.keys()


def test_the_cases_are_about_these() -> None:
    """S44, S47 and C27, in the words people met them by."""
    for case, words in (
        ("S44", "externally-managed-environment"),
        ("S47", "safe.directory /workspace/proj"),
        ("C27", "unable to get local issuer certificate"),
    ):
        assert words in (ROOT / f"tests/cases/{case}.txt").read_text()


def children(text: str) -> list[int]:
    """The lines that start a program without saying what its input is."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    starts = {f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output")}
    starting = [node for node in calls if ast.unparse(node.func) in starts]
    return [node.lineno for node in starting if not {"stdin", "input"} & {one.arg for one in node.keywords}]


def test_every_child_of_a_box_s_tools_has_an_input_of_its_own() -> None:
    """C18: none may eat the text of the script, or wait for a terminal."""
    found = {path.name: children(path.read_text()) for path in (ROOT / "hermitcrab/box").rglob("*.py")}
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert children("import subprocess\nsubprocess.run(['git'])\nsubprocess.run(['git'], stdin=0)\n") == [2]


def test_a_lean_image_knows_whom_to_trust() -> None:
    """C27: the certificates are among the packages of every image and box."""
    assert "ca-certificates" in matrices.load().packages
