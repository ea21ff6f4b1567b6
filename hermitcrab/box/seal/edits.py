"""What in a file is secret, and the file without it: the parts that are none stay byte for byte."""

from __future__ import annotations

import json
import re
from typing import Callable, Iterator

# Secrets known by their shape, wherever they stand.
_SHAPES = re.compile(
    rb"\bhf_[A-Za-z0-9]{20,}|\bgh[opusr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}"
    rb"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bLTAI[0-9A-Za-z]{12,26}\b|\bAKID[0-9A-Za-z]{28,}\b|\bAIza[\w-]{35}"
    rb"|(?<![\w-])sk-(?=[\w-]{0,60}\d)[\w-]{20,}|\bdckr_[a-z]{3}_[\w-]{16,}|\bxox[abeoprs]-[\w-]{16,}"
    rb"|\bpypi-[\w-]{32,}|\bnpm_[A-Za-z0-9]{30,}|\brpa_[A-Za-z0-9]{20,}"
)
# A header alone is what programs look for; a key has a body.
_PRIVATE_KEY = re.compile(
    rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[^-]{0,400}?[A-Za-z0-9+/]{16}"
    rb"|^PuTTY-User-Key-File-\d|^AGE-SECRET-KEY-1|^\s*PrivateKey\s*=\s*[A-Za-z0-9+/]{42}",
    re.MULTILINE,
)
_ASSIGNMENT = re.compile(
    rb"^[ \t]*(?:export[ \t]+|set[ \t]+-\w+[ \t]+|setenv[ \t]+|declare[ \t]+-x[ \t]+)?"
    rb"([A-Za-z_][\w.]*)(?:[ \t]*=[ \t]*|[ \t]+)(\"(?:[^\"\\]|\\.)*\"?|'[^']*'?|[^\s;#]+)?"
)
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PWD|PAT|KEY|CREDENTIALS?)$|(?:API|ACCESS|SECRET|PRIVATE|AUTH)_?KEY$",
    re.IGNORECASE,
)
# Words, references and paths that stand where a secret would.
_NO_SECRET = re.compile(
    rb"|true|false|yes|no|on|off|null|none|\d{1,3}|change-?me|x{3,}|\*+|<.*>|your[-_ ].*|\$[{(\w].*|`.*|[/~].*|\.{1,2}/.*",
    re.IGNORECASE,
)
_URL_LOGIN = re.compile(rb"(://)(?!git@)[^\s/?#@\"']{1,400}(?:@[^\s/?#@\"']{1,400}){0,3}@")
_CONDA_TOKEN = re.compile(rb"/t/[\w-]{8,}(?=/)")
_AUTH_HEADER = re.compile(rb"^[ \t]*(?:extraheader[ \t]*=[ \t]*authorization:|_auth\w*[ \t]*=|//\S*:_(?:auth\w*|password)[ \t]*=).*(?:\n|$)", re.I | re.M)


def holds_private_key(data: bytes) -> bool:
    """Whether a key that should be nobody else's is in it."""
    return bool(_PRIVATE_KEY.search(data))


def holds_token(data: bytes) -> bool:
    """Whether it spells out a secret, known by its shape."""
    return b"\0" not in data and bool(_SHAPES.search(data))


def holds_secret(data: bytes) -> bool:
    """Whether a file of settings assigns a secret, or holds one in another way."""
    return bool(secret_names(data)) or holds_token(data) or holds_private_key(data) or without_logins(data) != data


def holds_login(data: bytes) -> bool:
    """Whether a cloud's settings hold the keys themselves, and not only a region or a profile."""
    return holds_token(data) or bool(re.search(rb"(?im)^[ \t]*\w*(?:secret|access_?key|password|token)\w*[ \t]*[=:][ \t]*\S", data))


def holds_id(data: bytes) -> bool:
    """Whether a machine-id is one."""
    return data.strip() not in (b"", b"uninitialized")


def is_core(data: bytes) -> bool:
    """Whether it is the memory of a program that crashed: an ELF file of type core."""
    return data[:4] == b"\x7fELF" and data[16:18] in (b"\x04\x00", b"\x00\x04")


def secret_names(data: bytes) -> list[tuple[int, str]]:
    """Return line number and name of each secret that a shell or env file assigns; never the value."""
    lines = data.splitlines(keepends=True)
    return [(number, name) for number, name, secret in _assignments(lines) if secret]


def without_secret_lines(data: bytes) -> bytes:
    """Take out the lines that assign a secret."""
    lines = data.splitlines(keepends=True)
    drop = {number for number, _, secret in _assignments(lines) if secret}
    return b"".join(line for number, line in enumerate(lines, 1) if number not in drop)


def without_auths(data: bytes) -> bytes:
    """Take the logins out of docker's config.json; helpers, proxies and the rest stay."""
    try:
        settings = json.loads(data)
    except ValueError:
        return data
    if not isinstance(settings, dict) or not settings.get("auths"):
        return data
    del settings["auths"]
    return json.dumps(settings, indent="\t", ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def without_logins(data: bytes) -> bytes:
    """Take user and password out of addresses, conda's tokens out of channels, and headers that log in."""
    return _CONDA_TOKEN.sub(b"", _AUTH_HEADER.sub(b"", _URL_LOGIN.sub(rb"\1", data)))


EDITS: dict[str, Callable[[bytes], bytes]] = {
    "auths": without_auths,
    "logins": without_logins,
    "lines": without_secret_lines,
}


def _assignments(lines: list[bytes]) -> Iterator[tuple[int, str, bool]]:
    for number, line in enumerate(lines, 1):
        found = _ASSIGNMENT.match(line)
        if found:
            name, value = found.group(1).decode(), (found.group(2) or b"").strip(b"\"'")
            yield number, name, _is_secret(name, value)


def _is_secret(name: str, value: bytes) -> bool:
    if _SHAPES.search(value) or _URL_LOGIN.search(value):
        return True
    if "PUBLIC" in name.upper() or name.upper() in {"PWD", "OLDPWD"}:
        return False
    return bool(_SECRET_NAME.search(name)) and not _NO_SECRET.fullmatch(value)
