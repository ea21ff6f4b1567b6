"""An image from its row: build, verify, save, push."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import zstandard
from rich.console import Console

from hermitcrab.box import files
from hermitcrab.build import base as bases
from hermitcrab.build import compare, render
from hermitcrab.build.engine import Engine, Image, failures
from hermitcrab.build.progress import BuildProgress
from hermitcrab.errors import UserError
from hermitcrab.matrix import Combo, Matrix

ROOT: Final = Path(__file__).resolve().parents[2]
# BuildKit hands these to every step and keeps them out of the image and its history.
PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "FTP_PROXY", "ALL_PROXY")
CA_SETTINGS: Final = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE")
CA_EXTRA: Final = "HERMITCRAB_CA"  # beside all of these; the same setting as on a box
CA_SYSTEM: Final = "/etc/ssl/certs/ca-certificates.crt"
INDEX_SETTINGS: Final = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
ROOM: Final = 2.6  # a build holds its image twice, and the wheels as they come


def tag(combo: Combo) -> str:
    """The image's name in an engine."""
    return f"hermitcrab:{combo.id}"


def build(
    engine: Engine,
    matrix: Matrix,
    combo: Combo,
    *,
    base: str = "auto",
    cache: bool = True,
    name: str = "",
) -> str:
    """Build a combo and return its image ID; ``name`` is a tag other than the usual one.

    Raises UserError when anything is amiss; an image of the same name stays as it was.
    """
    console = Console()
    render.check(matrix, combo)
    engine.check_platform(matrix.platform)
    name = name or tag(combo)
    if not cache or engine.image(name) is None:  # else most of it is there already
        _check_room(engine, combo)
    source = bases.resolve(engine, combo.base, base, epoch=matrix.epoch, say=print)
    with secrets() as kept, BuildProgress(console) as progress:
        engine.build(
            render.IMAGES / combo.id,
            tag=name,
            arguments={
                "BASE": source,
                "SOURCE_DATE_EPOCH": str(matrix.epoch),
                "REVISION": revision(),
                **_proxies(),
            },
            secrets=kept,
            cache=cache,
            show=progress.show,
            needed_gb=combo.disk_gb * ROOM,
        )
    return built(engine, name).id or ""


def verify(engine: Engine, matrix: Matrix, combo: Combo, *, base: str = "auto") -> str:
    """Build twice without cache, base included, and return the image ID both have.

    Raises UserError naming the first differing files when they have not.
    """
    names = (tag(combo), f"{tag(combo)}-again")
    bases.forget(engine, combo.base)
    first = build(engine, matrix, combo, base=base, cache=False, name=names[0])
    difference = _remake_base(engine, combo, matrix.epoch)
    second = build(engine, matrix, combo, base=base, cache=False, name=names[1])
    if first != second:
        found = difference or compare.images(engine, *names)
        raise UserError(f"two builds of {combo.id} differ: {'; '.join(found)}")
    engine.remove(names[1])
    return first


def save(engine: Engine, matrix: Matrix, combo: Combo, target: Path) -> int:
    """Write the image as a tar.zst that `zstd -d | docker load` reads, and return its bytes."""
    _check_image_platform(engine, matrix, combo)
    if problem := files.why_not(target):  # a rename would put a file in the place of /dev/null as well
        raise UserError(f"--to {target}: it {problem}; give the name of a file", code=2)
    target = Path(os.path.realpath(target))
    half = target.with_name(f"{target.name}.{os.getpid()}.part")  # another save may write the same target
    try:
        with (
            half.open("wb") as file,
            zstandard.ZstdCompressor(level=3, threads=-1).stream_writer(file) as packer,
        ):
            for chunk in engine.save(tag(combo)):
                packer.write(chunk)
        half.replace(target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror} - choose another place with --to") from error
    finally:
        half.unlink(missing_ok=True)
    return target.stat().st_size


def push(engine: Engine, matrix: Matrix, combo: Combo, repository: str) -> str:
    """Push the image to a repository, tagged with its combo, and return ``repository@digest``."""
    check_repository(repository)
    image = _check_image_platform(engine, matrix, combo)
    target = f"{repository}:{combo.id}"
    with failures(f"naming the image {target}"):
        image.tag(repository, tag=combo.id)
    return f"{repository}@{engine.push(target)}"


