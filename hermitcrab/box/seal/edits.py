"""What in a file is secret, and the file without it: the parts that are none stay byte for byte."""

from __future__ import annotations

import json
import re
from typing import Callable, Iterator

from hermitcrab.box import tokens

# Secrets known by their shape, wherever they stand.
_SHAPES = re.compile(tokens.pattern(sure=True).encode())
# A header alone is what programs look for; a key has a body.
_PRIVATE_KEY = re.compile(
    rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[^-]{0,400}?[A-Za-z0-9+/]{16}"
    rb"|^PuTTY-User-Key-File-\d|^AGE-SECRET-KEY-1|^\s*PrivateKey\s*=\s*[A-Za-z0-9+/]{42}",
    re.MULTILINE,
)
# HF_TOKEN=x, also after export or inside an alias; `set -gx HF_TOKEN x` and `setenv HF_TOKEN x`.
_ASSIGNMENT = re.compile(
    rb"(?<![\w$.{/-])(?:(?:set[ \t]+-\w+|setenv)[ \t]+([A-Za-z_]\w*)[ \t]+|([A-Za-z_]\w*)(?:=|[ \t]+=[ \t]*))"
    rb"(\"(?:[^\"\\]|\\.){0,9000}\"|'[^']{0,9000}'|[^\s;]+)",
    re.DOTALL,
)
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PWD|PAT|KEY|CREDENTIALS?)$|(?:API|ACCESS|SECRET|PRIVATE|AUTH)_?KEY$",
    re.IGNORECASE,
)
# Words, references and paths that stand where a secret would.
_NO_SECRET = re.compile(
    rb"|true|false|yes|no|on|off|null|none|\d{1,3}|change-?me|x{3,}|\*+|<.*>|your[-_ ].*"
    rb"|\$[{(\w].*|`.*|[/~].*|\.{1,2}/.*",
    re.IGNORECASE,
)
_URL_LOGIN = re.compile(rb"(https?://)(?!git@)[^\s/?#@\"'$]{1,400}(?:@[^\s/?#@\"'$]{1,400}){0,3}@")
_URL_PASSWORD = re.compile(rb"://[^\s/?#@:\"'$]{0,200}:[^\s@\"'$]{1,400}@")
_CONDA_TOKEN = re.compile(rb"/t/[\w-]{8,}(?=/)")
_AUTH_HEADER = re.compile(
    rb"^[ \t]*(?:extraheader[ \t]*=[ \t]*authorization:|_auth\w*[ \t]*=|//\S*:_(?:auth\w*|password)[ \t]*=).*(?:\n|$)",
    re.IGNORECASE | re.MULTILINE,
)


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
    return holds_token(data) or bool(
        re.search(rb"(?im)^[ \t]*\w*(?:secret|key|password|token)\w*[ \t]*[=:][ \t]*\S", data)
    )


def holds_id(data: bytes) -> bool:
    """Whether a machine-id is one."""
    return data.strip() not in (b"", b"uninitialized")


def is_core(data: bytes) -> bool:
    """Whether it is the memory of a program that crashed: an ELF file of type core."""
    return data[:4] == b"\x7fELF" and data[16:18] in (b"\x04\x00", b"\x00\x04")


def secret_names(data: bytes) -> list[tuple[int, str]]:
    """Return line number and name of each secret that a shell or env file assigns; never the value."""
    found, line, at = [], 1, 0
    for name, start, _ in _secrets(data):
        line, at = line + data.count(b"\n", at, start), start
        found.append((line, name))
    return found


def without_values(data: bytes) -> bytes:
    """Empty the secrets that a shell or env file assigns; a line less could break the one before."""
    kept, at = [], 0
    for _, start, end in _secrets(data):
        kept.append(data[at:start])
        at = end
    return b"".join([*kept, data[at:]])


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
    "values": without_values,
}


def _secrets(data: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield the name of each secret assigned, and where its value starts and ends."""
    found = _ASSIGNMENT.search(data)
    while found:
        name = (found.group(1) or found.group(2)).decode()
        secret = _is_secret(name, found.group(3).strip(b"\"'"))
        if secret:
            yield name, found.start(3), found.end(3)
        # A value that is none may hold an assignment: alias train='HF_TOKEN=x python train.py'.
        found = _ASSIGNMENT.search(data, found.end(3) if secret else found.start(3) + 1)


def _is_secret(name: str, value: bytes) -> bool:
    if _SHAPES.search(value) or _URL_PASSWORD.search(value):
        return True
    if "PUBLIC" in name.upper() or name.upper() in {"PWD", "OLDPWD"} or value[:1] in {b"=", b"("}:
        return False
    return bool(_SECRET_NAME.search(name)) and not _NO_SECRET.fullmatch(value)
