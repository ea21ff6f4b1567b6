"""The embedded engine: a private dockerd for hosts that have none.

Docker's Debian packages are unpacked into the cache, never installed. The daemon has its own
socket, data and state, no bridge and no firewall rule; builds and runs use the host's network.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hermitcrab.build import archive, diagnose
from hermitcrab.errors import UserError

ROOT: Final = Path(__file__).resolve().parents[2]
HOME: Final = ROOT / ".cache" / "engine"
# Socket paths end at 107 bytes, and a checkout may lie deep: the run directory has a short name of its own.
RUN: Final = Path("/run") / f"crab-engine-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]}"
SOCKET: Final = RUN / "docker.sock"
DOCKER: Final = HOME / "root" / "usr/bin/docker"
LOG: Final = HOME / "dockerd.log"
START_S: Final = 60.0
STOP_S: Final = 30.0
MNT_DETACH: Final = 2  # umount2(2)

# Which packages, from which suite, by the suite of the host. Debian 12 takes containerd and runc
# from its own archive, because those of Debian 13 need a newer libc.
CLIENT: Final = ("docker.io", "docker-cli", "docker-buildx")
RUNTIME: Final = ("containerd", "runc")
PACKAGES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "bookworm": {"trixie": CLIENT, "bookworm": RUNTIME},
    "trixie": {"trixie": CLIENT + RUNTIME},
    "jammy": {"jammy": ("docker.io", "docker-buildx", *RUNTIME)},
    "noble": {"noble": ("docker.io", "docker-buildx", *RUNTIME)},
}


def possible() -> bool:
    """Whether this host can run the embedded engine: Debian-like, known suite, root."""
    here = archive.host()
    return here.debian_like and here.suite in PACKAGES and os.geteuid() == 0


def running() -> bool:
    """Whether our daemon lives."""
    return _pid() is not None


def start() -> None:
    """Start the daemon unless it runs; fetch it first when it is not there.

    Raises UserError with the daemon's own reason when it does not come up.
    """
    HOME.mkdir(parents=True, exist_ok=True)
    with archive.alone(HOME):  # a second build waits here, and then finds the daemon running
        if running() and SOCKET.exists():
            return
        if not (HOME / "root").is_dir():
            _install()
        RUN.mkdir(mode=0o700, exist_ok=True)
        (RUN / "docker.pid").unlink(missing_ok=True)
        _wait_until_up(_spawn())


def stop(*, purge: bool = False) -> bool:
    """Stop the daemon and what it started, and clear its mounts; ``purge`` deletes its data as well.

    Returns whether there was something to stop.
    """
    found = running()
    for pid in (_pid(), _pid("x/containerd/containerd.pid")):
        _end(pid)
    _unmount()
    shutil.rmtree(RUN, ignore_errors=True)
    if purge:
        shutil.rmtree(HOME, ignore_errors=True)
    return found


def environment() -> dict[str, str]:
    """The environment in which the engine's own programs find each other."""
    root = HOME / "root"
    path = f"{root}/usr/bin:{root}/usr/sbin:{os.environ.get('PATH', '/usr/bin:/bin')}"
    return {
        **os.environ,
        "PATH": path,
        "DOCKER_CONFIG": str(HOME / "config"),
        "DOCKER_HOST": f"unix://{SOCKET}",
    }


def _install() -> None:
    here = archive.host()
    print("engine: no Docker Engine here, unpacking a private one into .cache/engine", flush=True)
    _configure()
    # Suite by suite, so that each gives its newest, security updates included.
    packages = [
        package
        for suite, names in PACKAGES[here.suite].items()
        for package in archive.fetch(HOME / "apt" / suite, archive.sources(here.distro, suite), names)
    ]
    # The programs come last and appear at once: where they are, all is there.
    archive.unpack(packages, HOME / "root")
    shutil.rmtree(HOME / "apt")


def _configure() -> None:
    plugins = HOME / "config" / "cli-plugins"
    plugins.mkdir(parents=True, exist_ok=True)
    (plugins / "docker-buildx").unlink(missing_ok=True)
    (plugins / "docker-buildx").symlink_to(HOME / "root/usr/libexec/docker/cli-plugins/docker-buildx")
    # Our file instead of /etc/docker/daemon.json, which belongs to another engine.
    (HOME / "daemon.json").write_text('{"builder": {"gc": {"enabled": true, "defaultKeepStorage": "30GB"}}}\n')


def _spawn() -> subprocess.Popen[bytes]:
    with LOG.open("wb") as log:
        return subprocess.Popen(
            _command(), env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def _command() -> list[str]:
    flags = {
        "config-file": HOME / "daemon.json",
        "data-root": HOME / "data",
        "exec-root": RUN / "x",
        "pidfile": RUN / "docker.pid",
        "host": f"unix://{SOCKET}",
        "bridge": "none",
        "iptables": "false",
        "ip6tables": "false",
        "ip-forward": "false",
        "ip-masq": "false",
        "userland-proxy": "false",
        "log-level": "warn",
    }
    return [
        str(HOME / "root/usr/sbin/dockerd"),
        *(f"--{name}={value}" for name, value in flags.items()),
    ]


def _wait_until_up(daemon: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if SOCKET.exists() and running():
            return
        if daemon.poll() is not None:
            break
        time.sleep(0.1)
    said = LOG.read_text(errors="replace").splitlines()
    daemon.kill()  # it may live without having written its pid file
    daemon.wait()
    stop()
    raise UserError(diagnose.one_line(said, fallback=f"the embedded engine did not start: see {LOG}"))


def _pid(name: str = "docker.pid") -> int | None:
    """The process of a pid file, if it lives and is one of ours: its program lies in our cache."""
    try:
        pid = int((RUN / name).read_text())
    except (OSError, ValueError):
        return None
    return pid if _is_ours(pid) else None


def _is_ours(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/exe").startswith(f"{HOME}/root/")
    except OSError:  # gone, or dead and not yet reaped
        return False


def _end(pid: int | None) -> None:
    if pid is None:
        return
    word, end = signal.SIGTERM, time.monotonic() + STOP_S
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, word)
        while _is_ours(pid):
            if word != signal.SIGKILL and time.monotonic() > end:
                word = signal.SIGKILL
                os.kill(pid, word)
            time.sleep(0.1)


def _unmount() -> None:
    """Take down what a killed daemon left mounted, innermost first."""
    rows = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    # The kernel writes a space as \040; and a bare system has no umount command.
    mounts = [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), row) for row in rows]
    libc = ctypes.CDLL(None)
    for mount in reversed(mounts):
        if mount.startswith((f"{HOME}/", f"{RUN}/")):
            libc.umount2(os.fsencode(mount), MNT_DETACH)
