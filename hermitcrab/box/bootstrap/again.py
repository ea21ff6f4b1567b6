"""A run after the first: whether there is anything to do, and what there is to take out."""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path
from typing import Any, Callable, Mapping

from hermitcrab.box.bootstrap import apt, beside, environment, own, pick, pins, plan, settle, stamp, wheels
from hermitcrab.box.bootstrap.run import Run

Removal = Callable[[], Any]


def why_not(run: Run, asked: plan.Asked, known: pins.Pins, wheel: bytes, script: str) -> str:
    """Say what is to be done; nothing when the stamp is of this script and machine, and all is as it says."""
    told = stamp.read(run.places.stamp)
    if told.get("result") != stamp.DONE:
        return "no stamp of a finished run whose check did not fail"
    if told.get("script") != script or told.get("asked") != list(asked[:3]):
        return "the stamp is of another script, or of other options"
    machine = plan.look()
    if (told.get("driver"), told.get("cards")) != (machine.driver, list(machine.names)):
        return "the stamp is of another machine"
    if not (_adopted_is_whole(told, wheel) if "adopted" in told else _venv_is_whole(told, known, wheel, machine)):
        return "the environment is not as it was"
    if settle.lacks_host_keys(run):
        return "the SSH server has no host keys"
    missing = "packages" if apt.missing(known.packages) else "settings" if settle.settings(run, dry=True) else ""
    return f"{missing} are missing" if missing else ""


def removal(run: Run) -> list[tuple[str, Removal]]:
    """Return what is to be taken out, and how."""
    told = stamp.read(run.places.stamp)
    found: list[tuple[str, Removal]] = []
    if "adopted" in told:
        site, scripts = Path(str(told["site"])), Path(str(told["scripts"]))
        found.append((f"crab in {scripts}", functools.partial(beside.remove, site, scripts)))
    venv = run.places.venv
    behind = Path(os.path.realpath(str(venv))) if venv.is_symlink() else venv  # not where a folder above is a link
    for folder in dict.fromkeys((Path(str(told.get("venv", behind))), behind, venv)):  # a link last
        if (folder / own.MARK).exists() or (folder.is_symlink() and _is_our_link(folder, told)):
            found.append((str(folder), functools.partial(_remove, folder)))
        kept = environment.kept(folder)
        if kept.exists():
            found.append((str(kept), functools.partial(shutil.rmtree, str(kept))))
    if settle.settings(run, undo=True, dry=True):
        found.append(("the settings of crab setup", functools.partial(settle.settings, run, undo=True)))
    paths = (run.places.constraints, run.places.settings / settle.USER_FILE, run.places.stamp)
    return [*found, *((str(path), path.unlink) for path in paths if path.exists())]


def _is_our_link(link: Path, told: Mapping[str, Any]) -> bool:
    """Whether a link without an environment of ours behind it is one to a data disk that we made."""
    target = Path(os.path.realpath(str(link)))
    return str(target) == told.get("venv") or (not target.exists() and target.parts[-2:] == ("hermitcrab", "venv"))


def _venv_is_whole(told: Mapping[str, Any], known: pins.Pins, wheel: bytes, machine: pick.Machine) -> bool:
    row = next((row for row in known.rows if row.id == told.get("combo")), None)
    python = str(told.get("python"))
    if row is None or python not in row.locks or pick.why_not(row, machine):
        return False
    where = environment.Where(Path(str(told["venv"])))
    return environment.is_complete(where, pick.Choice(row, python, ""), wheel)


def _adopted_is_whole(told: Mapping[str, Any], wheel: bytes) -> bool:
    site = Path(str(told["site"]))
    version = str(told["torch"]).split("+")[0]
    there = any(Path(str(told["torch_site"])).glob(f"torch-{version}*-info"))
    return os.access(str(told["adopted"]), os.X_OK) and there and wheels.is_installed(wheel, site)


def _remove(folder: Path) -> None:
    folder.unlink() if folder.is_symlink() else own.remove(folder)
