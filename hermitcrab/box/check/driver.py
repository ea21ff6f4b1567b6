"""The driver: what libcuda, NVML, /proc and, last, nvidia-smi let be known of it, and the findings on that."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from hermitcrab.box.check import banner, libcuda, nvml
from hermitcrab.box.check.child import Failure
from hermitcrab.box.check.findings import FAIL, PASS, SKIP, WARN, Finding
from hermitcrab.box.check.messages import cuda_name, explain
from hermitcrab.box.check.nvml import Card, Nvml

NVIDIA = "0x10de"  # the vendor on the PCI bus
HANGS = "the driver hangs"


class Facts(NamedTuple):
    """All that was found out without torch."""

    cuda: libcuda.Cuda = libcuda.Cuda()
    nvml: Nvml = Nvml()
    smi: banner.Smi | None = None  # asked only when NVML does not answer
    module: str = ""  # the loaded kernel module's version: the host's, also in a box without its GPU
    nodes: tuple[str, ...] = ()  # /dev/nvidia0 and so on
    on_bus: int = 0

    @property
    def version(self) -> str:
        """The driver's version from the best source."""
        return self.nvml.driver or self.module or (self.smi.driver if self.smi else "")

    @property
    def knows(self) -> int | None:
        """The CUDA that the driver knows, as 12020."""
        return self.cuda.version or self.nvml.cuda or (self.smi.cuda if self.smi else None)

    @property
    def cards(self) -> tuple[Card, ...]:
        """The cards as NVML lists them, else nvidia-smi, else libcuda."""
        listed = self.nvml.cards or (self.smi.cards if self.smi else ())
        return listed or tuple(Card(device.name, device.memory) for device in self.cuda.devices)


def read(root: Path) -> Facts:
    """Find out everything; run in a child, since a sick driver hangs or crashes."""
    cuda, answer = libcuda.read(root), nvml.read(root)
    return Facts(
        cuda,
        answer,
        banner.ask() if answer.error else None,
        _module(root),
        tuple(sorted(path.name for path in root.glob("dev/nvidia[0-9]*"))),
        sum(_is_card(folder) for folder in root.glob("sys/bus/pci/devices/*")),
    )


def unanswered(failure: Failure) -> Facts:
    """The facts when reading them crashed or hung."""
    return Facts(libcuda.Cuda("libcuda.so.1", f"{HANGS} ({failure.why})"))


def library_finding(facts: Facts, missing: str) -> Finding:
    """Say whether libcuda loads; ``missing`` is the status where there is no GPU."""
    cuda = facts.cuda
    if cuda.error.startswith(HANGS):
        return Finding("driver.libcuda", FAIL, cuda.error, *explain(cuda.error))
    if not cuda.path:
        # A box without a GPU has no such file: the verdict says why, once.
        plain = missing == SKIP and "No such file" in cuda.error
        text = f"libcuda does not load: {cuda.error}"
        return Finding("driver.libcuda", missing, text, *(() if plain else explain(cuda.error)))
    if "/" in cuda.path:
        text = f"libcuda loads from {cuda.path} only: the loader does not know the folder, so torch will not find it"
        remedy = f"echo {Path(cuda.path).parent} > /etc/ld.so.conf.d/nvidia.conf && ldconfig"
        return Finding("driver.libcuda", WARN, text, "The driver is mounted where the loader does not look.", remedy)
    return Finding("driver.libcuda", PASS, f"{cuda.path} loads")


def version_finding(facts: Facts, missing: str) -> Finding:
    """Say the driver's version; an unknown one is no pass."""
    knows = f"it knows CUDA {cuda_name(facts.knows)}" if facts.knows else "the CUDA it knows is unknown"
    version = f"driver {facts.version}" if facts.version else "the driver's version is unknown"
    text = f"{version}; {knows}"
    sick = facts.nvml.error if facts.nvml.path else ""
    if not sick and facts.version and facts.knows:
        return Finding("driver.version", PASS, text)
    status = WARN if facts.cuda.devices else missing
    cause, remedy = ("", "") if status == SKIP else explain(sick or facts.nvml.error or facts.cuda.error)
    return Finding("driver.version", status, f"{text}; {sick}" if sick else text, cause, remedy)


def _module(root: Path) -> str:
    try:
        text = (root / "proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return ""
    found = re.search(r"Kernel Module\D*?(?:for \S+)?\s+(\d{3,}(?:\.\d+)+)", text)
    return found[1] if found else ""


def _is_card(folder: Path) -> bool:
    """Say whether a device on the bus is an NVIDIA display or 3D controller."""
    try:
        vendor, kind = ((folder / name).read_text().strip() for name in ("vendor", "class"))
    except OSError:
        return False
    return vendor == NVIDIA and kind.startswith("0x03")
