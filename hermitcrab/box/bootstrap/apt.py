"""Packages of the distribution: those of the image that are missing here, and none of the driver's.

apt-get itself is run by the script's own shell functions, which wait for locks.
"""

from __future__ import annotations

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
    refuse_foreign(apt_get(run, options, "-s", "install", "--no-install-recommends", *packages))
    _by_shell(run, (*options, *_lean()), "apt_install", *packages)


def refuse_foreign(simulation: str) -> None:
    """Raise UserError when apt would install, change or remove what belongs to the driver, or remove anything."""
    for line in simulation.splitlines():
        found = re.match(r"(Inst|Remv|Purg) (\S+)", line)
        if found and FOREIGN.search(found[2]):
            raise UserError(f"apt would touch {found[2]}, which belongs to the driver: no packages were installed")
        if found and found[1] != "Inst":
            raise UserError(f"apt would remove {found[2]}: no packages were installed")


def apt_get(run: Run, options: Sequence[str], *words: str, at: Path = Path("/")) -> str:
    """Run apt-get by the shell's functions, and return what it said."""
    return _by_shell(run, options, "apt_get", *words, at=at)


def _by_shell(run: Run, options: Sequence[str], *words: str, at: Path = Path("/")) -> str:
    script = '. "$crab_functions"; "$@" || { apt_says >&2; exit 1; }'
    own = {
        "crab_functions": str(PAYLOAD / FUNCTIONS),
        "work": str(run.work),
        "rights": "",
        "log": run.log,
        "quiet": "yes" if run.quiet else "",
        "verbose": "yes" if run.verbose else "",
        "apt_options": " ".join(options),
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
        action = "install" if words[0] == "apt_install" else next(word for word in words[1:] if word[0] != "-")
        raise UserError(f"apt-get {action}: {last[-1] if last else 'failed'}")
    return (run.work / "apt.out").read_text(encoding="utf-8", errors="replace")


def _lean() -> list[str]:
    excluded = [f"-o Dpkg::Options::=--path-exclude={path}" for path in LEAN]
    return [*excluded, f"-o Dpkg::Options::=--path-include={KEPT}"]
