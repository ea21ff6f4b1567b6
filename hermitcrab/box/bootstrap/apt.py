"""Packages of the distribution: those of the image that are missing here, and none of the driver's.

apt-get itself is run by the script's own shell functions, which wait for locks.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Sequence

from hermitcrab.box.bootstrap.pins import PAYLOAD
from hermitcrab.box.bootstrap.run import Run
from hermitcrab.errors import UserError

FUNCTIONS = "apt.sh"
FRESH = "CRAB_APT_FRESH"  # set when the shell part has just read the archive
# What comes from the host or from wheels; a second one beside it is what breaks a card.
FOREIGN = re.compile(r"nvidia|cuda|^libnv|^libcud|^libcublas|^libnccl")
# Left out of new packages as in the image: documentation, link-time optimisation, sanitizers.
LEAN = (
    *("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*"),
    *("/usr/lib/python3*/config-*/*.a", "/usr/bin/*-lto-dump*", "/usr/lib/gcc/*/lto1"),
    *("/usr/lib/gcc/*/lib?san*", "/usr/lib/gcc/*/libubsan*"),
    *("/usr/lib/*-linux-gnu/lib?san.so*", "/usr/lib/*-linux-gnu/libubsan.so*"),
)
KEPT = "/usr/share/doc/*/copyright"
# A reload of systemd takes the card away from running containers; a service may start at the next boot.
GUARD = Path("/var/lib/hermitcrab/guard")  # not below /tmp, which may be noexec
STUBS = ("systemctl", "deb-systemd-invoke", "invoke-rc.d")


def missing(packages: Sequence[str]) -> list[str]:
    """Return the packages that are not installed; all of them where dpkg is none."""
    try:
        done = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except OSError:
        return list(packages)
    rows = (line.split() for line in done.stdout.decode().splitlines())
    there = {row[0] for row in rows if row[1:] == ["installed"]}
    return [package for package in packages if package not in there]


def update(run: Run, options: Sequence[str]) -> None:
    """Read the archive's lists, unless the script has just done so."""
    if not run.environ.get(FRESH):
        apt_get(run, options, "update")


def install(run: Run, packages: Sequence[str], options: Sequence[str]) -> None:
    """Install packages, and what they depend on; UserError when that would touch the driver or fails."""
    words = ["install", "--no-install-recommends", *packages]
    refuse_foreign(apt_get(run, options, "-s", *words))
    guard = _guard()
    try:
        apt_get(run, (*options, *_lean()), *words, guard=guard)
    finally:
        _remove(guard)


def refuse_foreign(simulation: str) -> None:
    """Raise UserError when apt would install, change or remove what belongs to the driver, or remove anything."""
    for line in simulation.splitlines():
        found = re.match(r"(Inst|Remv|Purg) (\S+)", line)
        if found and FOREIGN.search(found[2]):
            raise UserError(f"apt would touch {found[2]}, which belongs to the driver: no packages were installed")
        if found and found[1] != "Inst":
            raise UserError(f"apt would remove {found[2]}: no packages were installed")


def apt_get(run: Run, options: Sequence[str], *words: str, guard: str = "", at: Path = Path("/")) -> str:
    """Run apt-get by the shell's functions, and return what it said."""
    script = '. "$crab_functions"; apt_get "$@" || { apt_says >&2; exit 1; }'
    own = {
        "crab_functions": str(PAYLOAD / FUNCTIONS),
        "work": str(run.work),
        "log": run.log,
        "quiet": "yes" if run.quiet else "",
        "verbose": "yes" if run.verbose else "",
        "apt_options": " ".join(options),
        "guard": guard,
    }
    done = subprocess.run(
        ["sh", "-c", script, "sh", *words],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,  # what it tells of locks is for the user at once, why it failed is for the end
        env={**run.environ, **own},
        cwd=str(at),
        check=False,
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().replace("bootstrap: ", "").splitlines()
        raise UserError(f"apt-get {words[0]}: {last[-1] if last else 'failed'}")
    return (run.work / "apt.out").read_text(encoding="utf-8", errors="replace")


def _lean() -> list[str]:
    excluded = [f"-o Dpkg::Options::=--path-exclude={path}" for path in LEAN]
    return [*excluded, f"-o Dpkg::Options::=--path-include={KEPT}"]


def _guard() -> str:
    """Make a folder of programs that do nothing, where packages would reload systemd or start services."""
    folder = GUARD
    folder.mkdir(parents=True, exist_ok=True)
    for name in STUBS:
        (folder / name).write_text("#!/bin/sh\nexit 0\n")
        os.chmod(folder / name, 0o755)  # noqa: S103 - programs
    return str(folder)


def _remove(guard: str) -> None:
    for name in STUBS:
        (Path(guard) / name).unlink()
    for folder in (Path(guard), Path(guard).parent):
        try:
            folder.rmdir()
        except OSError:
            return
