"""Is there a GPU? And if not, which of the ways of having none is it: each is a verdict of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

from hermitcrab.box.check.driver import Facts
from hermitcrab.box.check.findings import FAIL, PASS, SKIP, Finding
from hermitcrab.box.check.messages import explain

ID = "gpu.count"
START = "Start the instance with its GPU, then run `crab check` again."
DOCKER = "With docker: --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility."


def judge(facts: Facts, platform: Any, root: Path, environ: Mapping[str, str]) -> Finding:
    """Give the verdict; ``platform`` is that of hermitcrab.box.platform, or None."""
    devices = facts.cuda.devices
    if devices:
        names = ", ".join(sorted({device.name or "of unknown name" for device in devices}))
        return Finding(ID, PASS, f"{len(devices)} GPU{'s' * (len(devices) > 1)}: {names}")
    for way in (_slices, _hidden, _no_card_mode, _no_driver, _silent):
        found = way(facts, platform, root, environ)
        if found:
            return found
    return _no_device(facts, platform)


def _slices(facts: Facts, *_: object) -> Finding | None:
    """MIG is on and nothing was cut: the card is there and cannot be used."""
    if not any(card.mig and not card.slices for card in facts.cards):
        return None
    return Finding(
        ID,
        FAIL,
        "MIG is on without slices (needs the host owner): the card is there and cannot be used",
        "The host's owner switched MIG on and made no slice, or gave none to this box.",
        "Ask the owner for a slice or for MIG to be switched off; as a renter, take another machine.",
    )


def _hidden(facts: Facts, _platform: Any, _root: Path, environ: Mapping[str, str]) -> Finding | None:
    """The cards are there; a variable hides them from programs."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if not facts.cards or visible is None or (facts.cuda.error and "Error 100" not in facts.cuda.error):
        return None
    text = f"CUDA sees no card, although the driver lists {len(facts.cards)}: CUDA_VISIBLE_DEVICES is {visible!r}"
    return Finding(ID, FAIL, text, *explain("No CUDA GPUs are available"))


def _no_card_mode(facts: Facts, platform: Any, root: Path, _environ: Mapping[str, str]) -> Finding | None:
    """The platform's cheap mode for setting up: there is no GPU on purpose."""
    most = platform.row.no_gpu_memory if platform else None
    limit = memory_limit(root)
    if facts.cards or facts.nodes or most is None or limit is None or limit > most:
        return None
    return Finding(
        ID,
        SKIP,
        f"{platform.name} in no-GPU mode (无卡模式): no card on purpose, so it was not checked",
        f"The memory limit of {limit / 2**30:.1f} GiB is that of this mode.",
        "Set the box up at leisure; then start it with its GPU and run `crab check` again.",
    )


def _no_driver(facts: Facts, platform: Any, *_: object) -> Finding | None:
    """No library of the driver reached the box."""
    if facts.cuda.path or facts.nvml.path or (facts.smi and facts.smi.ran):
        return None
    text = "no NVIDIA driver in this box"
    if facts.nodes:
        cause = f"The devices are there ({', '.join(facts.nodes)}), the driver's libraries are not."
        return Finding(ID, FAIL, f"{text}, although it was given a card", cause, DOCKER)
    if facts.on_bus and platform and platform.kind == "vm":
        cause = "The card is on the bus of this virtual machine, and no driver is installed."
        return Finding(ID, FAIL, text, cause, "Take the platform's image with a driver, or install one in the VM.")
    return Finding(ID, SKIP, f"{text}: no GPU was checked", _why_none(facts, platform), f"{START} {DOCKER}")


def _silent(facts: Facts, *_: object) -> Finding | None:
    """The libraries are there and get no answer."""
    errors = [facts.cuda.error] if facts.cuda.path else []
    errors += [facts.nvml.error] if facts.nvml.path else []
    said = [error for error in errors if error and "Error 100" not in error]
    if not said and facts.smi and facts.smi.ran and not facts.smi.cards and not _says_none(facts.smi.said):
        said = [facts.smi.said.splitlines()[0] if facts.smi.said else "nvidia-smi says nothing"]
    if not said and facts.cards and not facts.cuda.path:
        said = [facts.cuda.error]  # the tools were given to the box, the means to compute were not
    if not said:
        return None
    # Of several errors the one that can be explained.
    said.sort(key=lambda error: explain(error) == explain(""))
    return Finding(ID, FAIL, f"the driver does not answer: {said[0]}", *explain(said[0]))


def _no_device(facts: Facts, platform: Any) -> Finding:
    """The driver answers: there is no card."""
    if facts.cards:
        text = f"CUDA sees no card, although the driver lists {len(facts.cards)}"
        return Finding(ID, FAIL, text, *explain(facts.cuda.error or "No CUDA GPUs are available"))
    text = f"the driver{f' {facts.version}' if facts.version else ''} answers, but there is no device"
    return Finding(ID, SKIP, f"{text}: no GPU was checked", _why_none(facts, platform), START)


def _why_none(facts: Facts, platform: Any) -> str:
    if platform and platform.row.no_gpu_memory is not None:
        return f"On {platform.name} the likely cause is no-GPU mode (无卡模式)."
    major = int(facts.version.split(".")[0]) if facts.version else 0
    if facts.on_bus and major >= 590:
        return (
            "Drivers from 590 on do not drive Maxwell, Pascal and Volta cards (V100, P100); else no GPU was attached."
        )
    if facts.module:
        return f"The host has driver {facts.module}: the box was started without a GPU."
    return "The machine has no GPU, or the box was started without it."


def _says_none(text: str) -> bool:
    return "No devices were found" in text


def memory_limit(root: Path) -> int | None:
    """Read the box's memory limit from its cgroup, version 2 or 1; None when there is none."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return int((root / "sys/fs/cgroup" / name).read_text())
        except (OSError, ValueError):  # "max" is no limit
            continue
    return None
