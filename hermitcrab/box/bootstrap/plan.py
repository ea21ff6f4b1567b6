"""What a run will do, decided before anything is changed or downloaded: adopt or install, which combo, where."""

from __future__ import annotations

import os
import platform as processor
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple, Sequence

from hermitcrab.box import limits as limiting
from hermitcrab.box import platform as platforms
from hermitcrab.box.bootstrap import adopt, apt, pick, pins, pip
from hermitcrab.box.bootstrap.environment import SLACK, SYSTEM_GB, TEMPORARY, Where
from hermitcrab.box.bootstrap.own import MARK
from hermitcrab.box.bootstrap.pick import Choice, Machine
from hermitcrab.box.bootstrap.run import Run
from hermitcrab.box.check import driver
from hermitcrab.box.check.child import Child, Failure
from hermitcrab.box.disks import Disk, disk_at, size
from hermitcrab.errors import UserError

DRIVER_S = 30
GLIBC = (2, 28)  # of the locks
PYTHONS = ("3.13", "3.12", "3.11", "3.10", "3.9", "3.8")
SERVED = {"debian": ("11", "12", "13"), "ubuntu": ("20.04", "22.04", "24.04")}


class Plan(NamedTuple):
    """All decisions of one run."""

    machine: Machine
    platform: platforms.Platform
    memory: int | None
    adopted: adopt.Torch | None
    choice: Choice | None
    where: Where | None
    packages: tuple[str, ...]  # that are missing
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


class Asked(NamedTuple):
    """What the user asked for, and what the script found out of the system."""

    cuda: str = ""
    torch: str = ""
    fresh: bool = False
    distro: str = "debian"
    release: str = ""
    has_apt: bool = True


def make(run: Run, asked: Asked, known: pins.Pins) -> Plan:
    """Look at the box and decide; UserError when nothing can run here."""
    served = asked.has_apt and asked.release in SERVED.get(asked.distro, ())
    found = platforms.detect()
    limits = limiting.read_limits()
    machine = look()
    adopted, notes = _adopted(run, asked, machine)
    choice, obstacle = (None, "") if adopted else _chosen(run, asked, machine, known, served=served)
    packages = apt.missing(known.packages)
    left_out = _left_out(run, asked, packages, served=served)
    left_out += [f"left out: torch ({obstacle})"] if obstacle else []
    wanted = tuple(packages) if served and run.root else ()
    beside = int(SYSTEM_GB * 1e9 * len(wanted) / len(known.packages))
    _refuse_full(beside)
    where = _where(run, choice.row, found, beside) if choice else None
    return Plan(machine, found, limits.memory, adopted, choice, where, wanted, tuple(left_out), tuple(notes))


def look() -> Machine:
    """Ask driver and cards; what hangs or crashes is asked in a child."""
    with Child() as child:
        facts = child.ask(driver.read, Path("/"), seconds=DRIVER_S)
    if isinstance(facts, Failure):
        facts = driver.unanswered(facts)
    devices = facts.cuda.devices
    names = tuple(device.name for device in devices) or tuple(card.name for card in facts.cards)
    cards = tuple(device.sm for device in devices) or tuple(pick.capability(name) for name in names)
    return Machine(facts.version, cards, names, processor.machine(), tuple(pythons()))


def pythons() -> list[str]:
    """Return the versions of Python that an environment could be made of, the system's own first."""
    own = _version("/usr/bin/python3")
    others = (version for version in PYTHONS if shutil.which(f"python{version}"))
    return list(dict.fromkeys([*([own] if own else []), *others]))


def lines(plan: Plan, run: Run, asked: Asked) -> list[str]:
    """Tell the plan, a fact a line."""
    found = plan.platform
    rows = [
        ("platform", f"{found.name} ({found.kind}), {asked.distro} {asked.release}".rstrip()),
        ("rights", "root" if run.root else "a plain user's"),
        ("driver", plan.machine.driver or "none to be seen"),
        ("cards", ", ".join(plan.machine.names) or "none to be seen: the check will be skipped, not passed"),
    ]
    if plan.adopted:
        one = plan.adopted
        rows.append(("torch", f"adopted: torch {one.torch} for CUDA {one.cuda}, {one.prefix}"))
    elif plan.choice and plan.where:
        rows.append(("torch", f"{plan.choice.row.id}, Python {plan.choice.python}: {plan.choice.why}"))
        rows += [("", f"note: {plan.choice.row.reason}")] if plan.choice.row.reason else []
        rows.append(("where", _whereabouts(plan, plan.where, plan.choice)))
    elif not plan.adopted:
        rows.append(("torch", "left out"))
    missing = any("left out: torch" not in one for one in plan.left_out)
    rows.append(("packages", " ".join(plan.packages) or ("left out" if missing else "none missing")))
    rows += [("", note) for note in (*plan.notes, *plan.left_out)]
    return [f"{name:<10}{text}" for name, text in rows]


