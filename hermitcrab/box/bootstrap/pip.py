"""What fetches wheels: uv, itself fetched by whatever pip the box has; with the user's own index and certificates."""

from __future__ import annotations

import glob
import os
import shutil
import sys
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from hermitcrab.box.bootstrap import apt
from hermitcrab.box.bootstrap.pins import Tool
from hermitcrab.box.bootstrap.run import Run, clean, first_line
from hermitcrab.errors import UserError

# What pip's settings are called in uv, which does not read them.
SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
}
WHEELS = "usr/share/python-wheels/*.whl"  # where Debian keeps a pip for its venv module
DEBS = ("python3-pip-whl", "python-pip-whl")
NONE = "there is no pip here to fetch uv with: install python3-pip"
# What an untrusted certificate looks like; pip's own last line then is "no matching distribution".
CERTIFICATE = ("CERTIFICATE_VERIFY_FAILED", "invalid peer certificate", "UnknownIssuer", "certificate verify failed")
UNREACHABLE = ("Temporary failure in name resolution", "dns error", "Network is unreachable", "Connection refused")

Command = Sequence[str]


class NoPipError(UserError):
    """Nothing here can fetch a wheel; Debian 11 has the means only when its packages are there."""


def find(run: Run, options: Sequence[str]) -> Command:
    """Return a pip that works: a Python's own, the distribution's, or one unpacked for this run."""
    found = next(_working(run, _candidates("/")), None)
    if found is None and run.root:
        _unpack(run, options)
        found = next(_working(run, _candidates(str(run.work / "deb"))), None)
    if found is None:
        raise NoPipError(NONE)
    return found


def environment(run: Run, pip: Command) -> dict[str, str]:
    """Return the environment for uv: the user's pip settings, where uv has none of its own."""
    environ = clean(run.environ)
    status, said = run.attempt(*pip, "config", "list", environ=environ)
    found = {}
    # pip lets PIP_INDEX_URL win over its files; it lists it as `:env:.index-url`.
    for line in sorted(said.splitlines() if status == 0 else [], key=lambda line: line.startswith(":env:")):
        key, _, value = line.partition("=")
        name = SETTINGS.get(key.rpartition(".")[2])
        if name:
            found[name] = value.strip("'\"")
    return {**found, "UV_PYTHON_DOWNLOADS": "never", "UV_LINK_MODE": "hardlink", "UV_NO_PROGRESS": "1", **environ}


def uv(run: Run, pip: Command, tool: Tool, folder: Path) -> str:
    """Fetch uv into a folder, by its hash; return its program."""
    program, new = folder / "uv/bin/uv", folder / "uv.new"
    if run.attempt(str(program), "--version")[1].startswith(f"uv {tool.version}"):
        return str(program)
    for left in (folder / "uv", new):
        shutil.rmtree(str(left), ignore_errors=True)
    lock = run.work / "uv.lock"
    lock.write_text(f"uv=={tool.version} --hash=sha256:{tool.sha256}\n", encoding="ascii")
    words = (
        "install",
        "-q",
        "--no-deps",
        "--no-cache-dir",
        "--no-compile",
        "--require-hashes",
        "--only-binary",
        ":all:",
    )
    where = ("--disable-pip-version-check", "--target", str(new), "-r", str(lock))
    status, said = run.attempt(*pip, *words, *where, environ=clean(run.environ))
    if status or not (new / "bin/uv").exists():
        raise UserError(f"uv cannot be fetched: {why(said)}")
    os.rename(str(new), str(folder / "uv"))  # pip copies from another disk: a part of it would not run
    return str(program)


def why(said: str) -> str:
    """Say why packages could not be had."""
    if any(word in said for word in CERTIFICATE):
        return "the index's certificate is not trusted; name your network's CA bundle with --ca FILE"
    if "No space left" in said:
        return "the disk is full"
    if any(word in said for word in UNREACHABLE):
        return "the package index cannot be reached: no network, or no name service"
    return first_line(said, "ERROR:", "error:", "×", "Caused by")


def _candidates(top: str) -> Iterator[Command]:
    for python in dict.fromkeys(("/usr/bin/python3", sys.executable)):
        yield (python, "-m", "pip")
        for path in _bundled(top):
            yield ("env", f"PYTHONPATH={path}", python, "-m", "pip")


def _working(run: Run, commands: Iterator[Command]) -> Iterator[Command]:
    environ: Mapping[str, str] = clean(run.environ)
    return (command for command in commands if run.attempt(*command, "--version", environ=environ)[0] == 0)


def _bundled(top: str) -> list[str]:
    """Find the pips that Python and Debian keep for making environments."""
    own = sorted(glob.glob(f"{os.path.dirname(os.__file__)}/ensurepip/_bundled/pip-*.whl"))
    # Debian 11 cut pip's own copies of others out of it: they lie beside it.
    theirs = sorted(glob.glob(os.path.join(top, WHEELS)))
    return [*own, *([":".join(theirs)] if theirs else [])]


def _unpack(run: Run, options: Sequence[str]) -> None:
    """Unpack the distribution's pip for this run; nothing of it is installed."""
    for package in (*DEBS, *DEBS):
        try:
            apt.apt_get(run, options, "download", package, at=run.work)
        except UserError:
            if package == DEBS[-1]:  # there may be no lists yet
                apt.apt_get(run, options, "update")
            continue
        for deb in run.work.glob(f"{package}_*.deb"):
            run.call("dpkg-deb", "-x", str(deb), str(run.work / "deb"))
        return
