"""The embedded engine: private in everything, and honest about why it does not start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermitcrab.build import archive, embedded
from hermitcrab.errors import UserError

# The daemon outlives the call that started it; Python warns of that.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An engine of the test's own, with nothing unpacked yet; what it started is stopped."""
    run = tmp_path / "run"
    monkeypatch.setattr(embedded, "HOME", tmp_path / "engine")
    monkeypatch.setattr(embedded, "LOG", tmp_path / "engine/dockerd.log")
    monkeypatch.setattr(embedded, "RUN", run)
    monkeypatch.setattr(embedded, "SOCKET", run / "docker.sock")
    yield tmp_path / "engine"
    embedded.stop()


def daemon(home: Path, body: str) -> None:
    """A fake dockerd; to be taken for ours, its program must lie in the cache, so it is Python itself."""
    programs = home / "root/usr/sbin"
    programs.mkdir(parents=True)
    python = programs / "python"
    shutil.copy(Path(sys.executable).resolve(), python)
    script = home / "dockerd.py"
    script.write_text(body)
    (programs / "dockerd").write_text(f'#!/bin/sh\nexec {python} -I -S {script} "$@"\n')
    (programs / "dockerd").chmod(0o755)


# Comes up as dockerd does: a pid file, then a socket.
ALIVE = """\
import os, sys, time
given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
open(given["pidfile"], "w").write(str(os.getpid()))
open(given["host"].removeprefix("unix://"), "w").close()
time.sleep(60)
"""


def here(monkeypatch: pytest.MonkeyPatch, distro: str, suite: str, user: int = 0) -> None:
    """Be on another host."""
    monkeypatch.setattr(archive, "host", lambda: archive.Host(distro=distro, suite=suite))
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: user)


