"""Boxes under test: a container as a rented machine, asked by testinfra, entered by SSH, filled by the SDK."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from docker.models.containers import Container

from tests.image.boxes import ask, attempt

LOOPBACK: Final = "127.0.0.1"
# Everything a user or `crab setup` could have written, with its mode, owner and target or content.
SNAPSHOT: Final = (
    "find / -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path /opt/venv -o -path /usr -o -name __pycache__"
    " \\) -prune -o ! -type d -printf '%p %m %u %s %l\\n'; find /root /etc -xdev -type f -exec sha256sum {} +"
)


class Box(NamedTuple):
    """A running container; the port of its SSH server, or 0."""

    container: Container
    host: Any
    port: int = 0

    def crab(self, *words: str, seconds: int = 120) -> Any:
        """The result of a crab command, whatever it is."""
        return attempt(self.host, "crab", *words, seconds=seconds)

    def ask(self, *words: str, seconds: int = 120) -> str:
        """What a command says; it must succeed."""
        return ask(self.host, *words, seconds=seconds)

    def shell(self, script: str) -> str:
        """What a shell script says; it must succeed."""
        return self.ask("sh", "-ec", script)

    def read(self, path: str) -> str:
        """A file, byte for byte."""
        return str(self.host.file(path).content_string)

    def snapshot(self) -> set[str]:
        """What is on the system disk beside programs, a line each."""
        return set(self.shell(SNAPSHOT).splitlines())


def told(done: Any) -> Any:
    """The JSON that a crab command printed."""
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise AssertionError(f"no JSON, status {done.rc}: {done.stdout[-500:]}{done.stderr[-1500:]}") from None


def put(container: Container, files: Mapping[str, str | bytes], mode: int = 0o644) -> None:
    """Write files into a container, running or not; missing folders are made."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, text in files.items():
            data = text if isinstance(text, bytes) else text.encode()
            member = tarfile.TarInfo(path.lstrip("/"))
            member.size, member.mode = len(data), mode
            archive.addfile(member, io.BytesIO(data))
    assert container.put_archive("/", packed.getvalue())


def make_key(path: Path) -> Path:
    """A new private key, with its public half beside it."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)], check=True)
    return path


def public(key: Path) -> str:
    """The line of the public half."""
    return key.with_suffix(".pub").read_text().strip()


def ssh(box: Box, key: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command over SSH, untouched by this machine's settings and agent."""
    ours = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "BatchMode=yes", "IdentitiesOnly=yes")
    flags = [f"-o{option}" for option in (*ours, "LogLevel=ERROR", "ConnectTimeout=10", "IdentityAgent=none")]
    words = ["ssh", "-F", "/dev/null", *flags, "-i", str(key), "-p", str(box.port), f"root@{LOOPBACK}", command]
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)


def host_keys(box: Box) -> dict[str, str]:
    """The public host keys by type, as a client meets them."""
    words = ["ssh-keyscan", "-T", "10", "-t", "rsa,ed25519", "-p", str(box.port), LOOPBACK]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    lines = (line.split() for line in done.stdout.splitlines() if not line.startswith("#"))
    return {kind: blob for _, kind, blob in lines}
