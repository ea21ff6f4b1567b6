"""The Invoke face of hermitcrab: `./invoke --list`. Thin: each task parses, calls the package and prints."""

from __future__ import annotations

import functools
import os
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from hermitcrab import matrix as matrices
from hermitcrab.errors import UserError

CUDA = "CUDA version of the combo, as 12.1"
TORCH = "torch version, when not the default of this CUDA"
BASE = "auto, registry, packages, or an image reference"


def one_line(body: Callable[..., None]) -> Callable[..., None]:
    """Show a UserError as its one line and leave with its code."""

    @functools.wraps(body)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        _end_as_by_ctrl_c()
        try:
            body(*args, **kwargs)
        except UserError as error:
            raise Exit(f"invoke: {' '.join(str(error).splitlines())}", code=error.code) from None
        except BrokenPipeError:  # `invoke lint … | head`: the reader has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python complains once more as it ends
            raise Exit(code=1) from None
        except OSError as error:  # a full disk or a missing right, anywhere
            raise Exit(f"invoke: {error}", code=1) from None
        except KeyboardInterrupt:
            raise Exit("invoke: stopped", code=130) from None

    return wrapped


@task(name="list")
@one_line
def list_(_: Context) -> None:
    """Show the matrix: every combo with its driver, cards, status and budget."""
    from hermitcrab.build import show

    show.matrix(matrices.load())


@task(help={"cuda": CUDA, "torch": TORCH, "base": BASE, "no-cache": "build every step anew"})
@one_line
def build(_: Context, cuda: str = "", torch: str = "", base: str = "auto", no_cache: bool = False) -> None:
    """Build an image: ./invoke build --cuda 12.1."""
    from hermitcrab.build import base as bases
    from hermitcrab.build import engine, image, show

    matrix, combo = _select(cuda, torch)
    bases.check_choice(base)
    found = engine.find()
    image.build(found, matrix, combo, base=base, cache=not no_cache)
    show.result(found, combo)


@task(help={"cuda": CUDA, "torch": TORCH, "base": BASE})
@one_line
def verify(_: Context, cuda: str = "", torch: str = "", base: str = "auto") -> None:
    """Build twice without cache and compare the image IDs; name the files that differ."""
    from hermitcrab.build import engine, image

    matrix, combo = _select(cuda, torch)
    print(f"verified: two uncached builds of {combo.id} are {image.verify(engine.find(), matrix, combo, base=base)}")


@task(help={"cuda": CUDA, "torch": TORCH, "compressed": "measure gzip and zstd as well (minutes)"})
@one_line
def size(_: Context, cuda: str = "", torch: str = "", compressed: bool = False) -> None:
    """Show an image's layers, its twenty largest packages and the verdict on its budget."""
    from hermitcrab.build import engine, show

    combo = _select(cuda, torch)[1]
    show.size(engine.find(), combo, compressed=compressed)


@task(
    help={
        "cuda": CUDA,
        "torch": TORCH,
        "to": "the file to write; hermitcrab-<combo>.tar.zst by default",
    }
)
@one_line
def save(_: Context, cuda: str = "", torch: str = "", to: str = "") -> None:
    """Write an image as a tar.zst file."""
    from hermitcrab.build import engine, image

    matrix, combo = _select(cuda, torch)
    target = Path(to or f"hermitcrab-{combo.id}.tar.zst")
    written = image.save(engine.find(), matrix, combo, target)
    print(f"{target}: {written / 1e9:.2f} GB; load it with: zstd -dc {shlex.quote(str(target))} | docker load")


@task(
    help={
        "cuda": CUDA,
        "torch": TORCH,
        "to": "the repository, as registry/name; the combo becomes the tag",
    }
)
@one_line
def push(_: Context, cuda: str = "", torch: str = "", to: str = "") -> None:
    """Push an image to a registry and print its digest."""
    from hermitcrab.build import engine, image

    matrix, combo = _select(cuda, torch)
    image.check_repository(to)
    print(image.push(engine.find(), matrix, combo, to))


@task(help={"check": "change nothing; fail when a file is stale, missing or left over"})
@one_line
def render(_: Context, check: bool = False) -> None:
    """Write images/<combo>/ from the matrix and the templates."""
    from hermitcrab.build import render as renderer

    matrix = matrices.load()
    if check:
        renderer.check(matrix)
        return
    for path in renderer.write(matrix):
        print(path.relative_to(renderer.ROOT))


@task(
    help={
        "cuda": CUDA,
        "torch": TORCH,
        "upgrade": "move every pin to its newest version, not only what must move",
    }
)
@one_line
def lock(_: Context, cuda: str = "", torch: str = "", upgrade: bool = False) -> None:
    """Resolve a combo's wheels anew and write its lock; this asks the package index."""
    from hermitcrab.build import lock as locks

    matrix, combo = _select(cuda, torch)
    print(locks.refresh(combo, matrix, upgrade=upgrade))


@task(
    help={
        "host": "the box, as ssh knows it: the script runs there and its progress is shown here",
        "options": "words for the script, as '--cuda 12.1'",
        "serve": "serve it on the local network instead",
        "port": "the port to serve it on",
        "lock": "resolve anew what the bootstrap locks for other Pythons; this asks the package index",
    }
)
@one_line
def bootstrap(
    _: Context, host: str = "", options: str = "", serve: bool = False, port: int = 8080, lock: bool = False
) -> None:
    """Make a rented box the environment of the image: ./invoke bootstrap --host mygpu."""
    from hermitcrab.build import bootstrap_locks, bootstrap_send

    if lock:
        for path in bootstrap_locks.refresh_all(matrices.load()):
            print(path)
    elif serve:
        bootstrap_send.serve(port)
    else:
        bootstrap_send.send(host, bootstrap_send.words(options))


@task(help={"path": "your Dockerfile or requirements file", "cuda": CUDA, "torch": TORCH})
@one_line
def lint(_: Context, path: str, cuda: str = "", torch: str = "") -> None:
    """Check your own Dockerfile, or your requirements.txt against a combo."""
    from hermitcrab.build import show

    show.lint(Path(path), lambda: _select(cuda, torch)[1])


@task(help={"stop": "stop the embedded engine", "purge": "stop it and delete its data and programs"})
@one_line
def engine(_: Context, stop: bool = False, purge: bool = False) -> None:
    """Say which engine is used; stop the embedded one."""
    from hermitcrab.build import embedded, show

    if stop or purge:
        print("engine: stopped" if embedded.stop(purge=purge) else "engine: the embedded engine was not running")
        return
    show.engine()


@task(
    help={
        "only": "lint, unit, shell, train, image, box or gpu; several with commas",
        "nightly": "also what takes minutes: each byte at which the bootstrap may be cut",
    }
)
@one_line
def test(_: Context, only: str = "", nightly: bool = False) -> None:
    """Run all that this machine can run, and say what was skipped and why."""
    from hermitcrab.build import quality

    quality.run(only, nightly=nightly)


def _end_as_by_ctrl_c() -> None:
    """Let SIGTERM and a lost terminal stop what runs and remove its secrets, too; nohup stays nohup."""
    for word in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(word) == signal.SIG_DFL:
            signal.signal(word, signal.default_int_handler)


def _select(cuda: str, torch: str) -> tuple[matrices.Matrix, matrices.Combo]:
    matrix = matrices.load()
    combo = matrices.select(matrix, cuda, torch)
    if not torch and cuda:
        print(f"combo: {combo.id}, the default for CUDA {cuda}")
    if combo.status != "current":
        print(f"note: {combo.status}: {combo.reason}")
    return matrix, combo
