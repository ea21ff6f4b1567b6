"""Takes secrets out of text before it is shown: tokens, passwords, credentials in URLs and headers.

Every pattern is bounded, so that a hostile log cannot make masking slow. Masking too much costs
a little clarity, masking too little costs a token: where in doubt, a word is masked.
"""

from __future__ import annotations

import re

HIDDEN = "***"

# Secrets by their shape, wherever they stand. Group 1, where there is one, is kept.
_SHAPES = tuple(
    re.compile(pattern)
    for pattern in (
        r"\bhf_[A-Za-z0-9]{8,}",  # Hugging Face
        r"\bgh[opusr]_[A-Za-z0-9]{8,}",  # GitHub
        r"\bgithub_pat_\w{8,}",
        r"\bglpat-[\w-]{8,}",  # GitLab
        r"\b(?:AKIA|ASIA)[0-9A-Z]{12,}",  # AWS
        r"(?<![\w-])sk-(?=[\w-]{0,40}\d)[\w-]{16,}",  # OpenAI and others
        r"\bdckr_[a-z]{3}_[\w-]{8,}",  # Docker
        r"\bxox[abeoprs]-[\w-]{8,}",  # Slack
        r"\bpypi-[\w-]{32,}",
        r"\bnpm_[A-Za-z0-9]{20,}",
        r"\bAIza[\w-]{30,}",  # Google
        r"\brpa_[A-Za-z0-9]{16,}",  # RunPod
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


def mask(text: str) -> str:
    """Return the text with every secret replaced by ``***``."""
    for pattern in (*_SHAPES, *_NAMED):
        text = pattern.sub(lambda found: (found[1] if found.re.groups else "") + HIDDEN, text)
    return text


def holds_token(text: str) -> bool:
    """Whether the text spells out a secret, known by its shape; ``$NAME`` in its place is none."""
    found = (match[0] for pattern in _SHAPES for match in pattern.finditer(text))
    return any("$" not in match for match in found)
