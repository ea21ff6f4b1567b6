"""Turns what an Engine, the docker command, buildx or a build log said into one line to act on.

``one_line(lines, fallback=...)`` is what a caller wants: "cause - next step". All lines are read,
because the true cause often stands well before the error that ends a build. The table is in
``causes.py``; the first row that matches anywhere wins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hermitcrab.box.mask import mask
from hermitcrab.build.causes import ROWS, Row

__all__ = ["Diagnosis", "explain", "from_stream", "mask", "one_line"]

_LONGEST = 4000  # characters of one line that are read; keeps every pattern fast
_SHOWN = 300  # characters of a line shown when no cause is known

_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"
    r"|[PX^_][^\x1b\n]*(?:\x1b\\)?|[ -~])"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# A builder repeats the Dockerfile it runs; those lines say what was asked, not what went wrong.
_ECHO = re.compile(r"^\s*(?:Step \d+/\d+ : |(?:#\d+ +|=> |> )\[[^\]]{0,80}\] |\d+ \|(?: >>>)? |-{4,}\s*$)")
# So do the quoted commands in its last words.
_COMMAND = re.compile(r"(?<=process \").*(?=\" did not complete)|(?<=The command ').*(?=' returned a non-zero)")
# True, and no help: the last word of every failed step.
_HOLLOW = re.compile(
    r"returned a non-zero code: \d+|did not complete successfully: exit code: \d+"
    r"|^(?:#\d+ )?(?:CANCELED|DONE [\d.]+s)|^\S*Dockerfile\S*:\d+$|^See '?docker\b"
    r"|^View build details|^\[notice\]|^\s*\[end of output\]|^Traceback \(most recent",
    re.IGNORECASE,
)
_ERROR = re.compile(r"error|fatal|fail|denied|refused|cannot|not found|^E: |invalid", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Why something failed, and what to do about it."""

    id: str
    cause: str
    step: str
    evidence: str

    @property
    def message(self) -> str:
        """The one line for the user."""
        return f"{self.cause} - {self.step}"


def explain(lines: Iterable[str], *, needed_gb: float | None = None) -> Diagnosis | None:
    """Name the most fundamental cause that any of the lines speaks of, or None."""
    said = [_COMMAND.sub("…", line) for line in _plain(lines) if not _ECHO.search(line)]
    for row in ROWS:
        for line in said:
            if found := row.pattern.search(line):
                return _diagnosis(row, found, needed_gb=needed_gb)
    return None


def one_line(lines: Iterable[str], *, fallback: str, needed_gb: float | None = None) -> str:
    """Give the message for a user error: the cause, else the last line that says something."""
    said = list(_plain(lines))
    if diagnosis := explain(said, needed_gb=needed_gb):
        return diagnosis.message
    return mask(_last_meaningful(said) or fallback)[:_SHOWN]


def from_stream(body: str) -> list[str]:
    """Turn the JSON lines of an Engine's answer into plain lines; what is no JSON stays text."""
    pieces = "".join(_text_of(line) for line in body.splitlines())
    return list(_plain([pieces]))


def _diagnosis(row: Row, found: re.Match[str], *, needed_gb: float | None) -> Diagnosis:
    room = "more space" if needed_gb is None else f"at least {needed_gb:.1f} GB"
    values = {**found.groupdict(default="it"), "room": room}
    return Diagnosis(
        id=row.id,
        cause=mask(row.cause.format_map(values)),
        step=mask(row.step.format_map(values)),
        evidence=mask(found.string)[:_SHOWN],
    )


def _plain(lines: Iterable[str]) -> Iterator[str]:
    """Split, strip of colours and control characters, and drop what is empty."""
    for text in lines:
        for line in _ANSI.sub("", text).splitlines():
            clean = _CONTROL.sub("", line).encode("utf-8", "replace").decode().rstrip()
            if len(clean) > _LONGEST:
                clean = f"{clean[: _LONGEST // 2]} … {clean[-_LONGEST // 2 :]}"
            if clean.strip():
                yield clean


def _text_of(line: str) -> str:
    """Say what one line of an answer says; a `stream` piece may be part of a line, the rest not."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return f"{line}\n"
    if not isinstance(said, dict):
        return f"{line}\n"
    if isinstance(said.get("stream"), str):
        return str(said["stream"])
    detail = said.get("errorDetail")
    told = detail.get("message") if isinstance(detail, dict) else None
    told = told or said.get("error") or said.get("message") or said.get("status")
    return f"\n{told}\n" if isinstance(told, str) else "\n"


def _last_meaningful(lines: list[str]) -> str | None:
    telling = [line for line in lines if not _HOLLOW.search(line) and not _ECHO.search(line)]
    errors = [line for line in telling if _ERROR.search(line)]
    chosen = (errors or telling or lines)[-1:]
    return chosen[0].strip() if chosen else None
