"""From the matrix to the committed files: one folder per combo, complete for `docker build`.

All choices are made here; the template only puts values in their places.
"""

from __future__ import annotations

import json
import posixpath
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jinja2

from hermitcrab.box import shipped
from hermitcrab.box.files import write as write_file
from hermitcrab.build import bootstrap, lock, readme, wheel
from hermitcrab.errors import UserError
from hermitcrab.matrix import Combo, Matrix

ROOT: Final = Path(__file__).resolve().parents[2]
TEMPLATES: Final = ROOT / "templates"
IMAGES: Final = ROOT / "images"
README: Final = ROOT / "README.md"  # its table of combos

LAST_LAYER: Final = "rest"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Installs the wheels of the lock that grep finds by ``wheels``, and sorts their files into layers.

    ``layers`` has a line for each: its name, and what it takes from site-packages. ``last`` takes what nobody does.
    """

    name: str
    wheels: str
    layers: str
    last: str = ""

    @property
    def names(self) -> list[str]:
        """The layers it fills."""
        return [line.split()[0] for line in self.layers.splitlines()] + [self.last] * bool(self.last)


# Calmest layers first, each below 2 GB compressed: cuDNN, NCCL and their like move between torch releases of one CUDA,
# the rest of NVIDIA's files do not. A stage of their own, so that they are stored while torch is stripped: all that its
# wheels bring, but for the venv's own _virtualenv.
STAGES: Final = (
    Stage(
        name="nvidia",
        wheels="^nvidia-",
        layers="cudnn nvidia/cudnn nvidia/nccl nvidia/cusparselt nvidia/nvshmem\ncuda [!_]*",
    ),
    Stage(name="wheels", wheels="-v ^nvidia-", layers="torch torch torchgen functorch triton", last=LAST_LAYER),
)

# What the stages that build need, and nothing of it reaches the image.
TOOL_PACKAGES: Final = ("python3", "python3-pip-whl", "binutils")

HOME: Final = shipped.SYSTEM  # one source for image and box
LICENCES: Final = "Apache-2.0 AND BSD-3-Clause AND LicenseRef-NVIDIA-CUDA-EULA"


def render(matrix: Matrix) -> dict[Path, bytes]:
    """Every rendered file of every combo, by its path.

    Raises UserError when a lock does not fit its row.
    """
    box_wheel = wheel.box_wheel()
    files: dict[Path, bytes] = {}
    for combo in matrix.combos:
        lock.check(combo, matrix)
        folder = IMAGES / combo.id
        files[folder / "Dockerfile"] = dockerfile(matrix, combo).encode()
        files[folder / wheel.NAME] = box_wheel
        files[folder / ".dockerignore"] = b"*\n!Dockerfile\n!requirements.lock\n!*.whl\n"
    files.update(bootstrap.render(matrix))
    files[README] = readme.render(README.read_text(encoding="utf-8"), matrix).encode()
    return files


def dockerfile(matrix: Matrix, combo: Combo) -> str:
    """The Dockerfile of one combo."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  # this is a Dockerfile, not HTML
    )
    environment.filters["dirname"] = posixpath.dirname
    try:
        return environment.get_template("Dockerfile.j2").render(_context(matrix, combo))
    except jinja2.TemplateError as error:
        line = f":{error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise UserError(f"templates/Dockerfile.j2{line}: {error}") from error


def write(matrix: Matrix) -> list[Path]:
    """Write what changed, remove what is left over, and return the paths touched."""
    files = render(matrix)
    changed = [path for path, data in files.items() if _read(path) != data]
    for path in changed:
        write_file(path, files[path])
    gone = list(_left_over(matrix, files))
    for path in gone:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return changed + gone


def check(matrix: Matrix, *combos: Combo) -> None:
    """Raise UserError naming each file that is stale, missing or left over; of all combos, or of some."""
    folders = {IMAGES / combo.id for combo in combos}
    files = {path: data for path, data in render(matrix).items() if not combos or path.parent in folders}
    problems = [f"{_name(path)} is {_state(path)}" for path, data in files.items() if _read(path) != data]
    if not combos:
        problems += [f"{_name(path)} is left over" for path in _left_over(matrix, files)]
    if problems:
        raise UserError("; ".join(problems) + " - run `invoke render` and commit the result")


def _context(matrix: Matrix, combo: Combo) -> dict[str, Any]:
    paths = sorted((TEMPLATES / "parts").glob(wheel.FILES))
    parts = {path.name: path.read_text(encoding="utf-8") for path in paths}
    return {
        "combo": combo,
        "epoch": matrix.epoch,
        "uv": matrix.tools["uv"],
        "packages": " ".join(matrix.packages),
        "tool_packages": " ".join(TOOL_PACKAGES),
        "backend": "" if combo.wheels == "pypi" else f"--torch-backend {combo.wheels}",
        "wheels": _stages(combo),
        "parts": {name: text.rstrip("\n") for name, text in parts.items()},
        "files": list(_home_files(combo)),
        "wheel": wheel.NAME,
        "wanted": json.dumps(bootstrap.wanted(combo), indent=1),
        "labels": list(_labels(combo).items()),
    }


def _stages(combo: Combo) -> list[Stage]:
    """The stages this combo needs: a torch from an index may carry NVIDIA's libraries inside itself."""
    nvidia = any(pin.name.startswith("nvidia-") for pin in lock.read(lock.lock_path(combo)))
    return [stage for stage in STAGES if nvidia or stage.name != "nvidia"]


def _home_files(combo: Combo) -> Iterator[tuple[str, str]]:
    """Path and text of each setting; the template writes them by heredoc."""
    for target, source in HOME:
        yield target, (TEMPLATES / "home" / source).read_text(encoding="utf-8").rstrip("\n")
    yield "/etc/hermitcrab/constraints.txt", "\n".join(_constraints(combo))


def _constraints(combo: Combo) -> list[str]:
    """What a later `pip install` may not move: torch, its companions and the CUDA they were built with."""
    own = {"torch", "torchvision", "torchaudio", "triton"}
    pins = lock.read(lock.lock_path(combo))
    kept = [f"{pin.name}=={pin.version}" for pin in pins if pin.name in own or pin.name.startswith("nvidia-")]
    old_numpy = any(pin.name == "numpy" and pin.version.startswith("1.") for pin in pins)
    return [*kept, "numpy<2"] if old_numpy else kept


def _labels(combo: Combo) -> dict[str, str]:
    return {
        "org.opencontainers.image.title": f"hermitcrab:{combo.id}",
        "org.opencontainers.image.licenses": LICENCES,
        "org.opencontainers.image.revision": "${REVISION}",
        "hermitcrab.combo": combo.id,
        "hermitcrab.cuda": combo.cuda,
        "hermitcrab.torch": combo.torch,
        "hermitcrab.driver": combo.driver,
        "hermitcrab.arch": " ".join(f"sm_{sm}" for sm in combo.arch),
        "hermitcrab.lock": f"sha256:{lock.digest(lock.lock_path(combo))}",
    }


def _left_over(matrix: Matrix, files: dict[Path, bytes]) -> Iterator[Path]:
    locks = {lock.lock_path(combo) for combo in matrix.combos}
    for path in sorted(IMAGES.glob("*/*")):
        if path not in files and path not in locks:
            yield path


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _state(path: Path) -> str:
    return "stale" if path.exists() else "missing"


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
