"""The SSH server's settings: as a drop-in, or at the top of an sshd_config that includes none.

Nothing stays that ``sshd -t`` refuses, and nobody is locked out: on a box that is not our image, logins
by password go on unless the user says otherwise.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from hermitcrab.box import blocks, changes, files, shipped

CONFIG = "etc/ssh/sshd_config"
MANIFEST = "etc/hermitcrab/manifest.json"  # only our image has one
PROGRAM = "/usr/sbin/sshd"
WHAT = "SSH server: keep-alive and hermitcrab's settings"
# What only an image can promise: its host keys and its venv; and who may log in how.
IMAGE = ("HostKey", "SetEnv", "PasswordAuthentication", "KbdInteractiveAuthentication", "PermitRootLogin")
BY_KEY = IMAGE[2:]
_INCLUDE = re.compile(rb"^[ \t]*Include[ \t]+[^\n]*sshd_config\.d/\*", re.MULTILINE | re.IGNORECASE)
_MATCH = re.compile(rb"^[ \t]*Match[ \t]", re.MULTILINE | re.IGNORECASE)


class RefusedError(changes.LeftAloneError):
    """``sshd -t`` does not take the configuration; the message is its reason."""


def item(root: Path, *, key_only: bool) -> changes.Item | None:
    """Return what the SSH server shall be told; None where there is no server to tell."""
    config = root / CONFIG
    main = files.read(config)
    if main is None:
        return None
    drop_in = root / shipped.place("sshd.conf").lstrip("/")
    included = _INCLUDE.search(_MATCH.split(main)[0]) is not None
    target = drop_in if included else config
    now = files.read(target) if included else blocks.body(main)
    key_only = key_only or b"\nPasswordAuthentication no" in (now or b"")
    data = text(image=(root / MANIFEST).exists(), key_only=key_only)
    return changes.Item(target, data, WHAT, block=not included)


def text(*, image: bool, key_only: bool) -> bytes:
    """Return the settings, without those that this box cannot keep or did not ask for."""
    full = shipped.text("sshd.conf")
    if image:
        return full
    left_out = tuple(word.encode() for word in IMAGE if not (key_only and word in BY_KEY))
    lines = full.splitlines(keepends=True)
    return lines[0] + b"".join(line for line in lines[1:] if not line.startswith((b"#", *left_out)))


def make(change: changes.Change, record: Path, root: Path, program: str = PROGRAM) -> None:
    """Write the settings; put back what was there when sshd refuses them."""
    config = root / CONFIG
    refused = check(program, config)
    if refused:
        raise RefusedError(f"`sshd -t` fails already ({refused}): {change.path} is left as it is")
    changes.make(change, record)
    refused = check(program, config)
    if refused:
        changes.take_back(change._replace(new=change.old))
        raise RefusedError(f"`sshd -t` refuses the settings ({refused}): {change.path} is as it was")


def check(program: str, config: Path) -> str:
    """Return sshd's reason to refuse a configuration, or nothing."""
    try:
        done = subprocess.run(
            [program, "-t", "-f", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    said = done.stdout.decode(errors="replace").strip().splitlines()
    return (said[-1] if said else f"status {done.returncode}") if done.returncode else ""
