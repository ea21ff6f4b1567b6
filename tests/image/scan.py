"""Looks through a root filesystem for what an image must not hold: secrets, caches, traces of its build.

The filesystem comes as a tar stream and is never unpacked. Rules are tables: by where a file lies,
and by what a small file says. ``tests/unit/test_scan.py`` plants each thing.
"""

from __future__ import annotations

import contextlib
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Final, NamedTuple

from hermitcrab.box import mask

SMALL: Final = 1 << 20  # what a secret is found in; larger files are libraries
BUFFER: Final = 1 << 20  # tarfile's own 10 kB make a slow walk of 5 GB

# What the engine puts into every container, whose times and links are not the image's.
ENGINE: Final = re.compile(
    r"(\.dockerenv|dev(/console|/pts|/shm)?|etc(/hostname|/hosts|/mtab|/resolv\.conf)?|proc|sys)"
)
CA_PACKAGES: Final = "usr/share/ca-certificates/"
CA_TRUSTED: Final = "etc/ssl/certs/"


class Finding(NamedTuple):
    """One thing that does not belong, and the file it is in."""

    path: str
    what: str


NAMES: Final = tuple(
    (what, re.compile(pattern))
    for what, pattern in (
        ("cache", r"(^|/)\.cache/|^var/cache/ldconfig/"),
        ("apt cache", r"^var/cache/apt/"),
        ("apt list", r"^var/lib/apt/lists/"),
        ("byte-compiled file", r"(^|/)__pycache__/|\.py[co]$"),
        ("wheel", r"^(?!usr/share/python-wheels/).*\.whl$"),  # those Debian's venv module installs pip from
        ("host key", r"(^|/)ssh_host_\w+_key(\.pub)?$"),
        ("authorized_keys", r"(^|/)authorized_keys2?$"),
        ("file in .ssh", r"(^|/)\.ssh/"),
        ("temporary file", r"^(var/)?tmp/"),
        ("log", r"^var/log/"),
        ("history", r"(^|/)\.(\w+_history|wget-hsts|lesshst)$"),
        ("credentials", r"(^|/)(\.netrc|\.git-credentials|\.pypirc|\.docker/config\.json|\.aws/credentials)$"),
        ("settings of the build's pip or uv", r"(^|/)(pip\.conf|\.pydistutils\.cfg|uv\.toml)$"),
        ("extra CA", r"^usr/local/share/ca-certificates/"),
        ("secret of the build", r"^run/secrets/"),
        (
            "package manager's leftover",
            r"\.dpkg-\w+$|^var/(lib/dpkg|cache/debconf)/[^/]+-old$|^etc/(passwd|g?shadow|group|sub[ug]id)-$",
        ),
    )
)

# A header alone is what programs look for; a key has a body.
_PRIVATE_KEY: Final = re.compile(rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]{0,200}?[A-Za-z0-9+/]{40}")
_PROXY: Final = re.compile(
    rb"^[ \t]*(?:export[ \t]+)?(?:\w+_proxy|proxy)[ \t]*=[ \t]*\S|^[ \t]*Acquire::\w+::Proxy",
    re.MULTILINE | re.IGNORECASE,
)
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")
# A line without any of these holds no token: searching for bytes is many times faster than the patterns.
_HINTS: Final = tuple(
    b"hf_ ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- AKIA ASIA sk- dckr_ xox pypi- npm_ AIza rpa_ eyJ ://".split()
)
# Documentation writes user:password@ in addresses; a password that someone uses has a digit.
# sk- begins the name of two types of public keys, and ghs_ in small letters is the Green Hills compiler.
_EXAMPLE: Final = re.compile(
    r"://[^\s@:]{0,200}:[^\s@\d]{0,200}@|\bsk-(?:ecdsa-sha2-nistp256|ssh-ed25519)\b|\bgh[opusr]_[a-z]{1,30}\b"
)


def scan(archive: IO[bytes], *, epoch: int, foreign: Mapping[str, bytes] | None = None) -> list[Finding]:
    """All findings in a root filesystem; ``foreign`` names bytes of the build host that must be in no file."""
    found: list[Finding] = []
    certificates: dict[str, set[bytes]] = {}
    with tarfile.open(fileobj=archive, mode="r|", bufsize=BUFFER) as root:
        for member in root:
            root.members = []  # type: ignore[attr-defined]  # else every header stays in memory
            path = member.name.removeprefix("./")
            data = b""
            if member.isreg() and member.size <= SMALL:
                content = root.extractfile(member)
                data = content.read() if content else b""
            found += [Finding(path, what) for what in _faults(member, path, data, epoch, foreign or {})]
            if path.startswith((CA_PACKAGES, CA_TRUSTED)) and data:
                certificates[path] = _certificates(data)
    return found + list(_unpackaged(certificates))