def _adopted(run: Run, asked: Asked, machine: Machine) -> tuple[adopt.Torch | None, list[str]]:
    notes: list[str] = []
    if asked.fresh:
        return None, notes
    own = run.places.venv if (run.places.venv / MARK).exists() else None  # one of the image is as good as any
    for found in adopt.find(run.environ, skip=own):
        reason = adopt.why_not(found, machine, cuda=asked.cuda, torch=asked.torch)
        if not reason:
            return found, notes
        notes.append(f"not adopted: {found.python}: {reason}")
    return None, notes


def _left_out(run: Run, asked: Asked, packages: Sequence[str], *, served: bool) -> list[str]:
    if not packages:
        return []
    names = " ".join(packages)
    if not served:
        known = ", ".join(f"{name.capitalize()} {', '.join(of)}" for name, of in SERVED.items())
        return [f"left out: {names} ({asked.distro} {asked.release} is not served; {known} are)"]
    return [] if run.root else [f"left out: {names} (neither root nor sudo without a password)"]


def _chosen(run: Run, asked: Asked, machine: Machine, known: pins.Pins, *, served: bool) -> tuple[Choice | None, str]:
    """Choose; on a system that is not served the rest is done also where nothing fits."""
    try:
        choice = pick.choose(machine, known.rows, cuda=asked.cuda, torch=asked.torch)
    except UserError as error:
        if served or error.code != pick.NOTHING_FITS:
            raise
        return None, str(error)
    obstacle = _obstacle(run, served=served)
    return (None, obstacle) if obstacle else (choice, "")


def _obstacle(run: Run, *, served: bool) -> str:
    """Say why no environment can be made here, so that the rest is done without it."""
    name, version = processor.libc_ver()
    if name == "glibc" and pins.numbers(version) < GLIBC:
        return f"the wheels need glibc {GLIBC[0]}.{GLIBC[1]}, here is {version}"
    if run.root and served:
        return ""
    try:
        pip.find(run._replace(root=False), ())
    except UserError as error:
        return str(error)
    return ""


def _where(run: Run, row: pins.Row, platform: platforms.Platform, beside: int = 0) -> Where:
    """Find a disk with room: the system's, which is what platforms save, else the data disk.

    ``beside`` is what packages will take of the system's.
    """
    venv = run.places.venv
    need = int(row.disk_gb * SLACK * 1e9)
    if venv.is_symlink():
        return Where(Path(os.path.realpath(str(venv))), venv)
    _refuse_temporary(run)
    system = disk_at(str(_existing(venv)))
    if _has(system, need + beside) or (venv / "bin").is_dir() or (venv / MARK).exists():
        return Where(venv)
    if platform.data and _has(platform.data, need):
        return Where(Path(platform.data.path) / "hermitcrab/venv", venv)
    said = [f"{disk.path} has {size(disk.free)} free" for disk in (system, platform.data) if disk]
    raise UserError(
        f"{row.id} needs {size(need + beside)}, and {', '.join(said)}: make room, or take a smaller combo with --cuda"
    )


def _has(disk: Disk, need: int) -> bool:
    """Whether there is room; an unknown amount is taken for enough, since quotas do not tell."""
    return disk.free is None or disk.free >= need


def _refuse_full(beside: int) -> None:
    disk = disk_at("/")
    if not _has(disk, beside):
        raise UserError(f"/ has {size(disk.free)} free, and the missing packages need {size(beside)}: make room")


def _refuse_temporary(run: Run) -> None:
    disk = disk_at(str(run.work))
    if disk.free is not None and disk.free < TEMPORARY:
        raise UserError(f"{run.work.parent} has {size(disk.free)} free, {size(TEMPORARY)} are needed: set TMPDIR")


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _whereabouts(plan: Plan, where: Where, choice: Choice) -> str:
    disk = disk_at(str(_existing(where.folder)))
    text = f"{where.folder}, {choice.row.disk_gb:g} GB of {size(disk.free)} free"
    if where.link and plan.platform.row.saves != "unknown":
        text += f"; NOT part of a saved image, which holds {plan.platform.row.saves}"
    return text


def _version(python: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    except OSError:
        return ""
    return done.stdout.decode().strip()
