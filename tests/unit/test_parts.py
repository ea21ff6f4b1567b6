"""The shell of the image: every part is POSIX sh, and the wheels land in their layers."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from hermitcrab.build import render

PARTS = sorted((render.TEMPLATES / "parts").glob("*.sh"))
SITE = "/opt/venv/lib/python3.11/site-packages"
EPOCH = 1_700_000_000


def shell(text: str, *options: str, cwd: Path | None = None) -> str:
    """Run text with sh, as a build step does; the empty string, or what went wrong."""
    done = subprocess.run(["sh", *options], input=text, cwd=cwd, capture_output=True, text=True, check=False)
    return done.stderr or ("" if done.returncode == 0 else f"exit {done.returncode}")


@pytest.mark.parametrize("path", [*PARTS, render.TEMPLATES / "home/profile.sh"], ids=lambda path: path.name)
def test_every_part_is_sh(path: Path) -> None:
    """Dash is the shell of every base."""
    assert shell(path.read_text(), "-n") == ""
    assert "\r" not in path.read_text()


@pytest.mark.parametrize("text", ["if true; then\n", "a=(1 2)\n", "echo 'open\n"])
def test_what_is_no_sh_is_found(text: str) -> None:
    """The check above can fail."""
    assert shell(text, "-n") != ""


@pytest.mark.parametrize("path", PARTS, ids=lambda path: path.name)
def test_a_part_says_which_values_it_reads(path: Path) -> None:
    """Its first lines name them, and the template sets each before it."""
    template = (render.TEMPLATES / "Dockerfile.j2").read_text()
    (reads,) = [line.partition("Reads: ")[2] for line in path.read_text().splitlines()[:1]]
    for name in filter(None, reads.rstrip(".").split(", ")):
        assert f"${name}" in path.read_text()
        assert f"\n{name}=" in template[: template.index(f"parts['{path.name}']")]


def sorted_layers(root: Path, stage: render.Stage, files: list[str]) -> dict[str, set[str]]:
    """Run the sorting half of wheels.sh over these files; what lies in each layer, without its site-packages."""
    site = root / SITE[1:]
    for name in (*files, "_virtualenv.py"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).touch()
    part = (render.TEMPLATES / "parts/wheels.sh").read_text()
    body = part[part.index("# One line of $layers is a layer") :]
    body = re.sub(r"(?<![\w/])(?=/layers|/opt/venv)", str(root), body)
    values = f'set -eu\nepoch={EPOCH}\nsite={SITE}\nlayers="{stage.layers}"\nlast={stage.last}'
    assert shell(f"{values}\n{body}", cwd=site) == ""
    return {
        layer.name: {str(path.relative_to(layer / SITE[1:])) for path in layer.rglob("*") if path.is_file()}
        for layer in (root / "layers").iterdir()
    }


NVIDIA, TORCH = render.STAGES
NVIDIAS = [
    *("nvidia/__init__.py", "nvidia/cudnn/lib/x.so", "nvidia/nccl/lib/x.so", "nvidia/cublas/lib/x.so"),
    *("nvidia_cublas_cu12-12.1.dist-info/RECORD", "cusparselt/lib/x.so"),
]
OTHERS = [
    *("torch/__init__.py", "torch/lib/libtorch.so", "torchgen/x.py", "triton/x.py", "torch-2.0.dist-info/RECORD"),
    *("numpy/__init__.py", "torchvision/x.py", "_cffi.so"),
]


def test_every_file_of_nvidia_lands_in_one_layer(tmp_path: Path) -> None:
    """Also what one of its wheels puts elsewhere; the venv itself is the next stage's."""
    assert sorted_layers(tmp_path, NVIDIA, NVIDIAS) == {
        "cudnn": {"nvidia/cudnn/lib/x.so", "nvidia/nccl/lib/x.so"},
        "cuda": set(NVIDIAS) - {"nvidia/cudnn/lib/x.so", "nvidia/nccl/lib/x.so"},
    }


def test_every_other_file_lands_in_one_layer(tmp_path: Path) -> None:
    """In the first that takes it; what nobody takes is the last one."""
    assert sorted_layers(tmp_path, TORCH, OTHERS) == {
        "torch": {"torch/__init__.py", "torch/lib/libtorch.so", "torchgen/x.py", "triton/x.py"},
        "rest": {"torch-2.0.dist-info/RECORD", "numpy/__init__.py", "torchvision/x.py", "_cffi.so", "_virtualenv.py"},
    }


@pytest.mark.parametrize(("stage", "files"), [(NVIDIA, NVIDIAS), (TORCH, OTHERS)], ids=["nvidia", "wheels"])
def test_every_folder_has_the_date_of_the_build(tmp_path: Path, stage: render.Stage, files: list[str]) -> None:
    """Parents too: COPY takes their dates along."""
    sorted_layers(tmp_path, stage, files)

    made = [*(tmp_path / "layers").rglob("*")]
    assert len(made) > len(files)
    assert {os.lstat(path).st_mtime for path in made} == {EPOCH}


def test_a_login_shell_finds_the_venv_once(tmp_path: Path) -> None:
    """However often the profile is read."""
    (tmp_path / "venv/bin").mkdir(parents=True)
    profile = tmp_path / "profile.sh"
    text = (render.TEMPLATES / "home/profile.sh").read_text()
    profile.write_text(text.replace("/opt/venv", f"{tmp_path}/venv"))
    script = f'PATH=/usr/bin:/bin; unset LANG; . "{profile}"; . "{profile}"; echo "$PATH $LANG $VIRTUAL_ENV"'
    done = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True)

    assert done.stdout == f"{tmp_path}/venv/bin:/usr/bin:/bin C.UTF-8 {tmp_path}/venv\n"
