"""Adopt before install: a torch of the platform's that works on this card is taken as it is.

Works means that a product on the card was right, in a process of its own; an import proves nothing.
"""

from __future__ import annotations

import glob
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Iterator, Mapping, NamedTuple

from hermitcrab.box.bootstrap.pick import Machine
from hermitcrab.box.bootstrap.pins import numbers
from hermitcrab.box.check import build

# The places of the platforms' images, the likeliest first; * is any environment of a conda.
KNOWN = (
    *("/venv/main", "/root/miniconda3", "/opt/conda", "/root/anaconda3", "/opt/miniconda3", "/root/miniforge3"),
    *("~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "/opt/venv", "/usr/local", "/usr"),
    *("/root/miniconda3/envs/*", "/opt/conda/envs/*", "~/miniconda3/envs/*", "~/anaconda3/envs/*"),
)
LOOK_S, RUN_S = 20, 180  # a cold network disk
HAS_TORCH = "import importlib.util as i, sys; sys.exit(sys.version_info < (3, 8) or i.find_spec('torch') is None)"
NOTHING_KEPT = {"PYTHONDONTWRITEBYTECODE": "1", "CUDA_CACHE_DISABLE": "1"}  # a dry run asks, too
OWN = re.compile(r"torch(vision|audio|text|data)?|triton|xformers|nvidia-.+")


class Torch(NamedTuple):
    """A Python with a torch, as the probe tells of it."""

    python: str  # the program
    version: str  # of Python
    prefix: Path
    site: Path
    scripts: Path
    managed: bool
    torch: str
    cuda: str
    packages: Mapping[str, str]
    devices: int = 0  # on which it computed
    error: str = ""

    @property
    def pins(self) -> list[str]:
        """What later installations may not move."""
        own = sorted(name for name in self.packages if OWN.fullmatch(name))
        return [f"{name}=={self.packages[name]}" for name in own]


def find(environ: Mapping[str, str], skip: Path | None = None) -> Iterator[Torch]:
    """Yield every Python that has a torch; ``skip`` is an environment of our own."""
    seen = set()
    for python in _pythons(environ):
        prefix = os.path.dirname(os.path.dirname(python))
        key = os.path.realpath(prefix), os.path.realpath(python)
        ours = skip is not None and os.path.realpath(prefix) == os.path.realpath(skip)
        if key in seen or ours or not os.access(python, os.X_OK):
            continue
        seen.add(key)
        if _run(python, HAS_TORCH, LOOK_S)[0] == 0:
            yield ask(python)


def ask(python: str) -> Torch:
    """Let a Python's torch compute, and tell."""
    status, said = _run(python, Path(__file__).with_name("probe.py").read_text(encoding="utf-8"), RUN_S)
    try:
        found = json.loads(said.strip().splitlines()[-1])
        return Torch(
            found["executable"] or python,
            found["python"],
            Path(found["prefix"]),
            Path(found["site"]),
            Path(found["scripts"]),
            bool(found["managed"]),
            str(found.get("torch", "")),
            str(found.get("cuda") or ""),
            found["packages"],
            int(found.get("devices") or 0),
            str(found.get("error", "")),
        )
    except (IndexError, KeyError, TypeError, ValueError):
        nowhere = Path("/nonexistent")
        reason = f"its torch ended with status {status}" if status >= 0 else f"its torch was killed by signal {-status}"
        return Torch(python, "", nowhere, nowhere, nowhere, False, "", "", {}, error=reason)


def without_torch() -> Torch:
    """Return the Python that runs this, for a box where torch is left out: crab gets a venv of its own."""
    nowhere = Path("/nonexistent")
    return Torch(
        sys.executable, f"{sys.version_info[0]}.{sys.version_info[1]}", nowhere, nowhere, nowhere, True, "", "", {}
    )


def why_not(found: Torch, machine: Machine, *, cuda: str = "", torch: str = "") -> str:
    """Say why a torch cannot be adopted; nothing when it can."""
    if found.error:
        return found.error
    if not found.cuda:
        return f"torch {found.torch} is a build without CUDA"
    for name, asked, has in (("CUDA", cuda, found.cuda), ("torch", torch, found.torch.split("+")[0])):
        wanted = numbers(asked)
        if wanted and numbers(has)[: len(wanted)] != wanted:
            return f"it has {name} {has}, and {asked} was asked for"
    if machine.cards:
        return "" if found.devices else "it does not see the card"
    floor = build.FLOORS.get(numbers(found.cuda)[0])
    if machine.driver and floor and numbers(machine.driver) < numbers(floor):
        return f"it is built for CUDA {found.cuda}, and driver {machine.driver} is older than {floor}"
    return ""


def _pythons(environ: Mapping[str, str]) -> Iterator[str]:
    prefixes = [environ.get("VIRTUAL_ENV", ""), environ.get("CONDA_PREFIX", "")]
    yield from (f"{prefix}/bin/python" for prefix in prefixes if prefix)
    for folder in environ.get("PATH", "").split(":"):
        yield from (f"{folder}/{name}" for name in ("python", "python3") if folder.startswith("/"))
    for pattern in KNOWN:
        for prefix in sorted(glob.glob(os.path.expanduser(pattern))):
            yield from (f"{prefix}/bin/{name}" for name in ("python", "python3"))


def _run(python: str, code: str, seconds: float) -> tuple[int, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            [python, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environ, **NOTHING_KEPT},
            cwd="/",
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return 127, ""
    return done.returncode, done.stdout.decode(errors="replace")
