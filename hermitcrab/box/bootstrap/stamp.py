"""The stamp: what a bootstrap came to. A pipe into a shell loses exit statuses, so the next step looks here."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Mapping

from hermitcrab import __version__
from hermitcrab.box import files

FORMAT = 1
DONE, PARTIAL, FAILED = "done", "partial", "failed"


def write(path: Path, result: str, **facts: Any) -> None:
    """Write the stamp, whole."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    content = {"format": FORMAT, "crab": __version__, "result": result, "at": now, **facts}
    files.write(path, json.dumps(content, indent=1, sort_keys=True).encode() + b"\n", 0o644)


def read(path: Path) -> Mapping[str, Any]:
    """Read a stamp; one that is not there, or another's, is empty."""
    found = files.read_json(path)
    return found if found.get("format") == FORMAT else {}
