"""Adopting: a torch that computes is taken, one that does not is named with its reason, and crab goes beside it."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest

from hermitcrab.box.bootstrap import adopt, beside, wheels
from hermitcrab.box.bootstrap.adopt import Torch
from hermitcrab.box.bootstrap.pick import Machine
from hermitcrab.box.bootstrap.run import Places, Run
from hermitcrab.build import wheel

NONE: Final = Machine("", ())
CARD: Final = Machine("550.54.15", (86,), ("RTX 3090",))
FAKE: Final = """
import json, os
said = json.load(open(os.path.join(os.path.dirname(__file__), "said.json")))
if "crash" in said:
    os.abort()
if "import" in said:
    raise ImportError(said["import"])
__version__ = said["version"]
float32 = "float32"
class version: cuda = said["cuda"]
class Tensor:
    def __init__(self, right=True): self.right = right
    def __matmul__(self, other): return self
    def reshape(self, *shape): return self
    def to(self, device): return Tensor(said.get("right", True))
    def cpu(self): return self
    def sum(self): return self
    def item(self): return 4
arange = ones = lambda *_, **__: Tensor()
def equal(a, b):
    if "kernel" in said:
        raise RuntimeError(said["kernel"])
    return a.right == b.right
class cuda:
    is_available = staticmethod(lambda: bool(said.get("devices")))
    device_count = staticmethod(lambda: said.get("devices", 0))
"""
GOOD: Final = {"version": "2.4.1+cu121", "cuda": "12.1"}


@pytest.fixture
def conda(tmp_path: Path) -> Path:
    """A Python of its own, where a platform's would be."""
    prefix = tmp_path / "miniconda3"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    return prefix


def give_torch(prefix: Path, **said: Any) -> None:
    """Put a torch into a Python that is what is said."""
    site = next(prefix.glob("lib/python3*/site-packages"))
    (site / "torch").mkdir(exist_ok=True)
    (site / "torch/__init__.py").write_text(FAKE)
    (site / "torch/said.json").write_text(json.dumps({**GOOD, **said}))
    info = site / "torch-2.4.1.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.4.1\n")


def found(prefix: Path, **environ: str) -> list[Torch]:
    """What is found with only this Python on the PATH."""
    return list(adopt.find({"PATH": f"{prefix}/bin", **environ}))


def own(prefix: Path, **environ: str) -> Torch:
    """The torch of this Python; the machine may have others at the well-known places."""
    return next(one for one in found(prefix, **environ) if str(one.prefix) == str(prefix))


def run(tmp_path: Path) -> Run:
    """A run of a plain user."""
    home = tmp_path / "home"
    (tmp_path / "work").mkdir(exist_ok=True)
    return Run(False, Places(home, home / "settings", home / "venv"), tmp_path / "work", {"PATH": "/usr/bin:/bin"})


def test_one_that_computes_is_adopted(conda: Path) -> None:
    """Its product on the card is right."""
    give_torch(conda, devices=1)
    one = own(conda)
    assert adopt.why_not(one, CARD) == ""
    assert (one.torch, one.cuda, one.devices) == ("2.4.1+cu121", "12.1", 1)


@pytest.mark.parametrize(
    ("said", "machine", "reason"),
    [
        ({"kernel": "no kernel image is available", "devices": 1}, CARD, "RuntimeError: no kernel image is available"),
        ({"right": False, "devices": 1}, CARD, "RuntimeError: a matrix product on GPU 0 is wrong"),
        ({"devices": 0}, CARD, "it does not see the card"),
        ({"cuda": None, "version": "2.4.1+cpu"}, NONE, "torch 2.4.1+cpu is a build without CUDA"),
        ({"import": "libcudnn.so.9: cannot open"}, NONE, "ImportError: libcudnn.so.9: cannot open"),
        ({"crash": 1}, CARD, "its torch was killed by signal 6"),
        ({"cuda": "13.0"}, Machine("550.54.15", ()), "built for CUDA 13.0, and driver 550.54.15 is older than 580"),
    ],
)
def test_one_that_does_not_is_left_and_named(said: dict[str, Any], machine: Machine, reason: str, conda: Path) -> None:
    """An import proves nothing; whatever it does to itself, the bootstrap goes on."""
    give_torch(conda, **said)
    asked = own(conda) if "crash" not in said else adopt.ask(str(conda / "bin/python"))
    assert reason in adopt.why_not(asked, machine)


def test_without_a_card_the_build_decides(conda: Path) -> None:
    """No-GPU mode: a CUDA build that the driver runs, if there is one to be seen."""
    give_torch(conda)
    assert adopt.why_not(own(conda), NONE) == ""
    assert adopt.why_not(own(conda), Machine("535.104.05", ())) == ""


