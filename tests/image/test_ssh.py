"""Claim: who has the key logs in and finds torch; nobody else does; every box has host keys of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import testinfra
from docker.models.containers import Container

from hermitcrab.build.engine import Engine
from hermitcrab.matrix import Combo
from tests.image.boxes import answers_ssh, ask, attempt, free_port, until
from tests.image.conftest import Start

LOOPBACK: Final = "127.0.0.1"
CONSTRAINTS: Final = "/etc/hermitcrab/constraints.txt"
ENVIRONMENT: Final = 'printf "%s\\n" "$PATH" "$PIP_CONSTRAINT" "$UV_CONSTRAINT" "$LANG" "$VIRTUAL_ENV"'


class Door(NamedTuple):
    """A box that answers SSH, and the key that opens it."""

    port: int
    key: Path
    host: Any


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two private keys, made now; only the first is given to the boxes."""
    if not shutil.which("ssh") or not shutil.which("ssh-keygen"):
        pytest.skip("no ssh here; get it with: apt-get install openssh-client")
    folder = tmp_path_factory.mktemp("keys")
    return _make_key(folder / "right"), _make_key(folder / "wrong")


@pytest.fixture(scope="module")
def doors(create: Start, engine: Engine, combo: Combo, keys: tuple[Path, Path]) -> tuple[Door, Door]:
    """Two boxes with the same key, side by side."""
    if not engine.host.startswith("unix://"):
        pytest.skip("the engine is another machine: its ports are not on this one's loopback")
    return _open(create, engine, combo, keys[0]), _open(create, engine, combo, keys[0])


def test_key_login_finds_torch(doors: tuple[Door, Door], combo: Combo) -> None:
    """`ssh box python -c …` without a login shell has torch."""
    done = _ssh(doors[0], "python -c 'import torch; print(torch.__version__)'")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().split("+")[0] == combo.torch


@pytest.mark.parametrize("shell", ["", "bash -lc "], ids=["command", "login shell"])
def test_environment_is_the_images(doors: tuple[Door, Door], shell: str) -> None:
    """Both ways in have the venv first, the constraints and UTF-8."""
    done = _ssh(doors[0], f"{shell}'{ENVIRONMENT}'" if shell else ENVIRONMENT)
    path, *rest = done.stdout.splitlines()
    assert path.startswith("/opt/venv/bin:"), done
    assert rest == [CONSTRAINTS, CONSTRAINTS, "C.UTF-8", "/opt/venv"]


def test_exit_status_comes_back(doors: tuple[Door, Door]) -> None:
    """A remote command's failure is seen at home."""
    assert _ssh(doors[0], "exit 7").returncode == 7


def test_wrong_key_is_refused(doors: tuple[Door, Door], keys: tuple[Path, Path]) -> None:
    """Another key opens nothing."""
    done = _ssh(doors[0]._replace(key=keys[1]), "true")
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr


def test_passwords_are_refused(doors: tuple[Door, Door]) -> None:
    """Neither a password nor a dialogue is even offered."""
    done = _ssh(doors[0], "true", "PubkeyAuthentication=no", "PreferredAuthentications=password,keyboard-interactive")
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr


def test_sshd_says_so_itself(doors: tuple[Door, Door]) -> None:
    """The settings in force, whichever file they come from."""
    settings = ask(doors[0].host, "/usr/sbin/sshd", "-T").splitlines()
    wanted = {"passwordauthentication no", "kbdinteractiveauthentication no", "permitemptypasswords no"}
    assert wanted <= set(settings)
    assert {"permitrootlogin without-password", "permitrootlogin prohibit-password"} & set(settings)
    assert [line.split()[1] for line in settings if line.startswith("hostkey ")] == [
        "/etc/ssh/ssh_host_ed25519_key",
        "/etc/ssh/ssh_host_rsa_key",
    ]


def test_host_keys_are_each_boxs_own(doors: tuple[Door, Door]) -> None:
    """ed25519 and RSA, nothing older, and no two boxes share one."""
    one, two = (_host_keys(door.port) for door in doors)
    assert one.keys() == two.keys() == {"ssh-ed25519", "ssh-rsa"}
    assert all(one[kind] != two[kind] for kind in one)


def test_host_keys_are_told(doors: tuple[Door, Door], create_once: Start, combo: Combo) -> None:
    """The log shows the fingerprints that a first login asks about."""
    said = ask(doors[0].host, "ssh-keygen", "-lf", "/etc/ssh/ssh_host_ed25519_key.pub")
    assert said.split()[1].startswith("SHA256:")
    done = create_once(combo, ["true"], environment={"PUBLIC_KEY": _public(doors[0].key), "SSH_PORT": str(free_port())})
    done.start()
    done.wait(timeout=60)
    assert done.logs(stdout=False).count(b"host key ") == 2
    assert done.logs(stderr=False) == b""


def test_without_a_key_no_sshd(host: Any, box: Container) -> None:
    """A box that nobody can enter runs no daemon, has no host key, and says what is missing."""
    until("the reason in the log", lambda: b"no SSH key in PUBLIC_KEY" in box.logs(), box)
    assert attempt(host, "pgrep", "sshd").rc == 1
    assert attempt(host, "sh", "-c", "ls /etc/ssh/ssh_host_*").rc != 0


def _open(create: Start, engine: Engine, combo: Combo, key: Path) -> Door:
    port = free_port()
    published = {} if engine.network == "host" else {"ports": {f"{port}/tcp": (LOOPBACK, port)}}
    environment = {"PUBLIC_KEY": _public(key), "SSH_PORT": str(port)}
    container = create(combo, environment=environment, **published)
    container.start()
    until(f"sshd on port {port}", lambda: answers_ssh(port), container)
    return Door(port, key, testinfra.get_host(f"docker://{container.id}"))


def _make_key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)], check=True)
    return path


def _public(key: Path) -> str:
    return key.with_suffix(".pub").read_text()


def _ssh(door: Door, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a command over SSH, untouched by this machine's settings and agent."""
    ours = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "BatchMode=yes", "IdentitiesOnly=yes")
    flags = [f"-o{option}" for option in (*options, *ours, "LogLevel=ERROR", "ConnectTimeout=10", "IdentityAgent=none")]
    words = ["ssh", "-F", "/dev/null", *flags, "-i", str(door.key), "-p", str(door.port), f"root@{LOOPBACK}", command]
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)


def _host_keys(port: int) -> dict[str, str]:
    """The host keys a daemon shows, of all types a client may ask for."""
    words = ["ssh-keyscan", "-T", "10", "-t", "dsa,rsa,ecdsa,ed25519", "-p", str(port), LOOPBACK]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if "Unknown key type" in done.stderr:  # OpenSSH 10 has forgotten dsa
        words[4] = "rsa,ecdsa,ed25519"
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    lines = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    return {kind: blob for _, kind, blob in lines}
