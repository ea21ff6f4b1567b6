"""SSH public keys: read what a platform hands over, add it to authorized_keys, break nothing."""

from __future__ import annotations

import base64
import binascii
import os
import re
import tempfile
from pathlib import Path
from typing import Iterator, NamedTuple

TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "ssh-rsa",
)
# Only what sshd itself takes for a separator: a pasted no-break space makes a key it cannot read.
_SPACE = re.compile(r"[ \t]+")
_OPTIONS = re.compile(r'[A-Za-z](?:[^\s"]|"(?:\\.|[^"\\])*")*[ \t]+')
_LINE_END = re.compile(r"\r\n?|\n")


class Key(NamedTuple):
    """One public key: the line as given, and what makes two lines the same key."""

    line: str
    type: str
    blob: bytes


class MalformedKeyError(ValueError):
    """The text is no SSH public key; the message says why and never shows the text."""


def read_keys(text: str) -> Iterator[Key | MalformedKeyError]:
    """Yield each key in a text of lines, and for each line that is none the reason."""
    if "PRIVATE KEY-----" in text:
        yield MalformedKeyError("holds a private key: give the .pub file's line, and make a new key pair")
        return
    for number, line in enumerate(map(str.strip, _LINE_END.split(text)), 1):
        # "null" is what a platform's form sends for an empty field.
        if line in {"", "null"} or line.startswith("#"):
            continue
        try:
            yield parse_key(line)
        except MalformedKeyError as error:
            yield MalformedKeyError(f"line {number} {error}")


def parse_key(line: str) -> Key:
    """Read one line, with or without options in front."""
    line = line.strip()
    words = _SPACE.split(line, maxsplit=2)
    options = _OPTIONS.match(line)
    if words[0] not in TYPES and options:
        words = _SPACE.split(line[options.end() :], maxsplit=2)
    if words[0] not in TYPES:
        raise MalformedKeyError(f"is of no known key type ({', '.join(TYPES)})")
    return Key(line, words[0], _blob(words))


def merge(old: bytes, keys: list[Key]) -> bytes:
    """Return authorized_keys with the keys it lacks; what was there stays byte for byte."""
    known = {(key.type, key.blob) for key in _known(old)}
    new = old if not old or old.endswith(b"\n") else old + b"\n"
    for key in keys:
        if (key.type, key.blob) not in known:
            known.add((key.type, key.blob))
            new += key.line.encode("utf-8", "surrogateescape") + b"\n"
    return new


def holds_a_key(path: Path) -> bool:
    """Say whether anyone can log in with this authorized_keys."""
    try:
        return any(True for _ in _known(path.read_bytes()))
    except OSError:
        return False


def authorize(path: Path, keys: list[Key]) -> None:
    """Add keys to an authorized_keys file: all or nothing, and with the modes sshd insists on."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.parent.chmod(0o700)
    # A link stays one: platforms keep the file itself on the disk that outlives the box.
    target = Path(os.path.realpath(path))
    old = target.read_bytes() if target.exists() else b""
    new = merge(old, keys)
    if new == old:
        target.chmod(0o600)
    else:
        replace(target, new)


def replace(target: Path, data: bytes) -> None:
    """Write a file of mode 600 that is whole at every moment."""
    descriptor, temporary = tempfile.mkstemp(dir=str(target.parent), prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, str(target))
    except BaseException:
        os.unlink(temporary)
        raise


def _known(data: bytes) -> Iterator[Key]:
    text = data.decode("utf-8", "surrogateescape")
    for line in text.split("\n"):
        try:
            yield parse_key(line)
        except MalformedKeyError:
            continue


def _blob(words: list[str]) -> bytes:
    try:
        blob = base64.b64decode(words[1].encode("ascii"), validate=True)
    except (IndexError, UnicodeEncodeError, binascii.Error):
        raise MalformedKeyError("is damaged: its middle part is not base64") from None
    fields = _fields(blob)
    if len(fields) < 2 or fields[0] != words[0].encode("ascii"):
        raise MalformedKeyError(f"is damaged or cut short: its middle part is no {words[0]} key")
    return blob


def _fields(blob: bytes) -> list[bytes]:
    """Split SSH's length-prefixed fields; nothing when they do not fill the blob exactly."""
    fields, at = [], 0
    while at < len(blob):
        size = int.from_bytes(blob[at : at + 4], "big")
        fields.append(blob[at + 4 : at + 4 + size])
        at += 4 + size
    return fields if at == len(blob) else []
