"""What NVML says: the driver's version and each card's memory, health, slices and users."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, NamedTuple

from hermitcrab.box.check import library

NAME = "libnvidia-ml.so.1"
UNKNOWN_MEMORY = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE
# For libraries that cannot say it themselves; the texts are those of nvidia-smi.
ERRORS = {
    9: "Driver Not Loaded",
    15: "GPU is lost",
    18: "Driver/library version mismatch",
    999: "Unknown Error",
}


class Slice(NamedTuple):
    """One MIG device of a card."""

    name: str
    memory: int | None


class Process(NamedTuple):
    """A process that computes on the card."""

    pid: int
    memory: int | None


class Card(NamedTuple):
    """One card; None is unknown, which is not zero."""

    name: str = ""
    memory: int | None = None
    used: int | None = None
    mig: bool | None = None
    slices: tuple[Slice, ...] = ()
    ecc_errors: int | None = None
    throttle: int | None = None  # a mask of reasons
    link: tuple[int, int] | None = None  # the best PCIe generation, the lanes now
    processes: tuple[Process, ...] = ()


class Nvml(NamedTuple):
    """What NVML said; without a path it could not be loaded."""

    path: str = ""
    error: str = ""
    driver: str = ""
    cuda: int | None = None
    cards: tuple[Card, ...] = ()


def read(root: Path) -> Nvml:
    """Ask NVML about the driver and every card, and shut it down again."""
    found = library.load(NAME, root)
    if found.handle is None:
        return Nvml(error=found.error)
    nvml = found.handle
    code = library.call(nvml, "nvmlInit_v2")
    if code != 0:
        return Nvml(found.path, _error(nvml, code))
    driver = library.text(nvml, "nvmlSystemGetDriverVersion")
    cuda = library.number(nvml, "nvmlSystemGetCudaDriverVersion_v2", kind=ctypes.c_int)
    count = library.number(nvml, "nvmlDeviceGetCount_v2")
    cards = tuple(_card(nvml, index) for index in range(count or 0))
    library.call(nvml, "nvmlShutdown")
    return Nvml(found.path, "" if count is not None else "the number of cards is unknown", driver, cuda, cards)


def _card(nvml: Any, index: int) -> Card:
    device = ctypes.c_void_p()
    if library.call(nvml, "nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device)) != 0:
        return Card()
    memory, used = _memory(nvml, device)
    mig = ctypes.c_uint()
    pending = ctypes.c_uint()
    asked = library.call(nvml, "nvmlDeviceGetMigMode", device, ctypes.byref(mig), ctypes.byref(pending))
    return Card(
        library.text(nvml, "nvmlDeviceGetName", device),
        memory,
        used,
        bool(mig.value) if asked == 0 else None,
        tuple(_slices(nvml, device)) if asked == 0 and mig.value else (),
        # uncorrected, and since the driver was loaded
        library.number(nvml, "nvmlDeviceGetTotalEccErrors", device, 1, 0, kind=ctypes.c_ulonglong),
        library.number(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", device, kind=ctypes.c_ulonglong),
        _link(nvml, device),
        _processes(nvml, device),
    )


def _memory(nvml: Any, device: ctypes.c_void_p) -> tuple[int | None, int | None]:
    values = (ctypes.c_ulonglong * 3)()  # total, free, used
    if library.call(nvml, "nvmlDeviceGetMemoryInfo", device, values) != 0 or not values[0]:
        return None, None
    return values[0], values[2]


def _slices(nvml: Any, device: ctypes.c_void_p) -> list[Slice]:
    found = []
    for index in range(library.number(nvml, "nvmlDeviceGetMaxMigDeviceCount", device) or 0):
        handle = ctypes.c_void_p()
        if library.call(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", device, index, ctypes.byref(handle)) == 0:
            found.append(Slice(library.text(nvml, "nvmlDeviceGetName", handle), _memory(nvml, handle)[0]))
    return found


def _link(nvml: Any, device: ctypes.c_void_p) -> tuple[int, int] | None:
    # The generation now is that of an idle link, which sleeps.
    generation = library.number(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", device)
    lanes = library.number(nvml, "nvmlDeviceGetCurrPcieLinkWidth", device)
    return (generation, lanes) if generation and lanes else None


class _ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t of version 2 and 3."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def _processes(nvml: Any, device: ctypes.c_void_p) -> tuple[Process, ...]:
    for version in ("_v3", "_v2"):
        count, infos = ctypes.c_uint(64), (_ProcessInfo * 64)()
        name = f"nvmlDeviceGetComputeRunningProcesses{version}"
        if library.call(nvml, name, device, ctypes.byref(count), infos) == 0:
            rows = infos[: count.value]
            return tuple(Process(row.pid, None if row.memory == UNKNOWN_MEMORY else row.memory) for row in rows)
    return ()


def _error(nvml: Any, code: int | None) -> str:
    """Say an error as nvidia-smi does, so that the catalogue of messages knows it."""
    if code is None:
        return "it has no nvmlInit_v2: not a driver's library"
    function = getattr(nvml, "nvmlErrorString", None)
    said = ""
    if function is not None:
        function.restype = ctypes.c_char_p
        said = (function(code) or b"").decode(errors="replace")
    return f"Failed to initialize NVML: {said or ERRORS.get(code, f'error {code}')}"