@pytest.mark.parametrize(
    ("distro", "suite", "user", "possible"),
    [
        ("debian", "bookworm", 0, True),
        ("debian", "trixie", 0, True),
        ("ubuntu", "jammy", 0, True),
        ("ubuntu", "noble", 0, True),
        ("debian", "bookworm", 1000, False),
        ("debian", "buster", 0, False),
        ("fedora", "", 0, False),
        ("", "", 0, False),
    ],
)
def test_where_it_can_run(distro: str, suite: str, user: int, possible: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a known Debian or Ubuntu, as root."""
    here(monkeypatch, distro, suite, user)

    assert embedded.possible() is possible


def test_it_cannot_run_without_apt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the distribution is not enough."""
    here(monkeypatch, "debian", "bookworm")
    monkeypatch.setattr(shutil, "which", lambda _: None)

    assert not embedded.possible()


@pytest.mark.parametrize("suite", embedded.PACKAGES)
def test_every_suite_brings_the_whole_engine(suite: str) -> None:
    """Daemon, builder, containerd and runc; the latter two fit the host's libc."""
    wanted = embedded.PACKAGES[suite]

    assert {"docker.io", "docker-buildx", "containerd", "runc"} <= {name for names in wanted.values() for name in names}
    assert set(embedded.RUNTIME) <= set(wanted[suite])


def test_nothing_is_shared_with_another_engine(home: Path) -> None:
    """Own socket, data, state and settings; no bridge, no firewall rule, no forwarding."""
    program, *words = embedded._command()
    flags = dict(word.removeprefix("--").split("=", 1) for word in words)
    paths = {flags.pop(name) for name in ("config-file", "data-root", "exec-root", "pidfile")}

    assert program == f"{home}/root/usr/sbin/dockerd"
    assert paths == {f"{home}/daemon.json", f"{home}/data", f"{embedded.RUN}/x", f"{embedded.RUN}/docker.pid"}
    assert flags.pop("host") == f"unix://{embedded.SOCKET}"
    assert flags.pop("bridge") == "none"
    assert {flags[name] for name in ("iptables", "ip6tables", "ip-forward", "ip-masq")} == {"false"}


def test_socket_paths_stay_short_however_deep_the_checkout(tmp_path: Path) -> None:
    """A Unix socket's path ends at 107 bytes; containerd's and a container's lie below the state directory."""
    deep = tmp_path / "/".join(["a-rather-long-folder-name"] * 8) / "hermitcrab" / "build"
    deep.mkdir(parents=True)
    shutil.copy(str(embedded.__file__), deep)
    code = "import embedded; print(embedded.SOCKET); print(embedded.RUN / 'x/containerd/containerd.sock.ttrpc')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=deep, env={**os.environ, "PYTHONPATH": f"{deep}:{embedded.ROOT}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    for path in done.stdout.splitlines():
        assert len(path) < 107
        assert path.startswith("/run/crab-engine-")


def test_its_programs_find_each_other(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own come first on the PATH, with settings of their own; the user's stay untouched."""
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("DOCKER_CONFIG", "/home/user/.docker")

    found = embedded.environment()

    assert found["PATH"] == f"{home}/root/usr/bin:{home}/root/usr/sbin:/usr/bin"
    assert found["DOCKER_CONFIG"] == f"{home}/config"
    assert found["DOCKER_HOST"] == f"unix://{embedded.SOCKET}"
    assert os.environ["DOCKER_CONFIG"] == "/home/user/.docker"


def test_install_asks_each_suite_for_its_packages(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpacked together into the cache, with the plugin where the docker command looks for them."""
    asked: list[object] = []

    def fetch(cache: Path, lines: list[str], names: tuple[str, ...]) -> list[Path]:
        asked.append((cache, lines, names))
        cache.mkdir(parents=True)
        return [cache / "a.deb"]

    def unpack(debs: list[Path], root: Path) -> None:
        assert len(debs) == 2
        plugins = root / "usr/libexec/docker/cli-plugins"
        plugins.mkdir(parents=True)
        (plugins / "docker-buildx").touch()

    here(monkeypatch, "debian", "bookworm")
    monkeypatch.setattr(archive, "sources", lambda distro, suite: [f"deb {distro} {suite}"])
    monkeypatch.setattr(archive, "fetch", fetch)
    monkeypatch.setattr(archive, "unpack", unpack)

    embedded._install()

    assert asked == [
        (home / "apt/trixie", ["deb debian trixie"], embedded.CLIENT),
        (home / "apt/bookworm", ["deb debian bookworm"], embedded.RUNTIME),
    ]
    assert (home / "config/cli-plugins/docker-buildx").is_file()
    assert (home / "daemon.json").is_file()
    assert not (home / "apt").exists()


@pytest.mark.parametrize("said", ["", "nonsense", "99999999", str(os.getpid())])
def test_a_process_of_someone_else_is_not_ours(said: str) -> None:
    """A pid file may be stale and its number given to another process: that one is left alone."""
    embedded.RUN.mkdir()
    (embedded.RUN / "docker.pid").write_text(said)

    assert embedded._pid() is None
    assert not embedded.running()


def test_stopping_what_does_not_run_is_harmless(home: Path) -> None:
    """It says that there was nothing; the cache stays unless it is to go."""
    (home / "root").mkdir(parents=True)

    assert not embedded.stop()
    assert home.exists()
    assert not embedded.stop(purge=True)
    assert not home.exists()


def test_start_and_stop(home: Path) -> None:
    """Started once, found again, stopped with all it left; its data stays for the next time."""
    daemon(home, ALIVE)

    embedded.start()
    pid = embedded._pid()
    assert pid is not None
    embedded.start()
    assert embedded._pid() == pid
    assert embedded.RUN.stat().st_mode & 0o777 == 0o700

    assert embedded.stop()
    assert not embedded.running()
    assert not embedded.RUN.exists()
    assert home.exists()


def test_a_daemon_deaf_to_the_first_word_is_killed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping ends, also when the daemon is our own child and stays a zombie until we go."""
    monkeypatch.setattr(embedded, "STOP_S", 0.2)
    daemon(home, f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{ALIVE}")
    embedded.start()
    began = time.monotonic()

    assert embedded.stop()
    assert time.monotonic() - began < 5
    assert not embedded.running()


def test_a_daemon_that_dies_says_why(home: Path) -> None:
    """Its own reason, not ours; nothing stays behind."""
    daemon(home, "import sys; sys.exit('failed to start daemon: error initializing graphdriver: driver not supported')")

    with pytest.raises(UserError, match="error initializing graphdriver: driver not supported"):
        embedded.start()
    assert not embedded.RUN.exists()


@pytest.mark.parametrize("missing", ["host", "pidfile"])
def test_a_daemon_that_never_comes_up_is_stopped(missing: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting ends, with the log named when it is empty, and no process stays behind."""
    monkeypatch.setattr(embedded, "START_S", 0.3)
    pid = home / "pid"
    body = ALIVE.replace(f'open(given["{missing}"]', f'0 and open(given["{missing}"]')
    daemon(home, f"import os\nopen('{pid}', 'w').write(str(os.getpid()))\n{body}")

    with pytest.raises(UserError, match=r"did not start: see .*dockerd\.log"):
        embedded.start()
    assert not Path(f"/proc/{pid.read_text()}").exists()
