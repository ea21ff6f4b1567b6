"""Is there a GPU? And if not, which of the ways of having none is it: each is a verdict of its own."""

from __future__ import annotations

from typing import Mapping, NamedTuple

from hermitcrab.box.check.driver import Facts
from hermitcrab.box.check.findings import FAIL, PASS, SKIP, Finding, gib
from hermitcrab.box.check.messages import explain
from hermitcrab.box.limits import Limits
from hermitcrab.box.platform import Platform, no_gpu_mode

ID = "gpu.count"
START = "Start the instance with its GPU, then run `crab check` again."
DOCKER = "With docker: --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility."


class Box(NamedTuple):
    """What of the machine around the card bears on the verdict."""

    platform: Platform
    limits: Limits
    environ: Mapping[str, str]


def judge(facts: Facts, box: Box) -> Finding:
    """Give the verdict: there is a GPU, or the first way of having none that fits."""
    devices = facts.cuda.devices
    if devices:
        names = ", ".join(sorted({device.name or "of unknown name" for device in devices}))
        return Finding(ID, PASS, f"{len(devices)} GPU{'s' * (len(devices) > 1)}: {names}")
    ways = (_slices, _hidden, _no_card_mode, _no_driver, _silent)
    found = filter(None, (way(facts, box) for way in ways))
    return next(found, None) or _no_device(facts, box)


def _slices(facts: Facts, _box: Box) -> Finding | None:
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


def _hidden(facts: Facts, box: Box) -> Finding | None:
    """The cards are there; a variable hides them from programs."""
    visible = box.environ.get("CUDA_VISIBLE_DEVICES")
    if not facts.cards or visible is None or (facts.cuda.error and "Error 100" not in facts.cuda.error):
        return None
    text = f"CUDA sees no card, although the driver lists {len(facts.cards)}: CUDA_VISIBLE_DEVICES is {visible!r}"
    return Finding(ID, FAIL, text, *explain("No CUDA GPUs are available"))


def _no_card_mode(facts: Facts, box: Box) -> Finding | None:
    """The platform's cheap mode for setting up: there is no GPU on purpose."""
    if facts.cards or facts.nodes or not no_gpu_mode(box.platform, box.limits):
        return None
    return Finding(
        ID,
        SKIP,
        f"{box.platform.name} in no-GPU mode (无卡模式): no card on purpose, so it was not checked",
        f"The memory limit of {gib(box.limits.memory)} is that of this mode.",
        "Set the box up at leisure; then start it with its GPU and run `crab check` again.",
    )


def _no_driver(facts: Facts, box: Box) -> Finding | None:
    """No library of the driver reached the box."""
    if facts.cuda.path or facts.nvml.path or (facts.smi and facts.smi.ran):
        return None
    text = "no NVIDIA driver in this box"
    if facts.nodes:
        cause = f"The devices are there ({', '.join(facts.nodes)}), the driver's libraries are not."
        return Finding(ID, FAIL, f"{text}, although it was given a card", cause, DOCKER)
    if facts.on_bus and box.platform.kind == "vm":
        cause = "The card is on the bus of this virtual machine, and no driver is installed."
        return Finding(ID, FAIL, text, cause, "Take the platform's image with a driver, or install one in the VM.")
    return Finding(ID, SKIP, f"{text}: no GPU was checked", _why_none(facts, box), f"{START} {DOCKER}")


def _silent(facts: Facts, _box: Box) -> Finding | None:
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


def _no_device(facts: Facts, box: Box) -> Finding:
    """The driver answers: there is no card."""
    if facts.cards:
        text = f"CUDA sees no card, although the driver lists {len(facts.cards)}"
        return Finding(ID, FAIL, text, *explain(facts.cuda.error or "No CUDA GPUs are available"))
    text = f"the driver{f' {facts.version}' if facts.version else ''} answers, but there is no device"
    return Finding(ID, SKIP, f"{text}: no GPU was checked", _why_none(facts, box), START)


def _why_none(facts: Facts, box: Box) -> str:
    if box.platform.row.no_gpu_memory is not None:
        return f"On {box.platform.name} the likely cause is no-GPU mode (无卡模式)."
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