def check_repository(name: str) -> None:
    """Refuse what is no repository before anything is started for it."""
    if not name or ":" in name.rpartition("/")[2]:
        raise UserError(f"--to {name!r} is no repository; give one without a tag, as registry/name", code=2)


def built(engine: Engine, name: str) -> Image:
    """The image of a tag; UserError says how to build it when it is not there."""
    image = engine.image(name)
    if image is None:
        raise UserError(
            f"no image {name} here - build it: ./invoke build --cuda {name.partition('cuda')[2].partition('-')[0]}"
        )
    return image


def revision() -> str:
    """The source revision for a label; marked when the checkout has changes of its own."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # a fresh machine has no git
        return "unknown"
    return done.stdout.strip() or "unknown"


def _check_image_platform(engine: Engine, matrix: Matrix, combo: Combo) -> Image:
    image = built(engine, tag(combo))
    have = f"{image.attrs['Os']}/{image.attrs['Architecture']}"
    if have != matrix.platform:
        raise UserError(f"{tag(combo)} is {have}, not {matrix.platform} - build it on such a machine")
    return image


def _remake_base(engine: Engine, combo: Combo, epoch: int) -> list[str]:
    """Make a base from packages once more; return what differs, and let the next build use the new one."""
    old = bases.tarball(combo.base)
    if engine.image(bases.tag(combo.base)) is None or not old.exists():
        return []
    kept = old.rename(old.with_suffix(".first.tar"))
    try:
        new = bases.make(combo.base, old, epoch=epoch)
        engine.remove(bases.tag(combo.base))
        return compare.files(kept, new)
    finally:
        kept.unlink()


def _check_room(engine: Engine, combo: Combo) -> None:
    """Refuse to start what cannot end, as far as the engine's disk is ours to see."""
    root = engine.data_root
    if root is None or not root.exists():
        return
    free, needed = shutil.disk_usage(root).free / 1e9, combo.disk_gb * ROOM
    if free < needed:
        raise UserError(f"building {combo.id} needs {needed:.0f} GB on the disk of {root}, {free:.0f} GB are free")


def _proxies() -> dict[str, str]:
    both = (*PROXIES, *(name.lower() for name in PROXIES))
    return {name: os.environ[name] for name in both if os.environ.get(name)}


@contextlib.contextmanager
def secrets() -> Iterator[Mapping[str, Path]]:
    """The host's CA bundle and the user's package index, as files that only the build sees."""
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        settings = (os.environ.get(name) for name in CA_SETTINGS)
        bundles = (Path(name) for name in (*settings, CA_SYSTEM) if name)
        if ca := next(filter(Path.is_file, bundles), None):
            # A copy, since a path with a comma would end the option it stands in.
            found["ca"] = Path(shutil.copyfile(ca, Path(folder, "ca")))
        if extra := os.environ.get(CA_EXTRA):
            found["ca"] = _with(found.get("ca", Path(folder, "ca")), Path(extra))
        if index := _index():
            found["index"] = Path(folder, "index")
            found["index"].write_text(index)
        yield found


def _with(bundle: Path, extra: Path) -> Path:
    """Add one more certificate; one that was named and is not there must not be passed over."""
    try:
        data = extra.read_bytes()
    except OSError as error:
        raise UserError(f"{CA_EXTRA}={extra}: {error.strerror}; name a file of certificates (PEM)", code=2) from None
    with bundle.open("ab") as file:
        file.write(b"\n" + data)
    return bundle


def _index() -> str:
    for name in INDEX_SETTINGS:
        if os.environ.get(name):
            return os.environ[name]
    command = [sys.executable, "-m", "pip", "config", "list"]  # `config get` reads one of pip's files only
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: dict[str, str] = dict(re.findall(r"^(global|install)\.index-url='(.*)'$", done.stdout, re.MULTILINE))
    return found.get("install") or found.get("global", "")
