"""The base of an image: a registry's, by digest, or made from the package archive."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hermitcrab.build import archive, diagnose
from hermitcrab.build.engine import PROBE_S, Engine
from hermitcrab.errors import UserError
from hermitcrab.matrix import Base

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".cache" / "base"
CHOICES: Final = ("auto", "registry", "packages")
SILENCE_S: Final = 600.0  # a registry that did not answer is not asked again for this long

# What no box reads. Copyright files stay: they are the licence.
SLIM: Final = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/info/*",
)
# mmdebstrap takes these from the host; an address in the sources may hold a password.
CLEAN: Final = (
    'rm -f "$1/etc/resolv.conf" "$1/etc/hostname"',
    'sed -i -E "s#(deb .*://)[^/@ ]*@#\\1#" "$1"/etc/apt/sources.list.d/*',
)


def resolve(engine: Engine, base: Base, choice: str, *, epoch: int, say: Callable[[str], None]) -> str:
    """The image to build from, for ``auto``, ``registry``, ``packages`` or any reference.

    Raises UserError when the choice cannot be had; only ``auto`` ever takes another way, and says so.
    """
    if choice == "packages":
        return _packages(engine, base, epoch)
    if choice == "registry":
        _from_registry(engine, base)
        return base.image
    if choice != "auto":
        check_choice(choice)
        return choice
    if engine.image(base.image) is not None:
        return base.image
    reason = _unreachable(engine, base)
    if reason is None:
        return base.image
    say(f"base: {base.id} from packages, since the registry did not answer ({reason})")
    return _packages(engine, base, epoch)


def check_choice(choice: str) -> None:
    """Refuse what can be no image reference before anything is started for it."""
    if not choice or choice.startswith("-") or not choice.isascii() or any(letter.isspace() for letter in choice):
        raise UserError(f"--base {choice!r} is neither {', '.join(CHOICES)} nor an image reference", code=2)


def make(base: Base, target: Path, *, epoch: int) -> Path:
    """Make the root filesystem of a base as a tar file, the same for the same archive."""
    if os.geteuid() != 0:
        raise UserError("a base from packages needs root - run it as root, or use --base registry")
    lines = archive.sources(base.distro, base.suite)
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_suffix(".part.tar")
    sources = target.with_suffix(".list")
    sources.write_text("\n".join(lines) + "\n")
    command = ["mmdebstrap", "--mode=root", "--variant=apt", "--quiet", "--format=tar"]
    command += [f"--dpkgopt={rule}" for rule in SLIM]
    command += [f"--customize-hook={hook}" for hook in CLEAN]
    environment = {**_mmdebstrap(), "SOURCE_DATE_EPOCH": str(epoch)}
    done = subprocess.run(
        [*command, base.suite, str(half), str(sources)],
        env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    if done.returncode:
        half.unlink(missing_ok=True)
        raise UserError(diagnose.one_line(done.stderr.splitlines(), fallback=f"mmdebstrap failed for {base.id}"))
    half.replace(target)
    return target


def forget(engine: Engine, base: Base) -> None:
    """Let the next build make this base anew; the archive may have moved since it was made."""
    engine.remove(tag(base))
    tarball(base).unlink(missing_ok=True)


def tag(base: Base) -> str:
    """The name under which the engine keeps a base made from packages."""
    return f"hermitcrab-base:{base.id}"


def tarball(base: Base) -> Path:
    """Where the root filesystem of a base made from packages lies."""
    return CACHE / f"{base.id}.tar"


def digest(path: Path) -> str:
    """The sha256 of a root filesystem, to compare two of them."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _packages(engine: Engine, base: Base, epoch: int) -> str:
    CACHE.mkdir(parents=True, exist_ok=True)
    with archive.alone(CACHE):
        if engine.image(tag(base)) is None:
            if not tarball(base).exists():
                print(f"base: making {base.id} from the package archive", flush=True)
                make(base, tarball(base), epoch=epoch)
            engine.import_base(tarball(base), tag(base))
    return tag(base)


def _from_registry(engine: Engine, base: Base) -> None:
    if engine.image(base.image) is None:
        engine.registry_has(base.image)


def _unreachable(engine: Engine, base: Base) -> str | None:
    """Why the registry cannot be used, or None; a silent one is remembered for a while."""
    memo = CACHE / "registry-silent"
    if memo.exists() and time.time() - memo.stat().st_mtime < SILENCE_S:
        return memo.read_text()
    try:
        engine.registry_has(base.image, timeout=PROBE_S)
    except UserError as error:
        CACHE.mkdir(parents=True, exist_ok=True)
        memo.write_text(str(error).split(" - ")[0])
        return memo.read_text()
    memo.unlink(missing_ok=True)
    return None


def _mmdebstrap() -> dict[str, str]:
    """An environment in which mmdebstrap runs: the host's own, else one unpacked into the cache."""
    if shutil.which("mmdebstrap"):
        return dict(os.environ)
    root = ROOT / ".cache" / "mmdebstrap"
    if not root.is_dir():
        here = archive.host()
        lines = archive.sources(here.distro, here.suite)
        packages = archive.fetch(ROOT / ".cache" / "apt", lines, ["mmdebstrap"], resolve=True)
        archive.unpack(packages, root)
        shutil.rmtree(ROOT / ".cache" / "apt")
    perl = [str(path) for path in sorted(root.glob("usr/share/perl*/*")) + sorted(root.glob("usr/lib/*/perl*/*"))]
    own = {
        "PATH": f"{root}/usr/bin:{root}/usr/sbin:{os.environ.get('PATH', '/usr/sbin:/usr/bin:/sbin:/bin')}",
        "PERL5LIB": ":".join([f"{root}/usr/share/perl5", *perl]),
        "LD_LIBRARY_PATH": ":".join(str(path) for path in sorted(root.glob("usr/lib/*-linux-gnu"))),
    }
    return {**os.environ, **{name: value for name, value in own.items() if value}}
