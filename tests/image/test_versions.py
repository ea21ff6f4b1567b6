"""Claim: an image holds exactly what its row and its lock say, in the environment a user meets."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Final

import pytest
from docker.models.containers import Container

from hermitcrab import __version__
from hermitcrab.matrix import MATRIX, Combo, Matrix
from tests.image.boxes import ask

TRIO: Final = ("torch", "torchvision", "torchaudio")
TOOLS: Final = (
    ("tmux", "-V"),
    ("git", "--version"),
    ("ssh", "-V"),
    ("/usr/sbin/sshd", "-V"),
    ("rsync", "--version"),
    ("less", "--version"),
    ("ps", "--version"),
    ("htop", "--version"),
    ("nano", "--version"),
    ("curl", "--version"),
    ("gcc", "--version"),
    ("g++", "--version"),
    ("tini", "--version"),
    ("python3", "--version"),
)
FOUND: Final = """
import json, platform, sys, torch, torchvision, torchaudio
print(json.dumps({
    **{module.__name__: module.__version__.split("+")[0] for module in (torch, torchvision, torchaudio)},
    "cuda": torch.version.cuda,
    "python": ".".join(platform.python_version_tuple()[:2]),
    "flags": torch._C._cuda_getArchFlags().split(),
    "prefix": sys.prefix,
}))
"""


@pytest.fixture(scope="module")
def found(host: Any) -> dict[str, Any]:
    """What torch says of itself."""
    values: dict[str, Any] = json.loads(ask(host, "python", "-c", FOUND))
    return values


@pytest.fixture(scope="module")
def config(box: Container) -> dict[str, Any]:
    """The configuration of the image."""
    assert box.image is not None
    values: dict[str, Any] = box.image.attrs["Config"]
    return values


@pytest.fixture(scope="module")
def environment(config: dict[str, Any]) -> dict[str, str]:
    """The environment that the image gives every process."""
    return dict(line.split("=", 1) for line in config["Env"])


@pytest.mark.parametrize("field", [*TRIO, "cuda", "python"])
def test_version_is_the_rows(found: dict[str, Any], combo: Combo, field: str) -> None:
    """What was imported is what the matrix promises."""
    assert found[field] == getattr(combo, field)


def test_architectures_are_the_rows(found: dict[str, Any], combo: Combo) -> None:
    """There is machine code for the row's cards, and PTX for those it names."""
    wanted = [*(f"sm_{sm}" for sm in combo.arch), *(f"compute_{sm}" for sm in combo.ptx)]
    assert sorted(found["flags"]) == sorted(wanted)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool[0])
def test_tool_runs(host: Any, tool: tuple[str, ...]) -> None:
    """Every tool of the image starts and gives its version."""
    if tool[0].endswith("sshd"):
        ask(host, "test", "-x", tool[0])  # OpenSSH 9.2 has no -V; test_ssh logs in
    else:
        ask(host, *tool)


def test_pip_is_the_pinned_one_of_the_venv(host: Any, matrix: Matrix, found: dict[str, Any]) -> None:
    """`pip` on the PATH belongs to the venv that torch is in."""
    said = ask(host, "pip", "--version")
    assert said.startswith(f"pip {matrix.tools['pip'].version} from {found['prefix']}/")


def test_crab_is_this_version(host: Any) -> None:
    """The package in the image is the one of this checkout."""
    assert ask(host, "crab", "--version") == f"crab {__version__}"


def test_dependencies_fit(host: Any) -> None:
    """No wheel misses a requirement or has one of another version."""
    assert ask(host, "pip", "check") == "No broken requirements found."


def test_constraints_are_the_locks_pins(host: Any, combo: Combo) -> None:
    """torch, its companions, triton and NVIDIA's wheels may not move from the lock."""
    wanted = {
        line.split()[0]
        for line in _lock(combo).decode().splitlines()
        if re.match(rf"({'|'.join(TRIO)}|triton|nvidia-[\w-]+)==", line)
    }
    assert wanted >= {f"{name}=={getattr(combo, name)}" for name in TRIO}
    assert wanted <= set(ask(host, "cat", "/etc/hermitcrab/constraints.txt").splitlines())


def test_environment(environment: dict[str, str]) -> None:
    """Installers keep to the constraints, text is UTF-8, the host's toolkit knows what to mount."""
    constraints = "/etc/hermitcrab/constraints.txt"
    assert environment["PIP_CONSTRAINT"] == environment["UV_CONSTRAINT"] == constraints
    assert environment["LANG"] == "C.UTF-8"
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert environment["PATH"].startswith(environment["VIRTUAL_ENV"] + "/bin:")
    # An image that states what driver it needs is refused by drivers that would run it.
    assert not [name for name in environment if name.startswith("NVIDIA_REQUIRE")]


def test_labels_are_the_rows(config: dict[str, Any], combo: Combo) -> None:
    """Who has only the image can read what it is."""
    labels = dict(config["Labels"])
    revision = labels.pop("org.opencontainers.image.revision")
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?|unknown", revision)
    assert set(re.split(r" AND ", labels.pop("org.opencontainers.image.licenses"))) >= {"Apache-2.0", "BSD-3-Clause"}
    assert labels == {
        "org.opencontainers.image.title": f"hermitcrab:{combo.id}",
        "hermitcrab.combo": combo.id,
        "hermitcrab.cuda": combo.cuda,
        "hermitcrab.torch": combo.torch,
        "hermitcrab.driver": combo.driver,
        "hermitcrab.arch": " ".join(f"sm_{sm}" for sm in combo.arch),
        "hermitcrab.lock": f"sha256:{hashlib.sha256(_lock(combo)).hexdigest()}",
    }


def test_tini_is_the_first_process(host: Any) -> None:
    """Signals and orphans are tini's work."""
    assert ask(host, "cat", "/proc/1/comm") == "tini"


def _lock(combo: Combo) -> bytes:
    return (MATRIX.parent / combo.id / "requirements.lock").read_bytes()
