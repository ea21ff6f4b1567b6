"""The findings as text for people and as JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from typing import Sequence

from hermitcrab import __version__
from hermitcrab.box.check.findings import EXIT_CODES, FAIL, PASS, Finding, verdict

COLORS = {"pass": "32", "warn": "33", "fail": "31", "skip": "36"}


def line(finding: Finding, *, color: bool) -> str:
    """Say one finding; cause and remedy stand below."""
    word = f"\033[{COLORS[finding.status]}m{finding.status}\033[0m" if color else finding.status
    lines = [f"{word}  {finding.id:<16}{finding.text}"]
    lines += [f"      {'':<16}cause:  {finding.cause}"] * bool(finding.cause)
    lines += [f"      {'':<16}remedy: {finding.remedy}"] * bool(finding.remedy)
    return "\n".join(lines)


def summary(findings: Sequence[Finding]) -> str:
    """Say the verdict in one line."""
    counts = Counter(finding.status for finding in findings)
    numbers = ", ".join(f"{counts[status]} {status}" for status in COLORS if counts[status])
    said = {PASS: "PASS: this GPU trains", FAIL: "FAIL: see the remedies above"}
    return f"{said.get(verdict(findings), 'SKIPPED: no GPU was checked, which is no pass')} ({numbers})"


def as_json(findings: Sequence[Finding]) -> str:
    """Give all findings with the verdict and the exit status."""
    judged = verdict(findings)
    rows = [finding._asdict() for finding in findings]
    document = {"crab": __version__, "verdict": judged, "exit": EXIT_CODES[judged], "findings": rows}
    return json.dumps(document, indent=1, ensure_ascii=False)
