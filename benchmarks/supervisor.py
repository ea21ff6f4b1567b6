"""What `crab train` costs a training: steps per second with and without it, and the time to go on after a crash.

Run: ``python benchmarks/supervisor.py [--seconds 3] [--rounds 12]``. Both ways alternate in one run on one machine,
with one loop: it computes, prints some 40 lines a second and writes a status file once a second. Other work on the
machine makes single rounds slow, so the best round of each way is compared; beside it stands the share of one
core that the supervisor itself took meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
LOOP: Final = """
import hashlib, json, os, sys, time
def parent():
    words = open("/proc/%d/stat" % os.getppid()).read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
time.sleep(1)  # its start is over
busy = parent()
begun = told = time.monotonic()
data, step = bytes(200_000), 0
while time.monotonic() - begun < float(sys.argv[1]):
    hashlib.sha256(data).digest()
    step += 1
    if step % 200 == 0:
        print("step", step, "loss", 1 / step, flush=True)
    if time.monotonic() - told > 1:
        told = time.monotonic()
        path = os.environ.get("STATUS_FILE", "status.json")
        with open(path + ".new", "w") as file:
            json.dump({"step": step, "loss": 1 / step}, file)
        os.replace(path + ".new", path)
seconds = time.monotonic() - begun
with open("rate", "w") as file:
    file.write("%r %r" % (step / seconds, (parent() - busy) / seconds))
"""
# Says when it was started; the first time it is killed.
CRASH: Final = """
import os, time
with open("starts", "a") as file:
    file.write(repr(time.time()) + "\\n")
if os.environ["ATTEMPT"] == "1":
    time.sleep(2)
    with open("starts", "a") as file:
        file.write(repr(time.time()) + "\\n")
    os.kill(os.getpid(), 9)
"""


def main() -> None:
    """Measure, and print a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rates: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for number in range(2 * options.rounds):
            # Which of them is first changes, so that a warming machine favours neither.
            supervised = number % 4 in {1, 2}
            rates[supervised].append(rate(folder, options.seconds, supervised=supervised, number=number))
        report(rates, restart(folder))


def rate(folder: Path, seconds: float, *, supervised: bool, number: int) -> tuple[float, float]:
    """Return the loop's own steps per second, and the share of a core that its parent took."""
    command = [sys.executable, "-c", LOOP, str(seconds)]
    run(folder, [*crab(f"rate-{number}"), *command] if supervised else command)
    steps, share = (folder / "rate").read_text().split()
    return float(steps), float(share)


def restart(folder: Path) -> float:
    """Return the seconds from a training's death to the next one's first line."""
    run(folder, [*crab("crash"), sys.executable, "-c", CRASH])
    _, died, again = (float(line) for line in (folder / "starts").read_text().split())
    return again - died


def crab(name: str) -> list[str]:
    """The words before the command."""
    return [sys.executable, "-m", "hermitcrab.cli", "train", "--name", name, "--"]


def run(folder: Path, argv: list[str]) -> None:
    """Run it as a script would: no terminal, output to a pipe that is read."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / ".state")}
    subprocess.run(argv, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)


def report(rates: dict[bool, list[tuple[float, float]]], seconds: float) -> None:
    """Print what was found."""
    alone, supervised = ([steps for steps, _ in rates[way]] for way in (False, True))
    found: dict[str, Any] = {
        "steps_per_s": {"alone": max(alone), "supervised": max(supervised)},
        "ratio": max(supervised) / max(alone),
        "median_ratio": statistics.median(supervised) / statistics.median(alone),
        "supervisor_share_of_a_core": statistics.median(share for _, share in rates[True]),
        "restart_s": seconds,
        "time": time.strftime("%Y-%m-%d"),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
