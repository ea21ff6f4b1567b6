"""Saving beside the training against ``torch.save`` of the same state: stall, all told, background write, verify.

Prints ratios measured alternately in one run, on the CPU; the background write beside steps that use all
cores against a raw write beside the same steps. Run it where torch is, from the checkout:
`python -m benchmarks.checkpoint --gb 0.5`. With ``--kills 200`` also kills a committing program at
random moments and counts what is lost.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hermitcrab.checkpoint import choice, store
from hermitcrab.checkpoint.pace import Clock, Pace
from hermitcrab.checkpoint.retention import Keep
from hermitcrab.checkpoint.saver import Saver
from hermitcrab.checkpoint.snapshot import size

ROUNDS = 5


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=0.5)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        measure(Path(name), options.gb)
        if options.kills:
            kill(Path(name) / "kills", options.kills)


def measure(folder: Path, gigabytes: float) -> None:
    """One round after the other, so that a busy machine slows all alike.

    The medians count on a quiet machine; where others work too, the least of each is nearer to its own cost.
    Every write is a new file, and none is removed before the end (of 26 times the size): a virtual machine gives freed
    memory back to its host and may wait 17 s per GiB for it, which only those would pay who do not write over the old.
    """
    state = {"model": {str(number): torch.randn(1 << 20) for number in range(max(1, int(gigabytes * 1e9) >> 22))}}
    saver = Saver(
        folder / "run", clock=Clock(Pace()), keep=Keep(newest=ROUNDS + 1), asynchronous=True, allow_non_finite=False
    )
    buffers = {name: torch.empty_like(tensor) for name, tensor in state["model"].items()}
    rows: dict[str, list[float]] = {}
    for step in range(ROUNDS + 1):
        row = one_round(folder, state, buffers, saver, step)
        for name, seconds in row.items() if step else ():  # the first one makes the buffers
            rows.setdefault(name, []).append(seconds)
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, {size(state) / 2**30:.2f} GiB, {ROUNDS} rounds")
    for name, choose in (("median", statistics.median), ("least disturbed", min)):
        print(f"-- {name}")
        report({key: choose(seconds) for key, seconds in rows.items()}, size(state) / 2**30)


def one_round(folder: Path, state: Any, buffers: Any, saver: Saver, step: int) -> dict[str, float]:
    """All that is compared, once."""
    row = {"copy": timed(lambda: [buffers[name].copy_(tensor) for name, tensor in state["model"].items()])}
    row["torch.save"] = timed(lambda: torch.save(state, folder / f"{step}.pt"))
    row["raw write + fsync"] = timed(lambda: raw(folder / f"{step}.raw", state))
    alone = steps_in(0.5)
    other = threading.Thread(target=raw, args=(folder / f"{step}.beside", state))
    other.start()
    row["raw beside steps"], done, row["gap of raw"] = beside(other.is_alive)
    row["cost of raw"] = max(0.0, row["raw beside steps"] - done * alone)
    row["stall"] = timed(lambda: saver.save(state, {"run": "b", "metrics": {}}, step))
    row["background"], done, row["longest gap"] = beside(lambda: saver.background.busy)
    saver.background.wait()
    saver.background.raise_error()
    # What the steps beside the write took longer than such steps take alone.
    row["all told"] = row["stall"] + max(0.0, row["background"] - done * min(alone, steps_in(0.5)))
    for name in ("verify, from the disk", "verify"):  # it was written past the page cache, and is there the second time
        row[name] = timed(lambda: store.verify(store.found(folder / "run")[0].path))
    os.sync()
    return row


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


def raw(path: Path, state: Any) -> None:
    """The least that writing can cost."""
    with path.open("wb") as file:
        for tensor in state["model"].values():
            file.write(memoryview(tensor.numpy()).cast("B"))
        file.flush()
        os.fsync(file.fileno())


WORK = torch.randn(400, 400)


def a_step() -> None:
    """Something to compute, on one core."""
    torch.mm(WORK, WORK)


def steps_in(seconds: float) -> float:
    """Seconds per step, alone."""
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        a_step()
        count += 1
    return seconds / count


def beside(is_busy: Callable[[], bool]) -> tuple[float, int, float]:
    """Seconds of the work beside it, the steps done meanwhile, the longest of them."""
    began = last = time.monotonic()
    count, gap = 0, 0.0
    while is_busy():
        a_step()
        count, now = count + 1, time.monotonic()
        gap, last = max(gap, now - last), now
    return last - began, count, gap


def report(row: dict[str, float], gib: float) -> None:
    """Seconds and the ratios that count."""
    for name, seconds in row.items():
        print(f"{name:24}{seconds:9.3f} s")
    for name, ratio, target in (
        ("stall / copy", row["stall"] / row["copy"], 1.2),
        ("stall / torch.save", row["stall"] / row["torch.save"], 0.15),
        ("all told / torch.save", row["all told"] / row["torch.save"], 0.6),
        ("background / raw write", row["background"] / row["raw beside steps"], 1.3),
        ("longest gap, s", row["longest gap"], 0.05),
        ("verify, s per GiB", row["verify"] / gib, 0.6),
    ):
        print(f"{name:24}{ratio:9.3f}   (wanted: at most {target})")


def kill(folder: Path, times: int) -> None:
    """SIGKILL at random moments; what was acknowledged must load."""
    dice, first, lost, bad = random.Random(1), 0, 0, 0
    for _ in range(times):
        command = [sys.executable, "-m", "tests.checkpoint.driver", str(folder), str(first), "1000000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as running:
            assert running.stdout
            steps = [int(running.stdout.readline())]
            time.sleep(dice.random() * 0.2)
            running.kill()
            steps += [int(word) for word in running.stdout.read().split()]
        bad += sum(store.reason_of(item.path) is not None for item in store.found(folder))
        chosen = choice.choose(folder, "r", lambda path: path, lambda _: None)
        choice.committed(folder)
        newest = chosen.manifest["step"] if chosen else -1
        lost += newest < max(steps)
        first = newest + 1
    print(f"{times} SIGKILLs: {lost} acknowledged steps lost, {bad} unloadable")


if __name__ == "__main__":
    main()
