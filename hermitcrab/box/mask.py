"""Takes secrets out of text before it is shown: tokens, passwords, credentials in URLs and headers.

Every pattern is bounded, so that a hostile log cannot make masking slow. Masking too much costs
a little clarity, masking too little costs a token: where in doubt, a word is masked.
"""

from __future__ import annotations

import re
from typing import Sequence

from hermitcrab.box import tokens

HIDDEN = "***"

# Secrets by their shape, wherever they stand. Group 1, where there is one, is kept.
_SHAPES = tuple(
    re.compile(pattern)
    for pattern in (
        tokens.pattern(sure=False),
        r"\beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?",  # JSON web token
        # A password in a URL may hold what a URL should not: a slash, a question mark, an @.
        r"(://)[^\s/?#@:\"']{0,200}:(?!\d{1,5}/)[^\s@\"']{1,400}(?=@(?!sha\d{3}:))",
    )
)

_NAME = (
    r"(?:pass(?:word|wd|phrase)|secret|token|credentials?"
    r"|api_?key|access_?key|private_?key|[_-]key)"
)
_VALUE = r"(?:\"(?:\\.|[^\"\\\n]){1,4000}\"|'[^'\n]{1,4000}'|\S+)"
# Go's "anonymous token: Get <address>" is an error text, not a token.
_NOT_A_VALUE = r"(?!Get\b|Post\b|Head\b|\*\*\*)"

# Masked for what stands around it: it may be a secret.
_NAMED = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # A lone `git` is the user of every SSH remote, and no secret.
        r"(://)(?!git@)[^\s/?#@\"']{1,400}(?:@[^\s/?#@\"']{1,400}){0,3}(?=@)",
        # image:tag@sha256:… has the form of user:password@host and is none.
        r"((?<![\w./%+@-])[\w.%+-]{1,64}:)(?!//)[^\s@/:\"']{1,400}(?=@(?!sha\d{3}:)[\w.-])",
        r"(authorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?)(?:(?:basic|bearer|token)\s{1,4})?\S+",
        r"(x-registry-auth[\"']?\s{0,4}[:=]\s{0,4})\S+",
        r"(\bbearer\s{1,4})[\w.~+/=-]{8,}",
        r"([\"']auth[\"']\s{0,4}:\s{0,4})[\"'][^\"'\n]{1,4000}[\"']",  # docker's config.json
        rf"({_NAME}(?:[_-]\w{{0,32}})?[\"']?\s{{0,4}}[:=]\s{{0,4}}){_NOT_A_VALUE}{_VALUE}",
        rf"(\b(?:ENV|ARG)\s{{1,8}}\w{{0,64}}{_NAME}\w{{0,32}}\s{{1,8}}){_VALUE}",
        rf"(--(?:password|passwd|token|api-key)\s{{1,4}}){_VALUE}",
        r"(\blogin\b[^\n|;&]{0,200}?\s-p[ =]?)[^\s-]\S*",
        r"(\b(?:echo|printf)\b[^\n|]{0,40}?\b\w{1,32}:)\S{1,200}(?=[^\n]{0,80}\bchpasswd\b)",
    )
)

# A command's words: the value of an option or variable whose name tells.
_SECRETIVE = r"(?:[\w-]*(?:key|token|secret|passw(?:or)?d|credential|webhook)[\w-]*)"
_OPTION = re.compile(rf"(-{{1,2}}{_SECRETIVE})(?:=.*)?", re.IGNORECASE | re.DOTALL)
_ASSIGNED = re.compile(rf"([\w.+-]*{_SECRETIVE}=).+", re.IGNORECASE | re.DOTALL)
_LOGIN = re.compile(r"(\w+://)[^/@\s]+@")
_TOKEN = re.compile(tokens.pattern(sure=False))


def mask_words(arguments: Sequence[str]) -> list[str]:
    """Return a command's words with the values of secret options and variables, logins and tokens hidden."""
    shown: list[str] = []
    hide_next = False
    for word in arguments:
        option = _OPTION.fullmatch(word)
        if hide_next and not word.startswith("-"):
            shown.append(HIDDEN)
        elif option:
            shown.append(f"{option[1]}={HIDDEN}" if "=" in word else word)
        else:
            shown.append(_TOKEN.sub(HIDDEN, _LOGIN.sub(rf"\1{HIDDEN}@", _ASSIGNED.sub(rf"\1{HIDDEN}", word))))
        hide_next = bool(option) and "=" not in word
    return shown


def mask(text: str) -> str:
    """Return the text with every secret replaced by ``***``."""
    for pattern in (*_SHAPES, *_NAMED):
        text = pattern.sub(lambda found: (found[1] if found.re.groups else "") + HIDDEN, text)
    return text


def holds_token(text: str) -> bool:
    """Whether the text spells out a secret, known by its shape; ``$NAME`` in its place is none."""
    found = (match[0] for pattern in _SHAPES for match in pattern.finditer(text))
    return any("$" not in match for match in found)
