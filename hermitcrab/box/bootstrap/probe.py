"""Run by somebody else's Python: tells what its torch is, and whether it computes here."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from typing import Any

said: dict[str, Any] = {
    "python": ".".join(map(str, sys.version_info[:2])),
    "prefix": sys.prefix,
    "executable": sys.executable,
    "site": sysconfig.get_paths()["purelib"],
    "scripts": sysconfig.get_paths()["scripts"],
    "managed": os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED"))
    and sys.prefix == sys.base_prefix,
}
try:
    import torch

    said["torch"] = str(torch.__version__)
    said["cuda"] = torch.version.cuda
    said["devices"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(said["devices"]):
        a = torch.arange(64, dtype=torch.float32).reshape(8, 8)
        there = a.to(f"cuda:{index}")
        if not torch.equal((there @ there).cpu(), a @ a):
            raise RuntimeError(f"a matrix product on GPU {index} is wrong")
    (torch.ones(2, 2) @ torch.ones(2, 2)).sum().item()
except BaseException as error:  # noqa: BLE001 - torch raises whatever it likes
    said["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
try:
    from importlib.metadata import distributions

    said["packages"] = {(one.metadata["Name"] or "").lower(): one.version for one in distributions()}
except ImportError:
    said["packages"] = {}
sys.stdout.write("\n" + json.dumps(said) + "\n")
sys.stdout.flush()
os._exit(0)
