"""The hermitcrab wheel: packed again from what the script unpacked, checked, and put into a Python.

Packing is here because the wheel must be the same byte for byte at home and on a box: files stand stored, in
a fixed order, with a fixed date.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import zipfile
from pathlib import Path
from typing import Mapping

from hermitcrab import __version__
from hermitcrab.box import files
from hermitcrab.errors import UserError

INFO = f"hermitcrab-{__version__}.dist-info"
RECORD, INSTALLER = f"{INFO}/RECORD", f"{INFO}/INSTALLER"
ATOMIC = ("RECORD", "INSTALLER", "crab")  # what install writes by itself
NAME = f"hermitcrab-{__version__}-py3-none-any.whl"
SCRIPT = "import sys\nfrom hermitcrab.cli import main\nsys.exit(main())\n"
LONGEST_SHEBANG = 120  # the kernel cuts longer ones


def pack(content: Mapping[str, bytes]) -> bytes:
    """Make the wheel of these files; what pip reads of a wheel comes last, as it should."""
    ordered = sorted(content, key=lambda name: (name.startswith(INFO), name))
    rows = {name: content[name] for name in ordered}
    rows[RECORD] = _record(rows).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in rows.items():
            archive.writestr(_entry(name), data)
    return buffer.getvalue()


def packed(payload: Path, sha256: str) -> bytes:
    """Pack the wheel from the unpacked payload; UserError unless it is the one that was meant."""
    paths = [path for top in ("hermitcrab", INFO) for path in (payload / top).rglob("*") if path.is_file()]
    kept = [path for path in paths if "__pycache__" not in path.parts]
    wheel = pack({path.relative_to(payload).as_posix(): path.read_bytes() for path in kept})
    if hashlib.sha256(wheel).hexdigest() != sha256:
        raise UserError("the hermitcrab wheel in this copy is not the one it names: fetch the script anew")
    return wheel


def is_installed(wheel: bytes, site: Path) -> bool:
    """Whether this very wheel is there, whole."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        record = archive.read(RECORD)
    there = files.read(site / RECORD) or b""
    whole = (site / INSTALLER).is_file()
    return whole and there.startswith(record[: record.rindex(RECORD.encode())])


def install(wheel: bytes, site: Path, scripts: Path, python: str) -> None:
    """Put the wheel beside what a Python has, with its command; another version of it goes first."""
    remove(site)
    script, text = scripts / "crab", (_shebang(python) + SCRIPT).encode()
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        where = os.path.relpath(str(script), str(site))
        rows = f"{where},sha256={_digest(text)},{len(text)}\n{INSTALLER},,\n"
        # First, so that what is cut off can be taken out; what is asked whether it is whole comes last.
        files.write(site / RECORD, archive.read(RECORD) + rows.encode())
        archive.extractall(str(site), [name for name in archive.namelist() if name != RECORD])
    files.write(script, text, 0o755)
    files.sync(site)
    files.write(site / INSTALLER, b"hermitcrab\n")


def remove(site: Path) -> bool:
    """Take hermitcrab out of a Python; return whether it was there."""
    found = list(site.glob("hermitcrab-*.dist-info"))
    for info in found:
        record, folders = info / "RECORD", set()  # type: tuple[Path, set[Path]]
        names = [line.rsplit(",", 2)[0] for line in (files.read(record) or b"").decode().splitlines()]
        for path in (info / "INSTALLER", *(site / name for name in names)):
            if path.name in ATOMIC:
                _remove_halves(path)
            folders.update(parent for parent in path.parents if (site / "hermitcrab") in (parent, *parent.parents))
            if path.is_file() and path != record:
                path.unlink()
        for folder in sorted(folders, key=lambda one: len(str(one)), reverse=True):
            _remove_folder(folder)
        if record.is_file():
            record.unlink()  # last: it knows the others
        _remove_folder(info)
    return bool(found)


def _remove_halves(path: Path) -> None:
    """Remove what a write of a file left that was cut off; see files.write."""
    for half in path.parent.glob(f".{path.name}.*"):
        half.unlink()


def _remove_folder(folder: Path) -> None:
    """Remove a folder with what Python compiled in it, unless something else is there."""
    for compiled in [*folder.glob("__pycache__/*.pyc"), *folder.glob("__pycache__")]:
        compiled.rmdir() if compiled.is_dir() else compiled.unlink()
    try:
        folder.rmdir()
    except OSError:
        return


def _shebang(python: str) -> str:
    if " " in python or len(python) > LONGEST_SHEBANG:
        return f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"
    return f"#!{python}\n"


def _record(rows: Mapping[str, bytes]) -> str:
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in rows.items()]
    return "\n".join([*lines, f"{RECORD},,", ""])


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    entry.create_system = 3  # Unix, also when made elsewhere
    entry.external_attr = 0o100644 << 16
    return entry
