"""Our image beside a careful hand-written one: same engine, same base, both cold, in one run.

Prints ratios, ours to theirs: size on disk, gzip, zstd and build time. Each is built twice, once
as the first and once as the second, since the disk is busier for the second. Run it from the checkout:
`.venv/bin/python -m benchmarks.image --cuda 12.1`. Takes ten to twenty minutes and 25 GB of disk.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hermitcrab import matrix as matrices
from hermitcrab.build import base as bases
from hermitcrab.build import engine as engines
from hermitcrab.build import image, size
from hermitcrab.build.engine import Engine
from hermitcrab.matrix import Combo, Matrix

HAND: Final = Path(__file__).with_name("handwritten.Dockerfile")
THEIRS: Final = "hermitcrab-benchmark:handwritten"
TRIO: Final = ("torch", "torchvision", "torchaudio")


def main() -> None:
    """Build both, weigh both, print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuda", default="12.1")
    parser.add_argument("--time-only", action="store_true", help="do not weigh, which takes minutes")
    options = parser.parse_args()
    matrix = matrices.load()
    combo = matrices.select(matrix, options.cuda)
    engine = engines.find()
    base = bases.resolve(engine, combo.base, "auto", epoch=matrix.epoch, say=print)
    builds = {
        "ours": lambda: _ours(engine, matrix, combo),
        "by hand": lambda: _by_hand(engine, matrix, combo, base),
    }
    orders = (list(builds), list(reversed(builds)))
    rounds = [{name: _timed(builds[name]) for name in order} for order in orders]
    tags = {} if options.time_only else {"ours": image.tag(combo), "by hand": THEIRS}
    _report(combo, rounds, {name: _weigh(engine, tag) for name, tag in tags.items()})
    engine.remove(THEIRS)


def _ours(engine: Engine, matrix: Matrix, combo: Combo) -> None:
    image.build(engine, matrix, combo, cache=False)


def _by_hand(engine: Engine, matrix: Matrix, combo: Combo, base: str) -> None:
    wheels = [f"{name}=={getattr(combo, name)}" for name in TRIO] + ["setuptools"]
    with tempfile.TemporaryDirectory() as folder, image.secrets() as secrets:
        Path(folder, "Dockerfile").write_text(HAND.read_text())
        engine.build(
            Path(folder),
            tag=THEIRS,
            arguments={"BASE": base, "PACKAGES": " ".join(matrix.packages), "WHEELS": " ".join(wheels)},
            secrets=secrets,
            cache=False,
            show=lambda _: None,
        )


def _timed(work: Callable[[], None]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def _weigh(engine: Engine, tag: str) -> dict[str, float]:
    """Size in GB on disk, gzip and zstd."""
    size.measure(engine, tag)
    layers = size.layers(engine, tag)
    return {
        "disk GB": sum(layer.disk for layer in layers) / 1e9,
        "gzip GB": sum(layer.gzip or 0 for layer in layers) / 1e9,
        "zstd GB": sum(layer.zstd or 0 for layer in layers) / 1e9,
    }


def _report(combo: Combo, rounds: list[dict[str, float]], weights: dict[str, dict[str, float]]) -> None:
    rows = {name: (weights["ours"][name], weights["by hand"][name]) for name in weights.get("ours", ())}
    for seconds in rounds:
        rows[f"cold build s, {next(iter(seconds))} first"] = (seconds["ours"], seconds["by hand"])
    print(f"\n{combo.id:30}{'ours':>12}{'by hand':>12}{'ratio':>10}")
    for name, (ours, theirs) in rows.items():
        print(f"{name:30}{ours:12.2f}{theirs:12.2f}{ours / theirs:10.3f}")


if __name__ == "__main__":
    main()
