"""Claim: cases from the field that concern images behave as described; each test names its case."""

from __future__ import annotations

import io
import tarfile
import zipfile
from typing import Any, Final

import pytest
from docker.models.containers import Container

from hermitcrab.matrix import Combo
from tests.image.boxes import ask, attempt

WHEELS: Final = "/tmp/wheels"
INSTALL: Final = ("pip", "install", "--no-index", "--find-links", WHEELS, "--disable-pip-version-check")
DRY: Final = (*INSTALL, "--dry-run")
UNBOUND: Final = ("env", "--unset=PIP_CONSTRAINT")
IS: Final = "import torch, sys; print(torch.__version__.split('+')[0], torch.version.cuda)"


@pytest.fixture(scope="module")
def wheels(box: Container, host: Any) -> str:
    """Wheels in the box: another torch, one that asks for it, and one that has nothing to do with it."""
    made = {"torch": "", "wants-torch": "torch>=99", "harmless": ""}
    ask(host, "mkdir", "-p", WHEELS)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, requires in made.items():
            data = _wheel(name.replace("-", "_"), requires)
            member = tarfile.TarInfo(f"{name.replace('-', '_')}-99.0-py3-none-any.whl")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    assert box.put_archive(WHEELS, packed.getvalue())
    return WHEELS


def test_c31_no_cuda_apt_source(host: Any) -> None:
    """C31: apt knows the distribution's archive alone, so no key of CUDA's can expire."""
    assert attempt(host, "grep", "-rniE", "cuda|nvidia", "/etc/apt").rc == 1
    assert attempt(host, "sh", "-c", "ls /usr/share/keyrings | grep -iE 'cuda|nvidia'").rc == 1


@pytest.mark.usefixtures("wheels")
@pytest.mark.parametrize("wanted", ["torch==99.0", "wants-torch"])
def test_c33_constraints_hold_torch(host: Any, combo: Combo, wanted: str) -> None:
    """C33: another torch is refused by name of the constraint, asked for or needed; without it pip would take it."""
    assert "Would install" in ask(host, *UNBOUND, *DRY, wanted)
    refused = attempt(host, *DRY, wanted)
    assert refused.rc == 1
    assert f"(constraint) torch=={combo.torch}" in refused.stdout + refused.stderr


@pytest.mark.usefixtures("wheels")
def test_c33_an_install_leaves_torch(host: Any, combo: Combo) -> None:
    """C33: after a later `pip install` of something else torch is what the row says."""
    ask(host, *INSTALL, "--upgrade", "--upgrade-strategy", "eager", "harmless")
    assert ask(host, "python", "-c", "import harmless") == ""
    assert ask(host, "python", "-c", IS).split() == [combo.torch, combo.cuda]


def test_c25_tmux_takes_its_settings(host: Any) -> None:
    """C25: the image's tmux loads the settings without a word."""
    words = "tmux -f /dev/null new-session -d && tmux source-file /etc/tmux.conf; s=$?; tmux kill-server; exit $s"
    assert ask(host, "sh", "-c", words) == ""


def test_c27_authorities_are_there(host: Any) -> None:
    """C27: a lean image can still tell whom to trust."""
    assert int(ask(host, "grep", "-c", "BEGIN CERTIFICATE", "/etc/ssl/certs/ca-certificates.crt")) > 100


def test_s47_git_trusts_no_everybody(host: Any) -> None:
    """S47: no `safe.directory=*` is set for all."""
    assert attempt(host, "git", "config", "--system", "--get-all", "safe.directory").rc == 1


def _wheel(name: str, requires: str) -> bytes:
    """A wheel that holds one empty module."""
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    info = f"{name}-99.0.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 99.0\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return packed.getvalue()
