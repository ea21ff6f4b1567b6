"""Whose shell it is and what it may do: root, sudo that asks nothing, or a plain user; and what it finds there."""

from __future__ import annotations

import base64
import bz2
import hashlib
import io
import re
import shutil
import tarfile
from pathlib import Path
from typing import Final

import pytest

from tests.shell.booting import BOOT, ROOT, part, program

ME: Final = 'find_rights; printf "%s:%s\\n" "$may" "$rights"'


def test_root_needs_no_sudo(tmp_path: Path) -> None:
    """C22: root without sudo."""
    assert "sudo: command not found" in (ROOT / "tests/cases/C22.txt").read_text()
    path = f"{program(tmp_path / 'bin', 'id', 'echo 0')}:/usr/bin:/bin"
    assert part("box.sh", ME, tmp_path, PATH=path).stdout == "root:\n"


@pytest.mark.parametrize(
    ("sudo", "result"),
    [
        ("exit 1", "user:"),
        ("exit 0", "sudo:sudo -n -E"),
        ('[ "$2" != -E ]', "sudo:sudo -n"),
    ],
)
def test_sudo_is_used_where_it_asks_nothing(sudo: str, result: str, tmp_path: Path) -> None:
    """C22: without a password, with or without the environment; otherwise it is a plain user's run."""
    folder = program(tmp_path / "bin", "id", "echo 1000")
    program(folder, "sudo", sudo)
    assert part("box.sh", ME, tmp_path, PATH=f"{folder}:/usr/bin:/bin").stdout == f"{result}\n"


def test_sudo_never_asks() -> None:
    """C22: no call of it is without -n, or a password prompt would hang in a pipe."""
    options = [word for path in BOOT.glob("*.sh") for word in re.findall(r"\bsudo (-\w+)", path.read_text())]
    assert set(options) == {"-n"}


def test_no_sudo_at_all(tmp_path: Path) -> None:
    """A plain user of a container."""
    folder = program(tmp_path / "bin", "id", "echo 1000")
    for name in ("sh", "cat"):
        (folder / name).symlink_to(shutil.which(name) or "")
    assert part("box.sh", ME, tmp_path, PATH=str(folder)).stdout == "user:\n"


def test_a_home_is_found(tmp_path: Path) -> None:
    """Unset, / and /tmp are none; passwd's is taken."""
    for home in ("", "/", "/tmp"):
        done = part("box.sh", 'find_home; echo "$HOME"', tmp_path, HOME=home)
        assert done.stdout.strip() not in {"", "/", "/tmp"}


@pytest.mark.parametrize("path", ["/usr/bin:/bin", ""])
def test_programs_of_root_are_found(path: str, tmp_path: Path) -> None:
    """Debian gives a user no /usr/sbin, and dpkg refuses to work without; the user's own come first."""
    code = 'find_path; case $PATH in :*) exit 9 ;; esac; command -v ldconfig; echo "$PATH"'
    found, after = part("box.sh", f"PATH={path}; {code}", tmp_path).stdout.splitlines()
    assert found in {"/usr/sbin/ldconfig", "/sbin/ldconfig"}
    assert after.startswith(f"{path or '/usr/local/sbin'}:")
    assert re.search(r"^    find_path$", (BOOT / "main.sh").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("system", "told"),
    [
        ('ID=debian\nVERSION_ID="12"', "debian 12 yes"),
        ('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"', "ubuntu 24.04 yes"),
        ('ID=linuxmint\nID_LIKE="ubuntu debian"\nVERSION_ID="22"', "linuxmint 22 yes"),
        ('ID="centos"\nID_LIKE="rhel fedora"\nVERSION_ID="7"', "centos 7 "),
        ('ID="alinux"\nID_LIKE="rhel fedora centos anolis"\nVERSION_ID="3"', "alinux 3 "),
        ("", "unknown  "),
    ],
)
def test_a_distribution_is_known_by_its_release_file(system: str, told: str, tmp_path: Path) -> None:
    """Also by what it is like; apt is used only where it is the system's own."""
    (tmp_path / "os-release").write_text(f"{system}\n")
    text = (BOOT / "box.sh").read_text().replace("/etc/os-release", f"{tmp_path}/os-release")
    (tmp_path / "box.sh").write_text(text)
    path = f"{program(tmp_path / 'bin', 'apt-get', 'exit 0')}:/usr/bin:/bin"
    code = f'. "{tmp_path}/box.sh"; find_distro; echo "$distro $release $has_apt"'
    assert part("say.sh", code, tmp_path, PATH=path).stdout == f"{told}\n"


BAD: Final = "payload() { echo 'a,b'; }"
GOOD: Final = "payload() { printf ''; }"
EMPTY: Final = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize(
    ("code", "digest", "told"),
    [
        (BAD, EMPTY, "this copy is damaged"),
        ("payload() { echo '~~~~~'; }", EMPTY, "this copy is damaged"),
        ("payload() { echo 'Xk~0{'; }", EMPTY, "this copy is damaged"),
        (GOOD, "0", "this copy is damaged (its checksum is wrong): fetch it anew"),
    ],
)
def test_what_is_not_the_payload_is_told_as_damage(code: str, digest: str, told: str, tmp_path: Path) -> None:
    """Letters that are none, and letters that are others."""
    done = part("python.sh", f"{code}; python=python3 crab_payload_sha256={digest}; unpack", tmp_path)
    assert done.returncode == 1
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_full_disk_is_no_damage(tmp_path: Path) -> None:
    """Where the right bytes cannot be written the reason is the place."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("one"), io.BytesIO())
    data = bz2.compress(buffer.getvalue())
    (tmp_path / "data").write_bytes(base64.b85encode(data))
    (tmp_path / "payload").touch()  # where a folder should be
    digest = hashlib.sha256(data).hexdigest()
    code = f'payload() {{ cat "{tmp_path}/data"; }}; python=python3 crab_payload_sha256={digest}; unpack'
    done = part("python.sh", code, tmp_path)
    assert done.returncode == 1
    assert "damaged" not in done.stderr
    assert str(tmp_path) in done.stderr


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("dry_run='' may=user", "{0}/state/hermitcrab/bootstrap.log"),
        ("dry_run=yes may=user", ""),
    ],
)
def test_the_log_is_in_a_known_place(settings: str, told: str, tmp_path: Path) -> None:
    """Below the user's own state, as the help says; a dry run writes none, whatever a variable is called."""
    code = f'{settings}; log=""; open_log; note said; echo "$log"'
    done = part("box.sh", code, tmp_path, HOME=str(tmp_path), XDG_STATE_HOME=f"{tmp_path}/state")
    log = told.format(tmp_path)
    assert done.stdout == f"{log}\n"
    assert list(tmp_path.rglob("*.log")) == ([Path(log)] if log else [])
    assert not log or re.fullmatch(r"\n== bootstrap [\dT:-]+Z\nsaid\n", Path(log).read_text())
