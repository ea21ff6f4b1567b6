"""What tokens look like: the one table for whatever hides them, and for whatever finds them on a disk."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """A token by its first letters; ``doubtful`` and ``sure`` are the least lengths of the rest."""

    whose: str
    head: str
    rest: str  # one letter of the rest, as a character class
    doubtful: int  # from here on it is hidden: that costs a word of a message
    sure: int  # from here on a file is said to hold one: that may cost the file


WORD = r"[\w-]"
PLAIN = "[A-Za-z0-9]"
SHAPES = (
    Shape("Hugging Face", r"\bhf_", PLAIN, 8, 20),
    Shape("GitHub", r"\bgh[opusr]_", PLAIN, 8, 20),
    Shape("GitHub", r"\bgithub_pat_", r"\w", 8, 20),
    Shape("GitLab", r"\bglpat-", WORD, 8, 16),
    Shape("AWS", r"\b(?:AKIA|ASIA)", "[0-9A-Z]", 12, 16),
    Shape("Aliyun", r"\bLTAI", "[0-9A-Za-z]", 12, 12),
    Shape("Tencent Cloud", r"\bAKID", "[0-9A-Za-z]", 28, 28),
    Shape("OpenAI and others", rf"(?<![\w-])sk-(?={WORD}{{0,60}}\d)", WORD, 16, 20),
    Shape("Docker", r"\bdckr_[a-z]{3}_", WORD, 8, 16),
    Shape("Slack", r"\bxox[abeoprs]-", WORD, 8, 16),
    Shape("package index", r"\bpypi-", WORD, 32, 32),
    Shape("npm", r"\bnpm_", PLAIN, 20, 30),
    Shape("Google", r"\bAIza", WORD, 30, 35),
    Shape("RunPod", r"\brpa_", PLAIN, 16, 20),
)


def pattern(*, sure: bool) -> str:
    """Return the expression that matches any of them."""
    return "|".join(f"{shape.head}{shape.rest}{{{shape.sure if sure else shape.doubtful},}}" for shape in SHAPES)
