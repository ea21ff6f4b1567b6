"""Claim: `crab platform` knows what the box is and what it may use, and says "unknown" where it does not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from hermitcrab.build.engine import Engine
from tests.box.conftest import Start
from tests.box.machine import Box, told

FAST_S: Final = 0.15
# The best of ten, since the machine under test may be busy.
STOPWATCH: Final = """
import subprocess, sys, time
def once():
    began = time.perf_counter()
    subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began
print(min(once() for _ in range(10)))
"""


@pytest.fixture(scope="module")
def box(start: Start, name: str) -> Box:
    """A box of nobody's, smaller than its machine."""
    return start(name, mem_limit="512m", nano_cpus=1_500_000_000, shm_size="96m")


@pytest.fixture
def platform(box: Box) -> Any:
    """What it says of it."""
    done = box.crab("platform", "--json")
    assert done.rc == 0
    return told(done)


def test_nobodys_container_is_unknown(box: Box, platform: Any) -> None:
    """Unknown is an answer: no platform is guessed, and what stops the bill is left to the user."""
    assert (platform["platform"], platform["confidence"], platform["kind"]) == ("unknown", "none", "container")
    assert platform["data_disk"] is None
    said = box.ask("crab", "platform")
    assert "not known: stop it by hand" in said


def test_limits_are_the_boxs(platform: Any) -> None:
    """CPUs, memory and shared memory are those of the box, though it sees its machine's."""
    if platform["memory"] == platform["machine_memory"]:
        pytest.skip("this engine sets no limits")
    assert platform["memory"] == 512 << 20
    assert platform["cpus"] == 1.5
    assert platform["shm"]["total"] == 96 << 20


def test_disk_is_the_container_layer(platform: Any) -> None:
    """The free space is the host disk's, and said to be."""
    disk = platform["system_disk"]
    assert disk["note"] == "container layer"
    assert 0 < disk["free"] <= disk["total"]


@pytest.mark.parametrize(
    ("environment", "platform", "kind"),
    [
        ({"RUNPOD_POD_ID": "x"}, "runpod", "container"),
        ({"AutoDLContainerUUID": "x"}, "autodl", "container"),
        ({"CONTAINER_API_KEY": "x", "VAST_CONTAINERLABEL": "C.1"}, "vast", "container"),
    ],
)
def test_a_platform_is_known_by_pid_1(
    start_once: Start, name: str, environment: dict[str, str], platform: str, kind: str
) -> None:
    """Its variables count although the session has lost them, as in SSH."""
    box = start_once(name, environment=environment)
    found = told(box.host.run(f"env {' '.join(f'-u {name}' for name in environment)} crab platform --json"))
    assert (found["platform"], found["confidence"], found["kind"]) == (platform, "high", kind)


@pytest.mark.parametrize(
    ("variables", "platform"), [("SLURM_JOB_ID=7", "slurm"), ("APPTAINER_CONTAINER=x", "apptainer")]
)
def test_a_scheduler_is_known_by_the_session(box: Box, variables: str, platform: str) -> None:
    """What only this job has."""
    found = told(box.host.run(f"env {variables} crab platform --json"))
    assert (found["platform"], found["confidence"]) == (platform, "high")


def test_the_data_disk_is_found(start_once: Start, name: str, engine: Engine, tmp_path: Path) -> None:
    """A disk mounted where the platform has it, with its true free space; a plain folder is none."""
    if not engine.host.startswith("unix://"):
        pytest.skip("the engine is another machine: this one's folders cannot be mounted there")
    mounts = {str(tmp_path): {"bind": "/root/autodl-tmp", "mode": "rw"}}
    with_disk = start_once(name, environment={"AutoDLContainerUUID": "x"}, volumes=mounts)
    disk = told(with_disk.crab("platform", "--json"))["data_disk"]
    assert disk["path"] == "/root/autodl-tmp"
    assert disk["free"] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    with_folder = start_once(name, environment={"AutoDLContainerUUID": "x"})
    with_folder.ask("mkdir", "/root/autodl-tmp")
    assert told(with_folder.crab("platform", "--json"))["data_disk"] is None


@pytest.mark.parametrize("command", ["--help", "platform"])
def test_it_starts_fast(box: Box, command: str) -> None:
    """Without torch, in less than 0.15 s."""
    best = float(box.ask("python", "-c", STOPWATCH, "crab", command))
    assert best < FAST_S, f"crab {command} took {best:.2f} s"
