"""Shared libraries of the driver by ctypes: found where a driver may be mounted, asked without faith."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, NamedTuple

# Where a driver is mounted without the loader being told.
FOLDERS = (
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "run/opengl-driver/lib",
)


class Library(NamedTuple):
    """A loaded library, or why it could not be loaded."""

    handle: Any
    path: str = ""
    error: str = ""


def load(name: str, root: Path) -> Library:
    """Load a library as any program would, else from the folders where drivers are mounted."""
    try:
        return Library(ctypes.CDLL(name), name)
    except OSError as error:
        said = str(error)
    for path in (root / folder / name for folder in FOLDERS):
        if path.exists():
            try:
                return Library(ctypes.CDLL(str(path)), str(path))
            except OSError as error:
                said = str(error)
    return Library(None, error=said)


def call(handle: Any, name: str, *arguments: Any) -> int | None:
    """Call a function and return its status; None where this version of the library has none."""
    function = getattr(handle, name, None)
    return None if function is None else int(function(*arguments))


def number(handle: Any, name: str, *arguments: Any, kind: Any = ctypes.c_uint) -> int | None:
    """Call a function whose last argument takes a number; None when it gives none."""
    value = kind()
    done = call(handle, name, *arguments, ctypes.byref(value))
    return int(value.value) if done == 0 else None


def text(handle: Any, name: str, *arguments: Any) -> str:
    """Call a function whose last arguments take a text and its length; empty when it gives none."""
    buffer = ctypes.create_string_buffer(96)
    done = call(handle, name, *arguments, buffer, ctypes.c_uint(len(buffer)))
    return buffer.value.decode(errors="replace") if done == 0 else ""
