"""The host's package archive, read without touching the host: own lists, own cache, own state.

No address stands here: the archive of another suite is derived from the host's own sources.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hermitcrab.box.mask import mask
from hermitcrab.errors import UserError

KEYRING: Final = "/usr/share/keyrings/"  # where both Debian's and Ubuntu's own keys lie, on the host and in a base
POCKETS: Final = ("", "-updates", "-security")
OFF: Final = ("no", "false", "without", "off", "disable", "0")  # apt's words


@dataclass(frozen=True, kw_only=True)
class Host:
    """The system we run on, as /etc/os-release has it."""

    distro: str
    suite: str

    @property
    def debian_like(self) -> bool:
        """Whether it has a package archive we can build from."""
        return self.distro in {"debian", "ubuntu"} and shutil.which("apt-get") is not None


def host(root: Path = Path("/")) -> Host:
    """Read what the host is; unknown fields are empty."""
    path = root / "etc/os-release"
    text = path.read_text() if path.is_file() else ""
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    return Host(distro=fields.get("ID", ""), suite=fields.get("VERSION_CODENAME", ""))


def sources(distro: str, suite: str, root: Path = Path("/")) -> list[str]:
    """One-line apt sources of a suite, at the addresses the host itself uses.

    Raises UserError when the host is of another distribution, or its sources name no archive.
    """
    here = host(root)
    if here.distro != distro:
        raise UserError(
            f"{distro} {suite} can only be made on {distro}, and this is {here.distro or 'unknown'}: "
            "use --base registry, or build on such a machine"
        )
    lines = [
        f"deb {entry.options}{entry.uri} {suite}{pocket} {entry.components}"
        for pocket in POCKETS
        for entry in _entries(root)
        if entry.suite == here.suite + pocket
    ]
    if not lines:
        raise UserError(f"the apt sources of this host name no archive of {here.suite}: see /etc/apt/sources.list")
    return list(dict.fromkeys(lines))


def fetch(cache: Path, lines: Sequence[str], packages: Sequence[str], *, resolve: bool = False) -> list[Path]:
    """Download packages, signatures checked by apt, and return the files.

    A name may carry its suite, as ``docker.io/trixie``. With ``resolve``, what the host lacks of
    their dependencies comes along.
    """
    target = cache / "archives"
    shutil.rmtree(target, ignore_errors=True)
    for directory in ("lists/partial", "archives/partial"):
        (cache / directory).mkdir(parents=True, exist_ok=True)
    (cache / "sources.list").write_text("\n".join(lines) + "\n")
    _apt(cache, ["update", "-qq"], cwd=target)
    order = ["install", "-y", "--download-only", "--no-install-recommends"] if resolve else ["download"]
    _apt(cache, [*order, "-qq", *packages], cwd=target)
    return sorted(target.glob("*.deb"))


def unpack(debs: Sequence[Path], root: Path) -> None:
    """Unpack packages into ``root``, which appears whole or not at all."""
    half = root.with_name(root.name + ".part")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    for deb in debs:
        _run(["dpkg-deb", "-x", str(deb), str(half)], cwd=half)
    shutil.rmtree(root, ignore_errors=True)
    half.rename(root)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a folder against other processes that do the same; the lock ends with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True, kw_only=True)
class _Entry:
    options: str
    uri: str
    suite: str
    components: str


def _entries(root: Path) -> Iterator[_Entry]:
    apt = root / "etc/apt"
    for path in [apt / "sources.list", *sorted(apt.glob("sources.list.d/*"))]:
        if path.suffix == ".sources":
            yield from _deb822(path.read_text(encoding="utf-8", errors="replace"))
        elif path.suffix == ".list" and path.is_file():
            yield from _one_line(path.read_text(encoding="utf-8", errors="replace"))


def _one_line(text: str) -> Iterator[_Entry]:
    pattern = r"^[ \t]*deb[ \t]+(?:\[([^\]\n]*)\][ \t]+)?(\S+)[ \t]+(\S+)[ \t]+([^#\n]*[^#\s])"
    for options, uri, suite, components in re.findall(pattern, text, re.MULTILINE):
        signed = re.search(r"signed-by=(\S+)", options)
        yield _Entry(options=_signed(signed and signed[1]), uri=uri, suite=suite, components=components)


def _deb822(text: str) -> Iterator[_Entry]:
    unfolded = re.sub(r"\n[ \t]+(?=\S)", " ", re.sub(r"(?m)^#.*\n?", "", text))
    for stanza in re.split(r"\n\s*\n", unfolded):
        fields = {key.lower(): value.strip() for key, value in re.findall(r"(?m)^([\w-]+):[ \t]*(.*)$", stanza)}
        if fields.get("enabled", "").lower() in OFF or "deb" not in fields.get("types", "").split():
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                options = _signed(fields.get("signed-by"))
                yield _Entry(
                    options=options,
                    uri=uri,
                    suite=suite,
                    components=fields.get("components", "main"),
                )


def _signed(keyring: str | None) -> str:
    """Keep a keyring that the base has as well; any other is the host's own affair."""
    return f"[signed-by={keyring}] " if keyring and keyring.startswith(KEYRING) else ""


def _apt(cache: Path, arguments: Sequence[str], *, cwd: Path) -> None:
    options = {
        "Dir::Etc::SourceList": cache / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": cache / "lists",
        "Dir::Cache": cache,
        "Dir::Cache::Archives": cache / "archives",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "true",  # the lists are ours alone; another apt may hold the host's locks
    }
    flags = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    config = cache / "apt.conf"
    config.write_text("#clear APT::Update;\n")  # the host's hooks after an update write below /var
    _run(["apt-get", "-c", str(config), *flags, *arguments], cwd=cwd)


def _run(command: Sequence[str], *, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("E:")] or said[-1:] or ["no word of why"]
        raise UserError(f"{command[0]} failed: {mask(errors[0])} - check the network and this host's apt sources")
