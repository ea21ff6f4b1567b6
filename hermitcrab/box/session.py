"""The environment that a platform gives only to PID 1, brought to SSH and tmux sessions.

sshd starts its sessions with an empty environment, so RUNPOD_POD_ID, NVIDIA_VISIBLE_DEVICES or a proxy
are missing there. What is on the list goes, shell-quoted, into a file that the profile sources; secrets
only by name. The file holds for one start of the box: a saved image must not bring along another's ids.
"""

from __future__ import annotations

import os
import re
import shlex
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Iterable, Mapping

from hermitcrab.box import blocks, files, shipped

FOLDER = ".config/hermitcrab"  # below the home; templates/home/profile.sh knows it too
FILE = f"{FOLDER}/session.sh"
ASK = "CRAB_PASS_ENV"  # names, by comma or space, that `crab entry` hands over beyond the list
PASSED = (
    *("RUNPOD_*", "VAST_*", "AutoDL*", "CONTAINER_ID", "PUBLIC_IPADDR", "GPU_COUNT", "DATA_DIRECTORY"),
    *("NVIDIA_*", "CUDA_*", "NCCL_*", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    *("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"),
    *("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("PIP_*", "UV_*", "HF_*", "TORCH_HOME", "XDG_CACHE_HOME", "TZ", "LANG", "CRAB_*"),
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH(?!OR)", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"://[^/@\s]+@")  # https://user:password@host
_TEXT = """\
# hermitcrab: what the platform gave to PID 1, for SSH and tmux sessions. Made anew by crab; do not edit.
# by name: {asked}
crab_boot='' crab_host=''
{{
    IFS= read -r crab_boot </proc/sys/kernel/random/boot_id
    IFS= read -r crab_host </proc/sys/kernel/hostname
}} 2>/dev/null || :
if [ "$crab_boot $crab_host" = {start} ]; then
{exports}
else
    case $- in *i*) echo 'hermitcrab: this box was started anew; `crab setup` brings its variables back' >&2 ;; esac
fi
unset crab_boot crab_host
"""
COMMANDS_FILE = "etc/bash.bashrc"  # what Debian's and Ubuntu's bash reads for `ssh box COMMAND`


def pid1(root: Path) -> dict[str, str]:
    """Return the environment of PID 1; empty when this user may not read it."""
    try:
        data = (root / "proc/1/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in data.split(b"\0") if b"=" in item)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def chosen(environ: Mapping[str, str], asked: Iterable[str]) -> dict[str, str]:
    """Return the variables to hand over: those of the list that are no secrets, and those asked for."""
    by_name = set(asked)
    return {
        name: value
        for name, value in sorted(environ.items())
        if _NAME.fullmatch(name) and (name in by_name or (_listed(name) and not _secret(name, value)))
    }


def kept_back(environ: Mapping[str, str], asked: Iterable[str]) -> list[str]:
    """Return the names that the list would let pass, were they no secrets."""
    passed = chosen(environ, asked)
    return [name for name in sorted(environ) if _NAME.fullmatch(name) and _listed(name) and name not in passed]


def asked(environ: Mapping[str, str], old: bytes | None, names: Iterable[str] = ()) -> list[str]:
    """Return the names asked for: now, by the platform's form, or when the file was last made."""
    line = re.search(rb"^# by name: (.*)$", old or b"", re.MULTILINE)
    before = line[1].decode("ascii", "replace") if line else ""
    words = re.split(r"[\s,]+", f"{environ.get(ASK, '')} {before}")
    return sorted({*names, *words} - {""})


def render(variables: Mapping[str, str], by_name: Iterable[str], start: str) -> bytes:
    """Return the file; a variable that a session has already stays as it is."""
    rows = [f'    [ -n "${{{name}+x}}" ] || export {name}={shlex.quote(value)}' for name, value in variables.items()]
    known = " ".join(name for name in by_name if name in variables)
    text = _TEXT.format(asked=known, start=shlex.quote(start), exports="\n".join(rows) or "    :")
    return os.fsencode(text)


def this_start(root: Path) -> str:
    """Return what tells one start of the box from another: the kernel's boot, and the container's name."""
    names = ("proc/sys/kernel/random/boot_id", "proc/sys/kernel/hostname")
    return " ".join(os.fsdecode(files.read(root / name) or b"").rstrip("\n") for name in names)


def hand_over(home: Path, environ: Mapping[str, str], root: Path = Path("/")) -> None:
    """Write the file for the box's own start, and make `ssh box COMMAND` read it too."""
    target = home / FILE
    by_name = asked(environ, files.read(target))
    variables = chosen(environ, by_name)
    if not variables:
        return
    new = render(variables, by_name, this_start(root))
    if files.read(target) != new:
        files.write(target, new, 0o600)
    commands = root / COMMANDS_FILE
    old = files.read(commands)
    if old is not None and not blocks.body(old) and not files.why_not(commands):
        files.write(commands, blocks.put(old, sourcing(shipped.place("profile.sh"))))


def sourcing(path: str) -> bytes:
    """Return the shell lines that read a file, if it is there."""
    return f'if [ -r "{path}" ]; then . "{path}"; fi'.encode()


def _listed(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in PASSED)


def _secret(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))
