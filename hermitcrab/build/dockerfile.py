"""Reads a Dockerfile into instructions, as far as the lint needs it: lines, words, stages.

It never fails: text that is no Dockerfile gives instructions no rule knows. Every step is linear
in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_ESCAPE = re.compile(r"#\s{0,8}escape\s{0,8}=\s{0,8}([`\\])\s*$", re.IGNORECASE)
_HEREDOC = re.compile(r"(?:^|\s)\d{0,4}<<(-?)([\"']?)([A-Za-z_]\w{0,80})\2(?=[\s;&|>)]|$)")
_PAIR = re.compile(r"(?<![\w.-])([\w.-]+)(?:=(\"(?:\\.|[^\"\\])*\"|'[^']*'|(?:\\.|[^\s\\])*))?", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w{1,80})(?::?([-+])([^}$]{0,200}))?\}|(\w{1,80}))")
_LONGEST = 512  # a name or a value that is longer is cut: defaults that double must not explode


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction: where it starts, its word in capitals, and the rest on one line."""

    line: int
    word: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What one FROM starts; ``base`` is the reference with the defaults of ARGs put in."""

    line: int
    base: str
    name: str
    parent: int | None
    body: list[Instruction] = field(default_factory=list)


def instructions(text: str) -> list[Instruction]:
    """Split a Dockerfile into its instructions; heredoc bodies stay with theirs."""
    return list(_instructions(text.removeprefix("\ufeff").split("\n")))


def stages(found: list[Instruction]) -> list[Stage]:
    """Group the instructions by stage; what stands before the first FROM is left out."""
    made: list[Stage] = []
    known: dict[str, int] = {}
    defaults: dict[str, str] = {}
    for one in found:
        if one.word == "FROM":
            stage = _stage(one, known, defaults)
            if stage.name:
                known[stage.name.lower()] = len(made)
            made.append(stage)
        elif made:
            made[-1].body.append(one)
        elif one.word == "ARG":
            for name, value in pairs(one):
                if value:
                    defaults[name] = _filled(value, defaults)
    return made


def shipped(made: list[Stage]) -> set[int]:
    """Indexes of the stages whose layers are in the final image."""
    index: int | None = len(made) - 1 if made else None
    chain: set[int] = set()
    while index is not None:
        chain.add(index)
        index = made[index].parent
    return chain


def pairs(one: Instruction) -> list[tuple[str, str]]:
    """Names and values of an ENV, ARG or LABEL, in both spellings."""
    first, _, rest = one.value.partition(" ")
    if "=" in first or one.word == "ARG":
        return [(name, _unquoted(value)) for name, value in _PAIR.findall(one.value)]
    return [(first, rest.strip())] if first else []


def _instructions(lines: list[str]) -> Iterator[Instruction]:
    escape = _escape(lines)
    # Where a heredoc ends; one whose end never comes is no heredoc.
    last = {line.strip(): number for number, line in enumerate(lines)}
    number = 0
    while number < len(lines):
        start, logical, number = number, *_logical(lines, number, escape)
        word, _, value = logical.strip().replace("\t", " ").partition(" ")
        if word.upper() == "ONBUILD":
            word, _, value = value.strip().partition(" ")
        if word.upper() in ("RUN", "COPY", "ADD"):
            body, number = _heredocs(lines, number, value, last)
            value += body
        if word:
            yield Instruction(line=start + 1, word=word.upper(), value=value.strip())


def _logical(lines: list[str], number: int, escape: str) -> tuple[str, int]:
    """Join a line with its continuations; comments and empty lines between them do not count."""
    parts: list[str] = []
    while number < len(lines):
        line = lines[number].rstrip()
        number += 1
        if line.lstrip().startswith("#") or (parts and not line):
            if not parts:
                break
            continue
        if not line.endswith(escape):
            parts.append(line)
            break
        parts.append(line[:-1])
    return "".join(parts), number


def _heredocs(lines: list[str], number: int, value: str, last: dict[str, int]) -> tuple[str, int]:
    body: list[str] = []
    for found in _HEREDOC.finditer(value):
        if last.get(found[3], -1) < number:
            continue
        while number < len(lines):
            line = lines[number].rstrip("\r")
            number += 1
            if (line.strip() if found[1] else line) == found[3]:
                break
            body.append(line)
    return "".join(f"\n{line}" for line in body), number


def _escape(lines: list[str]) -> str:
    """Read the parser directive that may replace the backslash (Windows paths)."""
    for line in lines:
        if not re.match(r"#\s{0,8}\w{1,32}\s{0,8}=", line):
            break
        if found := _ESCAPE.match(line):
            return found[1]
    return "\\"


def _stage(one: Instruction, known: dict[str, int], defaults: dict[str, str]) -> Stage:
    words = [word for word in one.value.split() if not word.startswith("--")]
    base = _filled(words[0], defaults) if words else ""
    name = words[2] if len(words) > 2 and words[1].upper() == "AS" else ""
    return Stage(line=one.line, base=base, name=name, parent=known.get(base.lower()))


def _filled(text: str, values: dict[str, str]) -> str:
    """Put the defaults in; a variable without one stays as it is written."""

    def value(found: re.Match[str]) -> str:
        known = values.get(found[1] or found[4], "")
        if found[2] == "+":
            return found[3] if known else ""
        return known or (found[3] if found[2] else found[0])

    return _VARIABLE.sub(value, text[:_LONGEST])[:_LONGEST]


def _unquoted(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted else value
