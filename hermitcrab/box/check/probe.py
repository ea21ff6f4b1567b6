"""What runs in the child and imports torch: what it says of itself."""

from __future__ import annotations

import platform
import re
import warnings
from importlib import metadata
from typing import Any

from hermitcrab.box.check.build import Torch


def torch_facts(use: bool) -> Torch:
    """Import torch and ask it; ``use`` touches CUDA, which needs a GPU."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = bool(torch.cuda.is_available()) if use else False
        error = _first_use(torch) if use else ""
    said = [
        str(warning.message) for warning in caught if "CUDA" in str(warning.message) or "GPU" in str(warning.message)
    ]
    return Torch(
        str(torch.__version__),
        torch.version.cuda,
        tuple(_archs(torch)),
        ".".join(platform.python_version_tuple()[:2]),
        _packages(),
        int(torch.cuda.device_count()) if available else 0,
        "\n".join(said),
        error,
    )


def _packages() -> dict[str, str]:
    """Return the versions that an import would take: of several on the path, the first."""
    found = reversed(list(metadata.distributions()))
    return {re.sub(r"[-_.]+", "-", str(dist.metadata["Name"])).lower(): dist.version for dist in found}


def _first_use(torch: Any) -> str:
    """Touch the card: is_available() also says True where nothing runs."""
    try:
        for index in range(torch.cuda.device_count()):
            torch.zeros(1, device=f"cuda:{index}")
        torch.cuda.init()
    except Exception as error:  # noqa: BLE001 - torch raises whatever it likes
        return f"{type(error).__name__}: {error}"
    return ""


def _archs(torch: Any) -> list[str]:
    """List what the build has code for, also where no GPU is and get_arch_list() is empty."""
    try:
        return list(torch.cuda.get_arch_list()) or str(torch._C._cuda_getArchFlags() or "").split()  # noqa: SLF001
    except AttributeError:
        return []