@pytest.mark.parametrize(
    ("asked", "fits"),
    [({"cuda": "12.1"}, True), ({"torch": "2.4"}, True), ({"cuda": "12.4"}, False), ({"torch": "2.4.0"}, False)],
)
def test_what_was_asked_for_is_what_it_must_be(asked: dict[str, str], fits: bool, conda: Path) -> None:
    """--cuda and --torch hold for an adopted torch, too."""
    give_torch(conda)
    assert (adopt.why_not(own(conda), NONE, **asked) == "") is fits


def test_a_python_without_torch_is_not_asked(conda: Path) -> None:
    """Nor one that is an environment of our own, nor one twice."""
    assert [one for one in found(conda) if str(one.prefix) == str(conda)] == []
    give_torch(conda)
    assert len([one for one in found(conda, VIRTUAL_ENV=str(conda)) if str(one.prefix) == str(conda)]) == 1
    skipped = adopt.find({"PATH": f"{conda}/bin"}, skip=conda)
    assert [one for one in skipped if str(one.prefix) == str(conda)] == []


def test_what_is_protected(conda: Path) -> None:
    """torch, its companions and NVIDIA's libraries, as they are."""
    give_torch(conda)
    assert own(conda).pins == ["torch==2.4.1"]


def test_crab_goes_beside_it_and_out_again(conda: Path, tmp_path: Path) -> None:
    """It runs in that Python, a second time changes nothing, and removal leaves no trace."""
    give_torch(conda)
    before = {path for path in conda.rglob("*") if "__pycache__" not in path.parts}
    one, data = own(conda), wheel.box_wheel()
    beside.install(run(tmp_path), one, data)
    crab = conda / "bin/crab"
    assert subprocess.run([str(crab), "--version"], capture_output=True, text=True, check=True).stdout.startswith(
        "crab "
    )
    assert wheels.is_installed(data, one.site)
    stamp = (one.site / wheels.INFO / "RECORD").stat().st_mtime_ns
    beside.install(run(tmp_path), one, data)
    assert (one.site / wheels.INFO / "RECORD").stat().st_mtime_ns == stamp
    beside.remove(one.site, one.scripts)
    assert {path for path in conda.rglob("*") if "__pycache__" not in path.parts} == before


def test_an_externally_managed_python_is_not_touched(conda: Path, tmp_path: Path) -> None:
    """S44, PEP 668: a venv that sees it, and no --break-system-packages."""
    assert "externally-managed-environment" in (Path(__file__).parents[1] / "cases/S44.txt").read_text()
    give_torch(conda)
    one = own(conda)._replace(managed=True)
    before = set(conda.rglob("*"))
    place = run(tmp_path)
    beside.install(place, one, wheel.box_wheel())
    assert {path for path in conda.rglob("*") if "__pycache__" not in path.parts} <= before
    to = beside.home(place, one)
    assert to.venv == place.places.venv
    config = (place.places.venv / "pyvenv.cfg").read_text()
    assert "include-system-site-packages = true" in config


def test_nothing_breaks_system_packages() -> None:
    """The words stand nowhere in what the box runs."""
    folder = Path(adopt.__file__).parent
    assert [path.name for path in folder.glob("*.py") if "break-system-packages" in path.read_text()] == []


def test_a_long_path_gets_a_script_that_starts(tmp_path: Path) -> None:
    """The kernel cuts the first line of a script; a space in it is worse."""
    prefix = tmp_path / ("long " * 30) / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    site = next(prefix.glob("lib/python3*/site-packages"))
    wheels.install(wheel.box_wheel(), site, prefix / "bin", str(prefix / "bin/python"))
    done = subprocess.run([str(prefix / "bin/crab"), "--version"], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("crab "), done.stderr


def test_the_wheel_on_the_box_is_the_one_at_home(tmp_path: Path) -> None:
    """Packed again from what the script unpacks it has the same bytes; a changed file is refused."""
    import hashlib

    data = wheel.box_wheel()
    for name, content in wheel.content().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    digest = hashlib.sha256(data).hexdigest()
    assert wheels.packed(tmp_path, digest) == data
    with (tmp_path / "hermitcrab/cli.py").open("a") as file:
        file.write("#")
    with pytest.raises(Exception, match="fetch the script anew"):
        wheels.packed(tmp_path, digest)


def test_the_wheel_is_a_wheel(tmp_path: Path) -> None:
    """Every file is in RECORD."""
    (tmp_path / "x.whl").write_bytes(wheel.box_wheel())
    with zipfile.ZipFile(tmp_path / "x.whl") as archive:
        names = set(archive.namelist())
        record = archive.read(f"{wheels.INFO}/RECORD").decode().splitlines()
    assert {line.rsplit(",", 2)[0] for line in record} == names
