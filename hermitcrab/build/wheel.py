"""The box wheel: the part of hermitcrab that lives on a box, as a wheel that is the same at every build.

Home-made because it must be identical byte for byte on every machine: files are stored, not
compressed, so that no zlib version has a say, and stand in a fixed order with a fixed date.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hermitcrab import __version__
from hermitcrab.box.bootstrap import wheels

ROOT: Final = Path(__file__).resolve().parents[2]
NAME: Final = wheels.NAME
INFO: Final = wheels.INFO
AT_HOME: Final = ("build", "connect", "matrix.py")  # what a box has no use for
FILES: Final = "[a-z]*[a-z]"  # how the names of ours look; an editor's swap files and copies do not
HOME_FILES: Final = "hermitcrab/box/home_files"
METADATA: Final = f"""\
Metadata-Version: 2.1
Name: hermitcrab
Version: {__version__}
Summary: A training run that moves between rented GPUs and stays the same.
License: Apache-2.0
Requires-Python: >=3.8
"""
WHEEL: Final = "Wheel-Version: 1.0\nGenerator: hermitcrab\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
ENTRY_POINTS: Final = "[console_scripts]\ncrab = hermitcrab.cli:main\n"


def box_wheel(root: Path = ROOT) -> bytes:
    """Return the wheel of the box's part of the package that lies under ``root``."""
    return wheels.pack(content(root))


def content(root: Path = ROOT) -> dict[str, bytes]:
    """What the wheel holds, by name; a box packs it anew from these."""
    return {
        **_sources(root),
        f"{INFO}/METADATA": METADATA.encode(),
        f"{INFO}/WHEEL": WHEEL.encode(),
        f"{INFO}/entry_points.txt": ENTRY_POINTS.encode(),
    }


def _sources(root: Path) -> dict[str, bytes]:
    """The package's files by their name in the wheel, with LF line ends whatever git made of them."""
    package, home = root / "hermitcrab", root / "templates" / "home"
    paths = sorted(path for kind in ("[!.]*.py", "[!.]*.json") for path in package.rglob(kind))
    kept = [path for path in paths if path.relative_to(package).parts[0] not in AT_HOME]
    named = {path.relative_to(root).as_posix(): path for path in kept}
    # The settings of templates/home, where hermitcrab.box.shipped looks for them.
    named |= {f"{HOME_FILES}/{path.name}": path for path in sorted(home.glob(FILES)) if path.is_file()}
    return {name: path.read_bytes().replace(b"\r\n", b"\n") for name, path in named.items()}