def hidden(saved: IO[bytes]) -> list[str]:
    """What the layers of a saved image hide from the scan above: files removed, or replaced, by a later layer."""
    seen: set[str] = set()
    found = []
    with tarfile.open(fileobj=saved, mode="r|") as image:
        for blob in image:
            content = image.extractfile(blob) if blob.size > tarfile.BLOCKSIZE * 2 else None
            for member in _members(content) if content else ():
                whiteout = member.name.rpartition("/")[2].startswith(".wh.")
                if whiteout or (member.isreg() and member.size and member.name in seen):
                    found.append(member.name)
                seen.add(member.name)
    return found


def certificates_of(bundle: bytes, known: bytes) -> Iterator[bytes]:
    """A line out of each certificate of a bundle that another lacks: enough to know it again."""
    old = _certificates(known)
    for body in _CERTIFICATE.findall(bundle):
        lines = body.split()
        if b"".join(lines) not in old:
            yield lines[len(lines) // 2]  # past the names, which certificates of one issuer share


def _members(content: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """The entries of a layer; a blob that is no tar file is none."""
    with contextlib.suppress(tarfile.ReadError), tarfile.open(fileobj=content, mode="r|") as layer:
        yield from layer


def _faults(member: tarfile.TarInfo, path: str, data: bytes, epoch: int, foreign: Mapping[str, bytes]) -> Iterator[str]:
    if not member.isdir():
        yield from (what for what, pattern in NAMES if pattern.search(path))
    if member.mtime > epoch and not ENGINE.fullmatch(path):
        yield "newer than the epoch"
    if data:
        yield from (what for what, pattern, is_fault in _CONTENT if pattern.search(path) and is_fault(data))
        yield from (what for what, sample in foreign.items() if sample in data)


def _holds_password(data: bytes) -> bool:
    """Whether passwd, shadow or gshadow lets anyone in: an empty field needs no password at all."""
    fields = [line.split(b":")[1] for line in data.splitlines() if b":" in line]
    return any(not re.fullmatch(rb"[*!]+|x", field) for field in fields)


def _holds_token(data: bytes) -> bool:
    hints = [hint for hint in _HINTS if hint in data] if b"\0" not in data else []
    lines = (line for line in data.splitlines() if any(hint in line for hint in hints))
    return any(mask.holds_token(_EXAMPLE.sub("", line.decode(errors="replace"))) for line in lines)


def _holds_id(data: bytes) -> bool:
    return data.strip() not in (b"", b"uninitialized")


def _anything(data: bytes) -> bool:
    return bool(data.strip())


def _certificates(data: bytes) -> set[bytes]:
    return {b"".join(body.split()) for body in _CERTIFICATE.findall(data)}


def _unpackaged(certificates: Mapping[str, set[bytes]]) -> Iterator[Finding]:
    """Trusted certificates that come from no package of CAs."""
    packaged = {one for path, some in certificates.items() if path.startswith(CA_PACKAGES) for one in some}
    for path, some in certificates.items():
        if some - packaged:
            yield Finding(path, "trusted CA of no package")


# What, in which files, and when it is a fault.
_CONTENT: Final[tuple[tuple[str, re.Pattern[str], Callable[[bytes], object]], ...]] = tuple(
    (what, re.compile(pattern), is_fault)
    for what, pattern, is_fault in (
        ("machine id", r"^(etc|var/lib/dbus)/machine-id$", _holds_id),
        ("password", r"^etc/(passwd|g?shadow)-?$", _holds_password),
        ("password", r"^var/cache/debconf/passwords\.dat$", _anything),
        ("network of the build host", r"^etc/(hostname|hosts|resolv\.conf)$", _anything),
        ("proxy", r"^(etc|root|home|usr/local)/", _PROXY.search),
        ("private key", r"", _PRIVATE_KEY.search),
        ("token", r"", _holds_token),
    )
)
