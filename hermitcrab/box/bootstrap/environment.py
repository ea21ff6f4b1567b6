"""The Python environment: a venv with the combo's lock, every wheel by its hash, made by uv.

It is complete when its manifest is there, which is written last; anything else is made anew. What uv has
fetched already lies beside it until then, so that a second try is short.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, Mapping, NamedTuple

from hermitcrab import __version__
from hermitcrab.box import files
from hermitcrab.box.bootstrap import mirrors, own, pins, pip, wheels
from hermitcrab.box.bootstrap.pick import Choice
from hermitcrab.box.bootstrap.run import Run
from hermitcrab.box.check.build import MANIFEST
from hermitcrab.errors import UserError

SMALL = 3 << 30  # of memory: then one wheel at a time
SYSTEM_GB = 0.6  # what the packages of the distribution take, all of them
TEMPORARY = 200 << 20  # what pip needs to fetch uv
SLACK = 1.05
BOOT = Path("/proc/sys/kernel/random/boot_id")  # another one after each start of the machine, not of a container


class Where(NamedTuple):
    """Where the environment lies, and where it is looked for."""

    folder: Path
    link: Path | None = None  # to the folder, from where the profile and the SSH server look

    @property
    def python(self) -> Path:
        """Its Python."""
        return self.folder / "bin/python"

    def site(self, version: str) -> Path:
        """Where its packages are."""
        return self.folder / f"lib/python{version}/site-packages"


class Fetch(NamedTuple):
    """How wheels are fetched."""

    uv: pins.Tool
    memory: int | None  # the limit of this box
    apt_options: tuple[str, ...] = ()
    mirror: str = mirrors.NONE


def identity(choice: Choice, wheel: bytes) -> dict[str, Any]:
    """Return what must be equal for an environment to be this one."""
    lock = pins.lock(choice.row, choice.python)
    return {"lock": hashlib.sha256(lock).hexdigest(), "wheel": hashlib.sha256(wheel).hexdigest()}


def is_complete(where: Where, choice: Choice, wheel: bytes) -> bool:
    """Whether the environment is there, whole, with this lock and this wheel."""
    made = files.read_json(where.folder / MANIFEST)
    whole = all(made.get(key) == value for key, value in identity(choice, wheel).items())
    whole = whole and wheels.is_installed(wheel, where.site(choice.python))
    return whole and os.access(str(where.python), os.X_OK)


def make(run: Run, where: Where, choice: Choice, wheel: bytes, fetch: Fetch) -> str:
    """Make the environment; return what was done."""
    lock = pins.lock(choice.row, choice.python)
    before = files.read_json(where.folder / MANIFEST)
    _link(where)
    if before.get("lock") != identity(choice, wheel)["lock"] or not os.access(str(where.python), os.X_OK):
        _install(run, where, choice, lock, fetch)
    wheels.install(wheel, where.site(choice.python), where.folder / "bin", str(_shown(where) / "bin/python"))
    manifest = {**choice.row.wanted, "python": choice.python, "packages": _packages(lock), **identity(choice, wheel)}
    files.write(where.folder / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode() + b"\n")
    shutil.rmtree(str(kept(where.folder)), ignore_errors=True)
    return f"{len(manifest['packages'])} packages in {_shown(where)}"


def constraints(lock: bytes) -> list[str]:
    """Return what a later installation may not move: torch, its companions and the CUDA they were built with."""
    own = {"torch", "torchvision", "torchaudio", "triton"}
    versions = pins.locked(lock)
    kept = [f"{name}=={versions[name]}" for name in versions if name in own or name.startswith("nvidia-")]
    return [*kept, "numpy<2"] if versions.get("numpy", "").startswith("1.") else kept


def kept(folder: Path) -> Path:
    """Return where that lies which was fetched for an environment: on its disk, to be linked and not copied."""
    return folder.with_name(f".{folder.name}.partial")


def _install(run: Run, where: Where, choice: Choice, lock: bytes, fetch: Fetch) -> None:
    own.refuse_foreign(where.folder)
    fetched, boot = kept(where.folder), files.read(BOOT) or b""
    _forget_older(fetched, boot)
    command = pip.find(run, fetch.apt_options)
    mirror = mirrors.choose(run, fetch.mirror, command, mirrors.table())
    if mirror:
        run.say(f"      from mirror {mirror.name}: {mirror.packages}")
        run = run._replace(environ={**run.environ, **mirror.variables})
    environ = {**pip.environment(run, command), **_limits(fetch.memory)}
    environ.setdefault("UV_CACHE_DIR", str(fetched / "cache"))
    uv = pip.uv(run, command, fetch.uv, fetched)
    files.write(fetched / BOOT.name, boot)
    python = _base_python(choice.python)
    own.claim(where.folder)
    run.call(uv, "venv", "-q", "--allow-existing", "--python", python, str(where.folder), environ=environ)
    file = run.work / "requirements.lock"
    file.write_bytes(lock)
    words = ("pip", "install", "--python", str(where.python), "--require-hashes", "--no-deps", "--no-build")
    status, said = run.attempt(uv, *words, "-r", str(file), environ=environ, watch=str(where.folder))
    if status:
        raise UserError(f"the wheels cannot be installed: {pip.why(said)}; run this again, it goes on from here")


def _forget_older(fetched: Path, boot: bytes) -> None:
    """Remove what was fetched before the machine last started: a power cut may have emptied files of it."""
    if files.read(fetched / BOOT.name) != boot:
        shutil.rmtree(str(fetched), ignore_errors=True)


def _link(where: Where) -> None:
    if where.link is None or os.path.realpath(str(where.link)) == os.path.realpath(str(where.folder)):
        return
    if where.link.is_symlink():
        where.link.unlink()
    elif where.link.exists():
        own.remove(where.link)
    files.make_folder(where.link.parent)
    where.link.symlink_to(where.folder)


def _shown(where: Where) -> Path:
    return where.link or where.folder


def _base_python(version: str) -> str:
    for python in (f"/usr/bin/python{version}", f"/usr/local/bin/python{version}", shutil.which(f"python{version}")):
        if python and os.access(python, os.X_OK):
            return python
    raise UserError(f"Python {version} is gone")


def _limits(memory: int | None) -> Mapping[str, str]:
    """Ask less of a box with little memory: AutoDL's mode without a card has 2 GB."""
    if memory is None or memory > SMALL:
        return {}
    return {"UV_CONCURRENT_INSTALLS": "1", "UV_CONCURRENT_DOWNLOADS": "2"}


def _packages(lock: bytes) -> list[dict[str, str]]:
    """List the wheels as the image's manifest does, hermitcrab's own among them."""
    versions = {**pins.locked(lock), "hermitcrab": __version__}
    return [{"name": name, "version": version, "kind": "wheel"} for name, version in sorted(versions.items())]
