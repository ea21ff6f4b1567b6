"""The process that asks NVML about the cards: a line on its input is a question, a line on its output the answer.

It stays in the driver between questions, so that it also hears of errors (Xid) that came meanwhile.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

from hermitcrab.box.check import library
from hermitcrab.box.check.nvml import NAME

LOST = 15  # NVML_ERROR_GPU_IS_LOST
XID = 8  # nvmlEventTypeXidCriticalError
MOST_EVENTS = 100
TEMPERATURE = 0  # of the GPU itself
UNCORRECTED, SINCE_DRIVER = 1, 0


class _Event(ctypes.Structure):
    """nvmlEventData_t."""

    _fields_ = (
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def serve(root: str) -> None:
    """Answer until the input ends."""
    found = library.load(NAME, Path(root))
    code = library.call(found.handle, "nvmlInit_v2") if found.handle else None
    error = "" if code == 0 else found.error or f"NVML does not start (error {code})"
    devices = _devices(found.handle) if not error else {}
    events = _listen(found.handle, devices) if not error else None
    for _ in sys.stdin.buffer:
        cards = [_card(found.handle, index, device) for index, device in devices.items()]
        xids = _xids(found.handle, events, devices) if events else []
        print(json.dumps({"error": error, "cards": cards, "xids": xids}), flush=True)


def _devices(nvml: Any) -> dict[int, ctypes.c_void_p]:
    found = {}
    for index in range(library.number(nvml, "nvmlDeviceGetCount_v2") or 0):
        device = ctypes.c_void_p()
        if library.call(nvml, "nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device)) == 0:
            found[index] = device
    return found


def _card(nvml: Any, index: int, device: ctypes.c_void_p) -> dict[str, Any]:
    rates = (ctypes.c_uint * 2)()  # gpu, memory
    code = library.call(nvml, "nvmlDeviceGetUtilizationRates", device, rates)
    memory = (ctypes.c_ulonglong * 3)()  # total, free, used
    known = library.call(nvml, "nvmlDeviceGetMemoryInfo", device, memory)
    big = ctypes.c_ulonglong
    return {
        "number": index,
        "util": rates[0] if code == 0 else None,
        "memory": memory[2] if known == 0 else None,
        "total": memory[0] if known == 0 else None,
        "temperature": library.number(nvml, "nvmlDeviceGetTemperature", device, TEMPERATURE),
        "throttle": library.number(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", device, kind=big),
        "ecc": library.number(nvml, "nvmlDeviceGetTotalEccErrors", device, UNCORRECTED, SINCE_DRIVER, kind=big),
        "lost": LOST in {code, known},
    }


def _listen(nvml: Any, devices: dict[int, ctypes.c_void_p]) -> ctypes.c_void_p | None:
    """Ask to be told of errors; None where this driver or box does not allow it."""
    events = ctypes.c_void_p()
    if library.call(nvml, "nvmlEventSetCreate", ctypes.byref(events)) != 0:
        return None
    heard = [
        library.call(nvml, "nvmlDeviceRegisterEvents", device, ctypes.c_ulonglong(XID), events) == 0
        for device in devices.values()
    ]
    return events if any(heard) else None


def _xids(nvml: Any, events: ctypes.c_void_p, devices: dict[int, ctypes.c_void_p]) -> list[tuple[int, int]]:
    indexes = {device.value: index for index, device in devices.items()}
    found = []
    for _ in range(MOST_EVENTS):
        event = _Event()
        if library.call(nvml, "nvmlEventSetWait_v2", events, ctypes.byref(event), ctypes.c_uint(0)) != 0:
            break
        if event.type == XID:
            found.append((indexes.get(event.device, -1), int(event.data)))
    return found
