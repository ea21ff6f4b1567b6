"""Caches on the data disk: the system disk of a rented box is small, and is what gets saved as an image."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Mapping

# What each tool asks for its cache, and the folder it gets. HF_HOME rather than its parts: whoever sets
# HF_HOME later moves all of it.
CACHES = (
    ("PIP_CACHE_DIR", "pip"),
    ("UV_CACHE_DIR", "uv"),
    ("HF_HOME", "huggingface"),
    ("TORCH_HOME", "torch"),
)
_TEXT = """\
# hermitcrab: caches on the data disk, made by `crab setup`. A variable that is set already stays.
crab_caches={folder}
if [ -w {disk} ]; then
    # `hf auth login` keeps its token in HF_HOME: one that is there already must still be found.
    if [ -z "${{HF_HOME:-}}" ] && [ -f "$HOME/.cache/huggingface/token" ]; then
        export HF_TOKEN_PATH="${{HF_TOKEN_PATH:-$HOME/.cache/huggingface/token}}"
    fi
{exports}
    # uv cannot link from one disk to another, and would say so at every install.
    export UV_LINK_MODE="${{UV_LINK_MODE:-copy}}"
fi
unset crab_caches
"""


def data_disk(root: Path, environ: Mapping[str, str]) -> str | None:
    """Return the path of the data disk, when the platform has one that can be written to."""
    from hermitcrab.box import platform

    disk = platform.detect(root, environ).data
    if disk is None or os.path.realpath(disk.path) == "/":
        return None
    return disk.path if os.access(str(root / disk.path.lstrip("/")), os.W_OK) else None


def render(disk: str) -> bytes:
    """Return the lines for the profile."""
    rows = (f'    export {name}="${{{name}:-$crab_caches/{folder}}}"' for name, folder in CACHES)
    text = _TEXT.format(folder=shlex.quote(f"{disk}/.cache"), disk=shlex.quote(disk), exports="\n".join(rows))
    return text.encode("utf-8", "surrogateescape")
