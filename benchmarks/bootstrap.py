"""The bootstrap beside what guides tell one to type: same base, same network, in one run.

Prints: a bare Debian 12 to a finished check, ours and by hand, with cold caches; a second run; adopting a
torch that is there; the size of the script; peak and result on the disk. Run it from the checkout, with the
embedded engine running: `.venv/bin/python -m benchmarks.bootstrap`. Takes ten minutes and 15 GB of disk.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import testinfra

from hermitcrab import matrix as matrices
from hermitcrab.build import bootstrap
from hermitcrab.build import engine as engines
from hermitcrab.build.engine import Engine
from hermitcrab.matrix import Combo
from tests.box import bootstrapping
from tests.box.debian import SUITES
from tests.box.machine import Box

CUDA: Final = "12.1"
# What the guides say, by pip of the system in a venv, since Debian 12 refuses it elsewhere.
BY_HAND: Final = """
set -e
export DEBIAN_FRONTEND=noninteractive PIP_CERT=${HERMITCRAB_CA:-}
[ -n "$PIP_CERT" ] || unset PIP_CERT
apt-get update -q >/dev/null
apt-get install -qy tmux git openssh-server rsync htop nano curl ca-certificates >/dev/null
apt-get install -qy gcc g++ python3-dev python3-venv >/dev/null
python3 -m venv /opt/hand
/opt/hand/bin/pip install -q torch==@torch@ torchvision==@torchvision@ torchaudio==@torchaudio@ setuptools
printf 'set -g mouse on\\n' > ~/.tmux.conf
git config --global init.defaultBranch main
/opt/hand/bin/python -c 'import torch; torch.ones(2)'
"""


def main() -> None:
    """Measure, and print ratios."""
    engine = engines.find(start=False)
    combo = matrices.select(matrices.load(), CUDA)
    script = bootstrap.script(matrices.load()).encode()
    name = bootstrapping.bare(engine, SUITES[1])
    print(f"script: {len(script) / 1e3:.0f} kB")
    with bootstrapping.serving({"bootstrap.sh": script}) as served:
        command = f"{served.curl('bootstrap.sh')} | bash -s -- --cuda {CUDA}"
        with _box(engine, name) as box:
            peak = [0]
            with _watching(box, peak):
                ours = _timed(box, command)
            result = _used(box)
            again = _timed(box, command)
            _move(box)
            adopted = _timed(box, served.curl("bootstrap.sh") + " | bash")
        with _box(engine, name) as box:
            hand = _timed(box, _by_hand(combo))
    print(f"bare box to a finished check: {ours:.0f} s, by hand {hand:.0f} s: {ours / hand:.2f}")
    print(f"second run: {again:.1f} s; adopting a torch: {adopted:.1f} s")
    print(f"disk: {result / 1e9:.2f} GB, at most {peak[0] / 1e9:.2f} GB meanwhile: {peak[0] / result:.2f}")


@contextmanager
def _box(engine: Engine, name: str) -> Iterator[Box]:
    options: dict[str, Any] = {"network_mode": engine.network, **bootstrapping.options()}
    container = engine.client.containers.create(name, ["sleep", "infinity"], **options)
    try:
        container.start()
        container.reload()
        yield Box(container, testinfra.get_host(f"docker://{container.id}"))
    finally:
        container.remove(force=True)


@contextmanager
def _watching(box: Box, peak: list[int]) -> Iterator[None]:
    """Keep the most that the box took from the disk."""
    end = threading.Event()

    def watch() -> None:
        while not end.wait(1.0):
            peak[0] = max(peak[0], _used(box))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _used(box: Box) -> int:
    """Bytes of the box's own layer; an engine of this machine keeps it where du can look."""
    layer = box.container.attrs["GraphDriver"]["Data"]["UpperDir"]
    done = subprocess.run(["du", "-sk", layer], capture_output=True, text=True, check=False)  # files come and go
    return int(done.stdout.split()[0]) * 1024


def _timed(box: Box, command: str) -> float:
    begun = time.monotonic()
    status, said = bootstrapping.run(box, command, seconds=1200)
    if status:
        sys.exit(f"status {status}: {said[-2000:]}")
    return time.monotonic() - begun


def _by_hand(combo: Combo) -> str:
    text = BY_HAND
    for name in ("torch", "torchvision", "torchaudio"):
        text = text.replace(f"@{name}@", getattr(combo, name))
    return text


def _move(box: Box) -> None:
    """Make the environment look like a platform's, without crab."""
    bootstrapping.run(
        box,
        "python3 -m venv --without-pip /root/miniconda3;"
        " mv /opt/venv/lib/python3.11/site-packages/* /root/miniconda3/lib/python3.11/site-packages/;"
        " rm -rf /opt/venv /etc/hermitcrab /root/miniconda3/lib/python3.11/site-packages/hermitcrab*",
    )


if __name__ == "__main__":
    main()
