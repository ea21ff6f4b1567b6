"""What a command costs: the launcher beside plain Invoke, and a build in which nothing changed.

Prints seconds, the median of several runs, and the ratio to plain Invoke. Run it from the checkout, with an
image built: `.venv/bin/python -m benchmarks.commands`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
RUNS: Final = 5
PLAIN: Final = (sys.executable, "-m", "invoke", "--list")
COMMANDS: Final = (
    PLAIN,
    ("./invoke", "--list"),
    ("./invoke", "list"),
    ("./invoke", "render", "--check"),
    ("./invoke", "build", "--cuda", "12.1"),
)


def main() -> None:
    """Time each command and print it beside plain Invoke."""
    print(f"{'':34}{'seconds':>9}{'ratio':>8}")
    plain = _median(PLAIN)
    for command in COMMANDS:
        seconds = plain if command is PLAIN else _median(command)
        name = " ".join(command).replace(sys.executable, "python")
        print(f"{name:34}{seconds:9.2f}{seconds / plain:8.2f}")


def _median(command: tuple[str, ...]) -> float:
    return statistics.median(_seconds(command) for _ in range(RUNS))


def _seconds(command: tuple[str, ...]) -> float:
    started = time.monotonic()
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return time.monotonic() - started


if __name__ == "__main__":
    main()
