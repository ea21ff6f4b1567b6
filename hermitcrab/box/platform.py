"""`crab platform`: who rents out this machine, and what that means for its disks, its limits and its bill.

Detection reads files and variables, never the network. Unknown is an answer: no guess may ever lead to a
power-off or to a deleted disk.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

from hermitcrab.box import platforms
from hermitcrab.box.disks import Disk, Mount, data_disk, find_mount, read_mounts, size, system_disk
from hermitcrab.box.limits import Limits, read_limits
from hermitcrab.box.signs import CLUES, STEPS, Rule, Step

HOST_LOOKS = ("dmi", "kernel")  # what a container sees of the machine under it
CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv", "/run/secrets/kubernetes.io")


class Platform(NamedTuple):
    """What this machine was recognised as, how surely and by what."""

    id: str
    name: str
    confidence: str  # high, medium, low or none
    evidence: tuple[str, ...]
    kind: str  # container, vm, slurm, wsl, apptainer or unknown
    system: Disk
    data: Disk | None
    row: platforms.Row


class View(NamedTuple):
    """What detection looks at."""

    root: Path
    environ: Mapping[str, str]
    pid1: Mapping[str, str]  # what the platform gave to PID 1 may not have reached this session
    mounts: tuple[Mount, ...]


def main(arguments: Sequence[str]) -> int:
    """Print what is known of this machine; that nothing is known is no failure."""
    parser = argparse.ArgumentParser(prog="crab platform", description="Say which machine this is, and what it means.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    platform, limits = detect(), read_limits()
    if options.json:
        import json

        print(json.dumps(as_json(platform, limits), indent=2))
    else:
        sys.stdout.writelines(f"{line}\n" for line in lines(platform, limits))
    return 0


def detect(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Platform:
    """Recognise the platform by the first step of the table whose rules all hold."""
    view = View(root, environ, _pid1(root), read_mounts(root))
    for step in STEPS:
        evidence = _evidence(step, view)
        if evidence:
            break
    else:
        step, evidence = Step("unknown", "none", ()), _clues(view)
    row, confidence = platforms.ROWS[step.platform], step.confidence
    if confidence == "high" and in_container(view) and any(rule.look in HOST_LOOKS for rule in step.rules):
        confidence = "medium"
        evidence += ("inside a container: that names the host, not who rents out the container",)
    system, data = system_disk(root), data_disk(row.data_paths, root)
    return Platform(row.id, row.name, confidence, evidence, _kind(row, view), system, data, row)


def no_gpu_mode(platform: Platform, limits: Limits) -> bool:
    """Say whether the platform runs this box without its card, on purpose (AutoDL's 无卡模式)."""
    most, memory = platform.row.no_gpu_memory, limits.memory
    return platform.confidence == "high" and most is not None and memory is not None and memory <= most


def in_container(view: View) -> bool:
    """Say whether this is a container; a root made of layers is one, too."""
    system = find_mount("/", view.mounts)
    layered = system is not None and system.type == "overlay"
    marked = any(os.path.exists(_at(view, name)) for name in CONTAINER_FILES) or "container" in view.pid1
    return layered or marked


def lines(platform: Platform, limits: Limits) -> Iterator[str]:
    """Yield the report for a human, a fact a line; what does not apply has none."""
    row = platform.row
    yield from _line("platform", row.name_zh if row.name_zh.startswith(row.name) else f"{row.name} {row.name_zh}")
    yield from _line("confidence", platform.confidence)
    for evidence in platform.evidence or ("nothing that names a platform",):
        yield from _line("evidence", evidence)
    yield from _line("kind", platform.kind)
    if no_gpu_mode(platform, limits):
        yield from _line("mode", "without a GPU, on purpose (无卡模式)")
    yield from _line("system disk", _disk(platform.system))
    yield from _line("data disk", _disk(platform.data) if platform.data else "none found")
    yield from _line("cpu", f"{_count(limits.cpus)} of {_count(limits.machine_cpus)} ({limits.cpu_source})")
    memory = f"{size(limits.memory)} of {size(limits.machine_memory)}"
    yield from _line("memory", f"{memory} ({limits.memory_source})")
    yield from _line("shared memory", limits.shm.note or size(limits.shm.total))
    doubt = "" if platform.confidence in {"high", "none"} else f" [confidence {platform.confidence}: make sure first]"
    yield from _line("stop path", row.stop_path + doubt)
    yield from _line("still billed", row.billed_after_stop)
    yield from _line("release clock", row.release_clock)
    yield from _line("image holds", row.saves)
    if row.image_limit_gb is not None:
        yield from _line("image limit", f"{row.image_limit_gb:g} GB")


def as_json(platform: Platform, limits: Limits) -> dict[str, Any]:
    """Return the report for a program; sizes are bytes, and null is unknown."""
    row = platform.row
    return {
        "platform": platform.id,
        "name": row.name,
        "name_zh": row.name_zh,
        "confidence": platform.confidence,
        "evidence": list(platform.evidence),
        "kind": platform.kind,
        "no_gpu_mode": no_gpu_mode(platform, limits),
        "system_disk": platform.system._asdict(),
        "data_disk": platform.data._asdict() if platform.data else None,
        **limits._asdict(),
        "shm": limits.shm._asdict(),
        "stop_path": row.stop_path,
        "billed_after_stop": row.billed_after_stop,
        "release_clock": row.release_clock,
        "saves": row.saves,
        "image_limit_gb": row.image_limit_gb,
        "save_steps_en": list(row.save_steps_en),
        "save_steps_zh": list(row.save_steps_zh),
    }


def _pid1(root: Path) -> dict[str, str]:
    """Read the environment of PID 1, which only root may."""
    pairs = (entry.partition("=") for entry in _read(root / "proc/1/environ").split("\0"))
    return {name: value for name, _, value in pairs if name}


def _evidence(step: Step, view: View) -> tuple[str, ...]:
    """Return what each rule of a step found; nothing unless all of them hold."""
    found = tuple(LOOKS[rule.look](view, rule) for rule in step.rules)
    return found if all(found) else ()


def _clues(view: View) -> tuple[str, ...]:
    found = ((platforms.ROWS[clue.platform].name, _evidence(clue, view)) for clue in CLUES)
    return tuple(f"not enough for {name}: {' and '.join(evidence)}" for name, evidence in found if evidence)


def _kind(row: platforms.Row, view: View) -> str:
    if any(_evidence(step, view) for step in STEPS if step.platform == "apptainer" and step.confidence == "high"):
        return "apptainer"
    if row.kind == "slurm":
        return "slurm"
    if in_container(view):
        return "container"
    # Container platforms rent out a few VMs, too; only these run systemd.
    if row.kind == "container" and os.path.isdir(_at(view, "/run/systemd/system")):
        return "vm"
    virtual = re.search(r"^flags\s*:.*\bhypervisor\b", _read(view.root / "proc/cpuinfo"), re.MULTILINE)
    return "vm" if row.kind == "unknown" and virtual else row.kind


def _own_env(view: View, rule: Rule) -> str:
    return f"{rule.what} is set" if view.environ.get(rule.what) else ""


def _env(view: View, rule: Rule) -> str:
    return _own_env(view, rule) or (f"{rule.what} is set for PID 1" if view.pid1.get(rule.what) else "")


def _file(view: View, rule: Rule) -> str:
    return f"{rule.what} exists" if os.path.isfile(_at(view, rule.what)) else ""


def _dir(view: View, rule: Rule) -> str:
    return f"{rule.what} exists" if os.path.isdir(_at(view, rule.what)) else ""


def _mount(view: View, rule: Rule) -> str:
    return f"{rule.what} is a mount" if any(mount.path == rule.what for mount in view.mounts) else ""


def _line_of(view: View, rule: Rule) -> str:
    begins = any(line.startswith(rule.holds) for line in _read(Path(_at(view, rule.what))).splitlines())
    return f"{rule.what} has a line {rule.holds}" if begins else ""


def _text(view: View, rule: Rule) -> str:
    return f"{rule.what} names {rule.holds}" if rule.holds in _read(Path(_at(view, rule.what))) else ""


def _hostname(view: View, rule: Rule) -> str:
    name = _read(view.root / "proc/sys/kernel/hostname").strip() or _read(view.root / "etc/hostname").strip()
    return f"the host name is {name}" if re.fullmatch(rule.what, name) else ""


def _kernel(view: View, rule: Rule) -> str:
    release = _read(view.root / "proc/sys/kernel/osrelease").strip()
    return f"the kernel is {release}" if rule.what in release.lower() else ""


def _dmi(view: View, rule: Rule) -> str:
    for name in ("sys_vendor", "product_name"):
        value = _read(view.root / "sys/class/dmi/id" / name).strip()
        if rule.what in value:
            return f"DMI {name} is {value}"
    return ""


LOOKS: dict[str, Callable[[View, Rule], str]] = {
    "own env": _own_env,
    "env": _env,
    "file": _file,
    "dir": _dir,
    "mount": _mount,
    "line": _line_of,
    "text": _text,
    "hostname": _hostname,
    "kernel": _kernel,
    "dmi": _dmi,
}


def _line(name: str, text: str) -> Iterator[str]:
    # A mount may be named with a line break, or in no encoding at all.
    plain = "".join(character if character.isprintable() else "?" for character in text)
    if plain:
        yield f"{name:<15}{plain}"


def _disk(disk: Disk) -> str:
    origin = ", ".join(filter(None, (disk.device, disk.note)))
    return f"{disk.path}  {size(disk.free)} free of {size(disk.total)}" + (f" ({origin})" if origin else "")


def _count(number: float | None) -> str:
    return "unknown" if number is None else f"{number:g}"


def _at(view: View, path: str) -> str:
    return str(view.root / path.lstrip("/"))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
