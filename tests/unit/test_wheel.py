"""The box wheel: the same bytes everywhere, nothing of home in it, and pip takes it."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hermitcrab import __version__
from hermitcrab.build import wheel


def names(data: bytes) -> list[str]:
    """What lies in a wheel."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return archive.namelist()


def test_the_same_bytes_twice(tmp_path: Path) -> None:
    """Whatever the checkout's dates, modes, line ends and caches."""
    for name in ("hermitcrab", "templates"):
        shutil.copytree(wheel.ROOT / name, tmp_path / name)
    (tmp_path / "hermitcrab/__pycache__").mkdir(exist_ok=True)
    (tmp_path / "hermitcrab/__pycache__/x.pyc").touch()
    for path in (path for path in tmp_path.rglob("*") if path.suffix in {".py", ".sh", ".conf"}):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
        path.chmod(0o755)
        os.utime(path, (1, 1))

    assert wheel.box_wheel() == wheel.box_wheel(tmp_path)


def test_a_change_of_the_source_is_a_change_of_the_wheel(tmp_path: Path) -> None:
    """Or a box would run something old."""
    for name in ("hermitcrab", "templates"):
        shutil.copytree(wheel.ROOT / name, tmp_path / name)
    assert wheel.box_wheel() == wheel.box_wheel(tmp_path)
    (tmp_path / "hermitcrab/cli.py").write_text("changed")

    assert wheel.box_wheel() != wheel.box_wheel(tmp_path)


def test_only_the_box_s_part() -> None:
    """Nothing that needs the tools of home."""
    found = names(wheel.box_wheel())

    assert {"hermitcrab/__init__.py", "hermitcrab/cli.py", "hermitcrab/errors.py", "hermitcrab/box/entry.py"} <= set(
        found
    )
    assert [name for name in found if "/build/" in name or "/connect/" in name or "matrix" in name] == []
    assert [name for name in found if "__pycache__" in name or name.endswith(".pyc")] == []


def test_the_settings_of_home_come_along(tmp_path: Path) -> None:
    """All of templates/home, byte for byte with LF line ends, and data of the package; a new file too."""
    with zipfile.ZipFile(io.BytesIO(wheel.box_wheel())) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if name.startswith(wheel.HOME_FILES)}
    home = wheel.ROOT / "templates/home"
    assert packed == {f"{wheel.HOME_FILES}/{path.name}": path.read_bytes() for path in home.iterdir()}

    (tmp_path / "templates/home").mkdir(parents=True)
    (tmp_path / "templates/home/new").write_bytes(b"a\r\n")
    for left in (".new.swp", "new~", "#new#"):  # by an editor
        (tmp_path / "templates/home" / left).touch()
    (tmp_path / "hermitcrab/box").mkdir(parents=True)
    (tmp_path / "hermitcrab/box/cards.json").write_text("{}")
    (tmp_path / "hermitcrab/box/.#x.py").symlink_to("me@here.1")
    found = names(wheel.box_wheel(tmp_path))
    assert "hermitcrab/box/cards.json" in found
    assert [name for name in found if name.startswith(wheel.HOME_FILES)] == [f"{wheel.HOME_FILES}/new"]


@pytest.mark.parametrize("planted", ["build/x.py", "connect/x.py", "matrix.py"])
def test_what_belongs_home_stays_home(planted: str, tmp_path: Path) -> None:
    """By its place in the package."""
    for name in ("box/kept.py", planted):
        path = tmp_path / "hermitcrab" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    assert [name for name in names(wheel.box_wheel(tmp_path)) if name.startswith("hermitcrab/")] == [
        "hermitcrab/box/kept.py"
    ]


def test_the_record_is_true() -> None:
    """Every file with its digest and size, as pip checks them."""
    with zipfile.ZipFile(io.BytesIO(wheel.box_wheel())) as archive:
        rows = list(csv.reader(io.StringIO(archive.read(f"{wheel.INFO}/RECORD").decode())))
        assert [row[0] for row in rows] == archive.namelist()
        for name, digest, size in rows[:-1]:
            data = archive.read(name)
            found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={found}", len(data))
        assert rows[-1] == [f"{wheel.INFO}/RECORD", "", ""]


def test_pip_installs_it_and_crab_runs(tmp_path: Path) -> None:
    """Without an index, as the image does it; the command needs nothing else."""
    (tmp_path / wheel.NAME).write_bytes(wheel.box_wheel())
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile"]
    subprocess.run(
        [*pip, "--no-deps", "--no-index", "--target", str(target), str(tmp_path / wheel.NAME)],
        env={**os.environ, "PIP_CONFIG_FILE": os.devnull}, check=True,
    )  # fmt: skip

    done = subprocess.run(
        [sys.executable, "-S", "-P", str(target / "bin/crab"), "--version"],
        cwd=tmp_path, env={"PYTHONPATH": str(target)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"crab {__version__}\n"
    asked = "from hermitcrab.box import shipped; print(shipped._folder(), shipped.text('motd').decode())"
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", asked],
        cwd=tmp_path, env={"PYTHONPATH": str(target)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith(f"{target}/{wheel.HOME_FILES} hermitcrab: ")
