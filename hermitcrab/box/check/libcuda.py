"""What libcuda says: the CUDA it knows and the devices a program may use. No context is made."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, NamedTuple

from hermitcrab.box.check import library

NAME = "libcuda.so.1"
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...
# For drivers that cannot say it themselves; the numbers are those of torch's messages.
ERRORS = {
    3: "initialization error",
    34: "CUDA driver is a stub library",
    46: "CUDA-capable device(s) is/are busy or unavailable",
    100: "no CUDA-capable device is detected",
    802: "system not yet initialized",
    803: "system has unsupported display driver / cuda driver combination",
    804: "forward compatibility was attempted on non supported HW",
    999: "unknown error",
}


class Device(NamedTuple):
    """One device a program may use; a MIG slice is one."""

    name: str
    sm: int | None  # 89 is compute capability 8.9
    memory: int | None


class Cuda(NamedTuple):
    """What libcuda said; without a path it could not be loaded."""

    path: str = ""
    error: str = ""
    version: int | None = None  # 12020 is CUDA 12.2
    devices: tuple[Device, ...] = ()


def read(root: Path) -> Cuda:
    """Ask libcuda all there is to ask without making a context."""
    found = library.load(NAME, root)
    if found.handle is None:
        return Cuda(error=found.error)
    version = library.number(found.handle, "cuDriverGetVersion", kind=ctypes.c_int)
    code = library.call(found.handle, "cuInit", 0)
    if code != 0:
        return Cuda(found.path, _error(found.handle, code), version)
    count = library.number(found.handle, "cuDeviceGetCount", kind=ctypes.c_int)
    devices = tuple(_device(found.handle, index) for index in range(count or 0))
    return Cuda(found.path, "" if count is not None else "the number of devices is unknown", version, devices)


def _device(cuda: Any, index: int) -> Device:
    device = ctypes.c_int(index)
    library.call(cuda, "cuDeviceGet", ctypes.byref(device), index)
    name = ctypes.create_string_buffer(256)
    named = library.call(cuda, "cuDeviceGetName", name, len(name), device) == 0
    memory = ctypes.c_size_t()
    known = library.call(cuda, "cuDeviceTotalMem_v2", ctypes.byref(memory), device) == 0
    major, minor = (_attribute(cuda, which, device) for which in (MAJOR, MINOR))
    return Device(
        name.value.decode(errors="replace") if named else "",
        None if major is None or minor is None else 10 * major + minor,
        memory.value if known else None,
    )


def _attribute(cuda: Any, which: int, device: ctypes.c_int) -> int | None:
    value = ctypes.c_int()
    done = library.call(cuda, "cuDeviceGetAttribute", ctypes.byref(value), which, device)
    return value.value if done == 0 else None


def _error(cuda: Any, code: int | None) -> str:
    """Say an error as torch does, so that the catalogue of messages knows it."""
    if code is None:
        return "it has no cuInit: not a driver's library"
    said = ctypes.c_char_p()
    library.call(cuda, "cuGetErrorString", code, ctypes.byref(said))
    text = said.value.decode(errors="replace") if said.value else ERRORS.get(code, "unknown to this check")
    return f"Error {code}: {text}"
