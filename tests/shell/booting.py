"""The script's own shell functions, run in a box where every other program is a stand-in."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
BOOT: Final = ROOT / "templates/boot"
SHELLS: Final = tuple(name for name in ("bash", "dash") if shutil.which(name))
ORDER: Final = ("say.sh", "options.sh", "box.sh", "apt.sh", "python.sh", "main.sh")  # as in the template


def part(name: str, code: str, tmp_path: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run code with some of the script's functions, as sh."""
    names = [one for one in ORDER if one in ("say.sh", name) or name == "all"]
    text = "".join((BOOT / one).read_text() for one in names)
    return subprocess.run(
        ["sh", "-u", "-c", f'work="{tmp_path}" log="{tmp_path}/log" quiet=""\n{text}\n{code}'],
        env={**os.environ, "HERMITCRAB_APT_PAUSE": "0", "HERMITCRAB_GUARD": str(tmp_path / "own/guard"), **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def program(folder: Path, name: str, code: str) -> Path:
    """A program that stands in for a real one."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)
    return folder
