"""Checkpoints of five writers side by side: torch.save, Lightning, Hugging Face Trainer, Composer, hermitcrab.

The same model on the same machine: how long the loop stands still for a save, what is left after SIGKILLs at
random moments while it saves, and whether a run killed between two epochs' edges ends with the weights of an
undisturbed one. Makes a venv for each that is not yet there, then prints the table:
`python -m benchmarks.checkpointers --venvs FOLDER --torch PYTHON_WITH_TORCH`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
WIDTH: Final = 2048  # of the model whose saves are timed: 3 layers, 50 MB of weights, three times that with AdamW
KILLS: Final = 20


class Writer(NamedTuple):
    """One way to save, and what it needs."""

    name: str
    packages: tuple[str, ...] = ()
    note: str = ""


WRITERS: Final = (
    Writer("torch.save", note="over the one file, random states and batches to skip kept by hand"),
    Writer("lightning", ("lightning",), "ModelCheckpoint(every_n_train_steps, save_last)"),
    Writer("huggingface", ("transformers", "accelerate"), "save_steps, save_total_limit=2, get_last_checkpoint"),
    Writer("composer", ("mosaicml",), "save_interval, autoresume"),
    Writer("hermitcrab", note="Checkpointer(every_steps)"),
)


def main() -> None:
    """Measure each, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venvs", type=Path, required=True, help="where they are made, and kept")
    parser.add_argument("--torch", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--only", default=None)
    options = parser.parse_args()
    print("| writer | stall per save | of torch.save | after kills: loads | goes on | exact | how |")
    print("|---|---|---|---|---|---|---|")
    base = None
    for writer in WRITERS:
        if options.only in {None, writer.name}:
            python = venv(options.venvs.absolute(), options.torch, writer)
            with tempfile.TemporaryDirectory() as folder:
                row = measure(python, writer.name, Path(folder), options.kills)
            base = base or row["stall"]
            print(
                f"| {writer.name} | {row['stall'] * 1000:.0f} ms | {row['stall'] / base:.2f} | {row['loads']} of "
                f"{options.kills} | {row['goes_on']} of {options.kills} | {row['exact']} | {writer.note} |",
                flush=True,
            )


def venv(folder: Path, base: str, writer: Writer) -> str:
    """A Python with the writer's packages, over the one that has torch."""
    if not writer.packages:
        return base
    made = folder / writer.name
    if not (made / "ready").exists():
        code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        library = subprocess.run([base, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        subprocess.run([base, "-m", "venv", str(made)], check=True)
        inside = [str(made / "bin/python"), "-c", code]
        own = Path(subprocess.run(inside, capture_output=True, text=True, check=True).stdout.strip())
        (own / "torch.pth").write_text(library + "\n")
        command = [str(made / "bin/python"), "-m", "pip", "install", "-q", *writer.packages]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (made / "ready").touch()
    return str(made / "bin/python")


def measure(python: str, name: str, folder: Path, kills: int) -> dict[str, float]:
    """All that is compared."""
    stall = float(run(python, name, "stall", folder / "stall")["stall"])
    whole = run(python, name, "train", folder / "whole")["weights"]
    run(python, name, "train", folder / "run", "--die-at", "11")
    again = run(python, name, "train", folder / "run")
    exact = "yes" if again["weights"] == whole else f"no{'' if again['resumed'] else ' (began anew)'}"
    loads, goes_on = killed(python, name, folder / "kills", kills)
    return {"stall": stall, "exact": exact, "loads": loads, "goes_on": goes_on}  # type: ignore[dict-item]


def killed(python: str, name: str, folder: Path, times: int) -> tuple[int, int]:
    """SIGKILL while it saves without pause: how often the newest loads, how often a start goes on by itself."""
    dice, loads, goes_on = random.Random(7), 0, 0
    for number in range(times):
        here = folder / str(number)
        with start(python, name, "save", here) as running:
            assert running.stdout
            for _ in range(4):  # the fourth step has begun: two saves are safe, also of who saves beside the training
                assert running.stdout.readline(), running.stderr and running.stderr.read()
            time.sleep(dice.random() * 0.5)
            running.kill()
        told = run(python, name, "check", here)
        loads, goes_on = loads + int(told["loads"]), goes_on + int(told["goes_on"])
    return loads, goes_on


def run(python: str, name: str, work: str, folder: Path, *words: str) -> dict[str, float]:
    """What a program says in its last line; nothing when it was killed."""
    with start(python, name, work, folder, *words) as running:
        out, err = running.communicate(timeout=600)
    if running.returncode not in {0, -9}:
        raise RuntimeError(f"{name} {work}: {err[-2000:]}")
    lines = [line for line in out.splitlines() if line.startswith("{")]
    return dict(json.loads(lines[-1])) if lines else {}


def start(python: str, name: str, work: str, folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start the program that saves that way."""
    command = [python, "-W", "ignore", "-m", "benchmarks.writers", name, work, str(folder), *words]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


if __name__ == "__main__":
    main()
