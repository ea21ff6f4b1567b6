"""A finding: one thing that was looked at, what came of it, why, and what to do."""

from __future__ import annotations

from typing import Iterable, NamedTuple

PASS, WARN, FAIL, SKIP = "pass", "warn", "fail", "skip"
# Only a right result of a real kernel proves that the GPU works; without it nothing was checked.
PROOF = "kernel.fp32"
EXIT_CODES = {PASS: 0, FAIL: 1, SKIP: 3}


class Finding(NamedTuple):
    """One finding; the id is stable, the texts are for people."""

    id: str
    status: str
    text: str
    cause: str = ""
    remedy: str = ""


def verdict(findings: Iterable[Finding]) -> str:
    """Judge all findings together: fail, pass, or skip when nothing failed and nothing was proven."""
    found = list(findings)
    if any(finding.status == FAIL for finding in found):
        return FAIL
    return PASS if any(finding[:2] == (PROOF, PASS) for finding in found) else SKIP


def gib(size: int | None) -> str:
    """Say a number of bytes; an unknown one too."""
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"
