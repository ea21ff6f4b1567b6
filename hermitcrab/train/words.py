"""The words of a user's command: what a program would never see as it was meant is refused or warned of.

The words go to the program as they are, so syntax of the shell in them is text. A line of a shell is not
guessed at: one line says how to hand it to a shell.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from typing import Iterator, Sequence

from hermitcrab.errors import UserError

SHELLS = {"ash", "bash", "dash", "ksh", "sh", "zsh"}
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
OPERATORS = re.compile(r"[|&;<>()]+|[0-9]*[<>]{1,2}&?[0-9-]*")
BUILT_IN = {"cd", "source", ".", "export", "eval", "set", "ulimit", "exec", "conda activate"}
# What ends a machine, where a command may stand: at the start, or after an operator.
POWER_OFF = re.compile(
    r"(?:^|[;&|({\n]|\b(?:then|else|do|sudo|exec)\s)\s*(?:sudo\s+)?((?:/usr)?/?(?:s?bin/)?(?:shutdown|poweroff|halt)\b"
    r"|init\s+0|systemctl\s+(?:poweroff|halt)|runpodctl\s+(?:stop|remove)\b|vastai\s+(?:stop|destroy)\b)"
)


def check(argv: Sequence[str]) -> None:
    """Refuse a command that cannot be what its words say; raises UserError with the line to type instead."""
    if not argv:
        raise UserError("no command: crab train [OPTIONS] -- python train.py …", code=2)
    first = argv[0]
    if len(argv) == 1 and re.search(r"\s", first.strip()) and not shutil.which(first):
        raise UserError(f"that is one word with spaces, not a program; write: {_meant(first)}", code=2)
    if ASSIGNMENT.match(first) and "/" not in first.partition("=")[0]:
        raise UserError(f"{first!r} is syntax of a shell; write: crab train -- env {shlex.join(argv)}", code=2)
    if shutil.which(first):
        return
    if first in BUILT_IN or any(OPERATORS.fullmatch(word) for word in argv):
        raise UserError(f"{first!r} is a word of the shell; write: crab train -- bash -o pipefail -c 'LINE'", code=2)
    raise UserError(f"no program {first!r} here" + _why(first), code=2)


def warnings(argv: Sequence[str]) -> Iterator[str]:
    """Yield what will surprise: a pipe that hides the status, a command that ends the machine by itself."""
    line = script(argv)
    if pipe_hides_status(argv):
        yield (
            "the exit status of a pipe is that of its last command: a failed training would look finished; "
            "write bash -o pipefail -c '…', or leave the pipe away: the output is kept in log.txt anyhow"
        )
    ending = POWER_OFF.search(line)
    if ending:
        yield (
            f"{ending[1]!r} in the command ends the machine after a failure too, and before anything is synced; "
            "leave it away and use --poweroff success (or finished)"
        )


def script(argv: Sequence[str]) -> str:
    """Return the line that a shell is given with -c; empty when there is none."""
    words = list(argv)
    if words and os.path.basename(words[0]) == "env":
        words = words[1:]
        while words and (ASSIGNMENT.match(words[0]) or words[0].startswith("-")):
            words = words[1:]
    if not words or os.path.basename(words[0]) not in SHELLS:
        return ""
    for number, word in enumerate(words[1:], 1):
        if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", word):
            # Options may follow before the line: `bash -c -o pipefail LINE` is as good.
            rest = words[number + 1 :]
            while rest and rest[0].startswith(("-", "+")):
                rest = rest[2 if rest[0] in {"-o", "+o", "-O"} else 1 :]
            return rest[0] if rest else ""
    return ""


def pipe_hides_status(argv: Sequence[str]) -> bool:
    """Say whether a shell's line ends in a pipe whose failures nobody would see."""
    line = script(argv)
    return bool(line) and _holds_pipe(line) and "pipefail" not in " ".join(argv)


def _holds_pipe(line: str) -> bool:
    return any(token in {"|", "|&"} for token in _tokens(line))


def _tokens(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError:  # a quote that is never closed: the shell will say so
        return []


def _meant(line: str) -> str:
    """Say how a whole line is given: its words, with env before them, or a shell where it needs one."""
    quoted = f"crab train -- bash -o pipefail -c {shlex.quote(line)}"
    words = _tokens(re.sub(r"(?<!\\);\s*$", "", line))
    if not words or any(OPERATORS.fullmatch(word) for word in words) or re.search(r"[$`*?~]|<<", line):
        return quoted
    return "crab train -- " + ("env " if ASSIGNMENT.match(words[0]) else "") + shlex.join(words)


def _why(first: str) -> str:
    if os.path.isdir(first):
        return ": it is a folder"
    if os.path.isfile(first):
        interpreter = "python " if first.endswith(".py") else "bash " if first.endswith(".sh") else ""
        return f": the file may not be run; write: crab train -- {interpreter or 'INTERPRETER '}{shlex.quote(first)} …"
    return "; is its environment activated?"
