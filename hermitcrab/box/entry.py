"""The image's entrypoint, under tini: SSH for whoever gave a key, hooks, then the given command.

``crab entry -- python train.py`` becomes that command, so that its signals and exit status are its
own; without a command it waits. A step that fails is one warning and never stops the command: it
must start on a read-only root, under any uid and without a network.
"""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Mapping, NamedTuple, Sequence

from hermitcrab.box import hooks, session
from hermitcrab.box.home import passwd_home, usable
from hermitcrab.box.keys import Key, MalformedKeyError, authorize, holds_a_key, read_keys

USAGE = """usage: crab entry [--] [COMMAND [ARGUMENT ...]]

Adds the public keys of PUBLIC_KEY, SSH_PUBLIC_KEY and AUTHORIZED_KEYS to root's authorized_keys,
starts sshd on SSH_PORT (22) when a key can log in, hands the platform's variables to its sessions,
runs the executables of /etc/hermitcrab/hooks.d in name order, then is COMMAND, or waits."""
KEY_VARIABLES = ("PUBLIC_KEY", "SSH_PUBLIC_KEY", "AUTHORIZED_KEYS")
HOST_KEY_TYPES = ("ed25519", "rsa")  # never dsa: no client of today takes it
WAIT = ("sleep", "infinity")


class Places(NamedTuple):
    """Where sshd looks for what; another set of paths in tests."""

    authorized_keys: Path
    host_keys: Path = Path("/etc/ssh")
    run: Path = Path("/run/sshd")
    sshd: str = "/usr/sbin/sshd"


def main(arguments: Sequence[str]) -> int:
    """Set up SSH, then become the command; return only when that cannot be."""
    if list(arguments[:1]) in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    command = list(arguments[1:] if list(arguments[:1]) == ["--"] else arguments)
    home = passwd_home(os.environ)
    settle(home)
    reachable = let_in(Path(home), os.environ)
    for failure in hooks.run():
        _warn(failure)
    if not command and not reachable:
        _say(f"no SSH key in {', '.join(KEY_VARIABLES)}: waiting, without sshd")
    return become(command or WAIT)


def settle(home: str) -> None:
    """Give the user what programs ask for: a home, a name, a working directory that can be read."""
    if os.environ.get("HOME", "/") in {"", "/"}:
        os.environ["HOME"] = home
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        # torch.compile names its cache after the user, and some versions fail where there is no name.
        os.environ.setdefault("USER", f"uid{os.geteuid()}")
    if not os.access(".", os.R_OK | os.X_OK):
        # The image's own is root's home; compilers fail in a directory they may not enter.
        with _step(f"cannot change to {home}"):
            os.chdir(home)
            _say(f"this user may not read the working directory: starting in {home}")


def let_in(home: Path, environment: Mapping[str, str]) -> bool:
    """Serve SSH, with the platform's variables in its sessions; say whether anyone can come in."""
    if not usable(str(home)):  # nothing is ever written to "/"
        if collect(environment):
            _warn(f"SSH keys were given, but {home} is no home of this user's own: sshd is not started")
        return False
    reachable = serve_ssh(environment, Places(home / ".ssh" / "authorized_keys"), root=os.geteuid() == 0)
    if reachable:
        with _step("cannot hand the platform's variables to SSH sessions"):
            session.hand_over(home, environment)
    return reachable


def serve_ssh(environment: Mapping[str, str], places: Places, *, root: bool) -> bool:
    """Let the given keys in and start sshd, if there is a key and the right to; say if so."""
    keys = collect(environment)
    if not root:
        if keys:
            _warn("SSH keys were given, but this user is not root: sshd is not started")
        return False
    if keys:
        with _step(f"cannot add keys to {places.authorized_keys}"):
            authorize(places.authorized_keys, keys)
    reachable = holds_a_key(places.authorized_keys)
    if reachable:
        start_sshd(places, port(environment))
    return reachable


def collect(environment: Mapping[str, str]) -> list[Key]:
    """Read the keys of all variables; name what is none."""
    keys = []
    for variable in KEY_VARIABLES:
        for key in read_keys(environment.get(variable, "")):
            if isinstance(key, MalformedKeyError):
                _warn(f"{variable} {key}: skipped")
            else:
                keys.append(key)
    return keys


def port(environment: Mapping[str, str]) -> int:
    """Read SSH_PORT; 22 when it is unset or no port."""
    text = environment.get("SSH_PORT", "").strip() or "22"
    if text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= 65535:
        return int(text)
    _warn(f"SSH_PORT is {text!r}, not a port from 1 to 65535: using 22")
    return 22


def start_sshd(places: Places, number: int) -> None:
    """Start the SSH daemon in the background; what keeps it from starting is a warning."""
    for kind in HOST_KEY_TYPES:
        with _step(f"cannot make the {kind} host key"):
            make_host_key(places.host_keys, kind)
    with _step(f"cannot start sshd on port {number}"):
        places.run.mkdir(mode=0o755, exist_ok=True)
        # sshd meets a taken port only after it has gone to the background, where nobody hears it.
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", number))
        _run(places.sshd, "-p", str(number))


def make_host_key(directory: Path, kind: str) -> None:
    """Make a host key unless there is one, and print its fingerprint for the user to compare."""
    target = directory / f"ssh_host_{kind}_key"
    if target.exists():
        return
    with tempfile.TemporaryDirectory(dir=str(directory), prefix=".new-") as temporary:
        made = Path(temporary, target.name)
        _run("ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "hermitcrab", "-f", str(made))
        # The private key last: once it is there, the pair is complete.
        os.replace(f"{made}.pub", f"{target}.pub")
        os.replace(str(made), str(target))
    _say(f"host key {_run('ssh-keygen', '-lf', f'{target}.pub')}")


def become(command: Sequence[str]) -> int:
    """Replace this process by the command; return only a shell's 127 or 126, when that fails."""
    # Python ignores these two, and an ignored signal stays ignored across exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], list(command))  # noqa: S606 - to be the command is the purpose
    except (FileNotFoundError, NotADirectoryError):
        _say(f"{command[0]}: not found (neither it nor, for a script, its interpreter)")
        return 127
    except (OSError, ValueError) as error:
        _say(f"{command[0]}: cannot be run: {_reason(error)}")
        return 126


@contextmanager
def _step(failure: str) -> Iterator[None]:
    """Make a failed step one warning, and go on."""
    try:
        yield
    except (OSError, subprocess.SubprocessError) as error:
        _warn(f"{failure}: {_reason(error)}")


def _run(*command: str) -> str:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )
    said = done.stdout.decode(errors="replace").strip()
    if done.returncode:
        raise OSError(f"{command[0]}: {said.splitlines()[-1] if said else done.returncode}")
    return said


def _reason(error: Exception) -> str:
    strerror = getattr(error, "strerror", None)
    path = getattr(error, "filename", None)
    return f"{path}: {strerror}" if path and strerror else strerror or str(error)


def _say(message: str) -> None:
    print(f"entry: {message}", file=sys.stderr, flush=True)


def _warn(message: str) -> None:
    _say(f"warning: {message}")
