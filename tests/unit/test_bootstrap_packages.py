"""Packages of the distribution: only those of the image, none of the driver's, by the shell's own functions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from hermitcrab import matrix as matrices
from hermitcrab.box.bootstrap import apt
from hermitcrab.box.bootstrap.run import Places, Run
from hermitcrab.build import bootstrap
from hermitcrab.errors import UserError

ROOT: Final = Path(__file__).parents[2]
MATRIX: Final = matrices.load()
# Tells what it would do for each package, does it the second time, and writes down how it was called.
APT: Final = """#!/bin/sh
echo "$*" >>"{0}/calls"
case " $* " in *" -s "*) ;; *) exit ;; esac
for one; do case $one in [a-z]*) echo "Inst $one (1 Debian:12 [amd64])" ;; esac; done
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run with an apt-get that is a stand-in."""
    for name in ("work", "home", "bin"):
        (tmp_path / name).mkdir()
    fake(tmp_path, APT.format(tmp_path))
    functions = "".join(bootstrap._parts()[name] for name in ("say.sh", "apt.sh"))
    (tmp_path / apt.FUNCTIONS).write_text(functions)
    monkeypatch.setattr(apt, "PAYLOAD", tmp_path)
    environ = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "HERMITCRAB_APT_PAUSE": "0",
        "HERMITCRAB_GUARD": f"{tmp_path}/own/guard",
    }
    places = Places(tmp_path / "home", tmp_path / "home/settings", tmp_path / "home/venv")
    return Run(False, places, tmp_path / "work", environ)


def fake(folder: Path, code: str) -> None:
    """Make this the apt-get."""
    (folder / "bin/apt-get").write_text(code)
    (folder / "bin/apt-get").chmod(0o755)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "Inst libnvidia-compute-550 (550.54 Ubuntu:22.04 [amd64])",
            "libnvidia-compute-550, which belongs to the driver",
        ),
        ("Inst cuda-toolkit-12-4 [12.3] (12.4 NVIDIA [all])", "cuda-toolkit-12-4, which belongs"),
        ("Inst libcudnn9-cuda-12 (9.1 x [amd64])", "libcudnn9-cuda-12, which belongs"),
        ("Remv nano [6.2]", "apt would remove nano"),
        ("Purg nano [6.2]", "apt would remove nano"),
    ],
)
def test_what_belongs_to_the_driver_is_never_touched(line: str, said: str) -> None:
    """Nor is anything removed: then nothing is installed at all."""
    with pytest.raises(UserError, match=said):
        apt.refuse_foreign(f"NOTE: simulation\nInst git (1:2.39 x [amd64])\n{line}\nConf git (1:2.39)\n")


def test_others_are_installed() -> None:
    """The rule does not cry wolf."""
    apt.refuse_foreign("Inst git (1:2.39 x [amd64])\nInst libnghttp2-14 (1.52 x [amd64])\nConf git (1:2.39)\n")


@pytest.mark.parametrize("planted", ["nvidia-cuda-toolkit", "nvidia-driver-550", "cuda-12-4", "libcudnn9-dev-cuda-12"])
def test_a_planted_package_stops_the_installation(planted: str, run: Run, tmp_path: Path) -> None:
    """A list that names one of NVIDIA's: apt is only asked what it would do, and nothing at all is installed."""
    with pytest.raises(UserError, match=f"apt would touch {planted}"):
        apt.install(run, ["git", planted, "tmux"], ())
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert " -s install " in call


def test_the_matrix_plants_none(run: Run, tmp_path: Path) -> None:
    """The list that is brought along is installed whole, by one call after the question."""
    apt.install(run, MATRIX.packages, ())
    asked, done = (tmp_path / "calls").read_text().splitlines()
    assert " -s install " in asked
    assert done.endswith(f" install --no-install-recommends {' '.join(MATRIX.packages)}")
    assert "upgrade" not in asked + done


def test_missing_packages() -> None:
    """By dpkg's status; what dpkg does not know is missing."""
    assert apt.missing(["hermitcrab-has-no-such-package"]) == ["hermitcrab-has-no-such-package"]


def test_a_lock_is_told_at_once(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """While it is waited for, not after."""
    said = (ROOT / "tests/cases/C20.txt").read_text().splitlines()[0]
    code = f'[ -e "{tmp_path}/was" ] && exit 0; touch "{tmp_path}/was"; echo "{said}"; exit 100'
    fake(tmp_path, f"#!/bin/sh\n{code}\n")
    apt.apt_get(run, (), "update")
    assert capfd.readouterr().out.startswith("waiting for 2180 (unattended-upgr)")


def test_a_failure_has_apt_s_reason(run: Run, tmp_path: Path) -> None:
    """A failing apt-get becomes its own sentence; so does a lock that is never given up."""
    fake(tmp_path, '#!/bin/sh\necho "E: Unable to locate package x"; exit 100\n')
    with pytest.raises(UserError, match="apt-get install: E: Unable to locate package x"):
        apt.apt_get(run, (), "install", "x")
    fake(tmp_path, '#!/bin/sh\necho "E: Could not get lock /x. It is held by process 7 (apt)"; exit 100\n')
    waiting = run._replace(environ={**run.environ, "HERMITCRAB_APT_WAIT": "0"})
    with pytest.raises(UserError, match=r"apt-get update: the package system is still in use by 7 \(apt\)"):
        apt.apt_get(waiting, (), "update")


@pytest.mark.parametrize("when", ["asked", "done"])
def test_a_package_that_cannot_be_installed_is_named(when: str, run: Run, tmp_path: Path) -> None:
    """Whether apt sees it coming or dpkg stumbles over it."""
    errors = "echo 'Errors were encountered while processing:'; echo ' broken'; echo 'E: Sub-process dpkg'; exit 100"
    fake(tmp_path, f'#!/bin/sh\ncase " $* " in *" -s "*) [ {when} = done ] && exit 0 ;; esac\n{errors}\n')
    with pytest.raises(UserError, match=r"^apt-get install: dpkg cannot set up broken$"):
        apt.install(run, ["tmux"], ())


def test_what_the_image_leaves_out_is_left_out(run: Run, tmp_path: Path) -> None:
    """Documentation and what no kernel build asks for: one list for the image and for a box."""
    apt.install(run, ["git"], ())
    lists = (ROOT / "templates/parts/lists.sh").read_text()
    excluded = [line for line in lists.splitlines() if line.startswith("path-")]
    call = (tmp_path / "calls").read_text().splitlines()[-1]
    assert excluded
    assert [line for line in excluded if f"-o Dpkg::Options::=--{line}" not in call] == []
