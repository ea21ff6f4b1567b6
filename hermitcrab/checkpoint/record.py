"""What a checkpoint tells about its run besides the state: versions, card, revision, command without secrets."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path
from typing import Any, Mapping

import torch

from hermitcrab.box.mask import mask_words

COMPARED = ("torch", "cuda", "cudnn", "gpu", "world_size", "deterministic")  # another one may give other bits


def environment() -> dict[str, Any]:
    """Describe where this run computes and what was started."""
    cuda = torch.cuda.is_available()
    return {
        "argv": mask_words(sys.argv),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "git": revision(Path(sys.argv[0]).resolve().parent if sys.argv[0] else Path.cwd()),
        "gpu": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())] if cuda else [],
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name what is not as it was, and may change the bits."""
    return [f"{name} was {then.get(name)}, is {now[name]}" for name in COMPARED if then.get(name) != now.get(name)]


def revision(folder: Path) -> dict[str, Any]:
    """Return the commit of the code, and whether files differ from it; nothing where there is no Git."""
    status, commit = _git(folder, "rev-parse", "HEAD")
    if status:
        return {}
    status, changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(changed) if status == 0 else None}


def _git(folder: Path, *words: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return 1, ""
    return done.returncode, done.stdout.strip()
