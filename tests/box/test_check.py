"""Claim: without a GPU `crab check` passes nothing, says which way of having none it is, and ends with 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from hermitcrab.matrix import Combo
from tests.box import machine
from tests.box.conftest import Start
from tests.box.machine import Box, told

STUBS: Final = Path(__file__).parents[1] / "stubs"
BUILD: Final = (
    "cd /stubs; gcc -shared -fPIC -o libcuda.so.1 cuda.c; gcc -shared -fPIC -o libnvidia-ml.so.1 nvml.c; "
    "mkdir -p /usr/local/nvidia/lib64; mv *.so.1 /usr/local/nvidia/lib64/"
)
# What the two stub libraries tell of the machine; see tests/stubs.
NO_DEVICE: Final = {"STUB_INIT": "100", "STUB_DRIVER": "535.104.05"}
UNCUT: Final = {**NO_DEVICE, "STUB_CARDS": "NVIDIA A100-SXM4-40GB:40960:0:on:-:0:0"}
OF_THE_GPU: Final = ("driver.", "gpu", "kernel.")
OF_TORCH: Final = ("torch.build", "torch.combo", "torch.packages")


@pytest.fixture(scope="module")
def box(start: Start, name: str) -> Box:
    """A box without a GPU."""
    return start(name)


@pytest.fixture(scope="module")
def with_driver(start: Start, name: str) -> Box:
    """A box with a driver's libraries, which are stubs, mounted where platforms mount them."""
    box = start(name)
    machine.put(box.container, {f"/stubs/{path.name}": path.read_text() for path in STUBS.iterdir()})
    box.shell(BUILD)
    return box


def test_no_gpu_is_skipped_and_never_passed(box: Box) -> None:
    """Every finding on GPU, driver and kernels is a skip; what could be looked at was."""
    done = box.crab("check", "--json", seconds=300)
    check = told(done)
    assert (done.rc, check["exit"], check["verdict"]) == (3, 3, "skip")
    status = {row["id"]: row["status"] for row in check["findings"]}
    assert {id_: said for id_, said in status.items() if id_.startswith(OF_THE_GPU)} == {
        **dict.fromkeys(("driver.libcuda", "driver.version", "gpu.count"), "skip"),
        **{f"kernel.{kind}": "skip" for kind in ("fp32", "fp16", "bf16", "conv", "compile", "cudnn", "nccl")},
    }
    assert [status[id_] for id_ in OF_TORCH] == ["pass", "pass", "pass"]
    assert {id_ for id_ in status if id_.startswith(("disk.", "box."))} == {"disk.write", "box.shm", "box.files"}


def test_a_changed_package_is_named(box: Box) -> None:
    """A later `pip install` warns: what Python would import counts, not what lies behind it."""
    machine.put(
        box.container, {"/late/numpy-0.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: numpy\nVersion: 0.1\n"}
    )
    done = box.host.run("PYTHONPATH=/late crab check --quick --json")
    packages = next(row for row in told(done)["findings"] if row["id"] == "torch.packages")
    assert packages["status"] == "warn"
    assert packages["text"].startswith("1 packages are not as locked: numpy 0.1 instead of")


def test_it_is_said_in_words(box: Box, combo: Combo) -> None:
    """The last line is the verdict, and each cause has its remedy."""
    done = box.crab("check", "--quick")
    assert done.rc == 3
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("SKIPPED: no GPU was checked, which is no pass")
    assert any("no NVIDIA driver in this box" in line for line in lines)
    assert any(combo.id in line for line in lines)
    assert "\033" not in done.stdout


def test_nothing_is_left_behind(box: Box) -> None:
    """No process, no shared memory, no temporary file."""
    before = len(box.container.top()["Processes"])
    box.crab("check", "--quick")
    assert len(box.container.top()["Processes"]) == before
    assert box.shell("ls -A /dev/shm /tmp") == "/dev/shm:\n\n/tmp:"


@pytest.mark.parametrize(
    ("words", "status"),
    [(("--expect", "RTX 4090"), 1), (("--expect",), 2), (("--sloppy",), 2)],
    ids=["not the card", "no card named", "no such option"],
)
def test_exit_status(box: Box, words: tuple[str, ...], status: int) -> None:
    """A card that was paid for and is not there fails; wrong use is 2."""
    assert box.crab("check", "--quick", *words).rc == status


def test_three_ways_of_having_none(start_once: Start, name: str, box: Box, with_driver: Box) -> None:
    """No driver, a driver without a device, AutoDL's no-GPU mode: three verdicts in three texts."""
    autodl = start_once(name, environment={"AutoDLContainerUUID": "x"}, mem_limit="2g")
    if told(autodl.crab("platform", "--json"))["memory"] != 2 << 30:
        pytest.skip("this engine sets no limits")
    counts = [_count(box), _count(with_driver, NO_DEVICE), _count(autodl)]
    assert [count["status"] for count in counts] == ["skip", "skip", "skip"]
    texts = ["no NVIDIA driver in this box", "driver 535.104.05 answers, but there is no device", "无卡模式"]
    assert [text in count["text"] for text in texts for count in counts] == [
        *(True, False, False),
        *(False, True, False),
        *(False, False, True),
    ]
    assert all(count["remedy"] for count in counts)


def test_mig_without_slices_fails(with_driver: Box) -> None:
    """A card that is there and cannot be used is no skip."""
    count = _count(with_driver, UNCUT, status=1)
    assert count["status"] == "fail"
    assert count["text"].startswith("MIG is on without slices (needs the host owner)")


def _count(box: Box, stubs: dict[str, str] | None = None, status: int = 3) -> Any:
    """The verdict on the GPU."""
    variables = " ".join(f"'{name}={value}'" for name, value in (stubs or {}).items())
    done = box.host.run(f"env {variables} crab check --quick --json")
    assert done.rc == status, done.stdout[-2000:]
    return next(row for row in told(done)["findings"] if row["id"] == "gpu.count")
