"""Kernels' comparison, speed, disk, the report and the exit status."""

from __future__ import annotations

import json
import math
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from hermitcrab.box.check import cards, disk, findings, kernels, report, speed
from hermitcrab.box.check.findings import Finding
from hermitcrab.box.disks import Disk
from hermitcrab.box.platform import detect


class Number:
    """As much of a tensor as the comparison needs."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __sub__(self, other: Number) -> Number:
        return Number(self.value - other.value)

    def __truediv__(self, other: Number) -> Number:
        return Number(self.value / other.value)

    def __float__(self) -> float:
        return self.value

    def abs(self) -> Number:
        return Number(abs(self.value))

    def same(self) -> Number:
        return self

    max = float = cpu = same


@pytest.mark.parametrize(
    ("values", "status"),
    [((2.0, 2.001), "pass"), ((2.0, 2.5), "fail"), ((math.nan, 2.0), "fail"), ((math.inf, 2.0), "fail")],
)
def test_a_kernel_must_equal_the_cpu_on_every_gpu(
    values: tuple[float, ...], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One GPU that is off, or gives no number, fails and is named."""
    monkeypatch.setattr(kernels, "_devices", lambda: [f"cuda:{index}" for index in range(len(values))])

    found = kernels._compare("x", "matmul", Number(2.0), lambda on: Number(values[int(on[-1])]), 5e-3)
    assert found.status == status
    assert (status == "pass") == ("on 2 GPUs" in found.text)


class FakeTorch:
    """As much of torch as the kernels that are skipped need."""

    bfloat16 = None

    class cuda:  # noqa: N801, D106 - its name in torch
        capability = (7, 5)

        @staticmethod
        def device_count() -> int:
            return 1

        @classmethod
        def get_device_capability(cls, _index: int) -> tuple[int, int]:
            return cls.capability

    class distributed:  # noqa: N801, D106
        @staticmethod
        def is_available() -> bool:
            return False


def test_what_the_card_or_the_box_lacks_is_no_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No bf16 before Ampere, no compiler, no NCCL: skipped or warned, and why."""
    monkeypatch.setitem(sys.modules, "torch", FakeTorch)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert kernels.matmul("bfloat16").status == "skip"
    assert "no C compiler" in kernels.compiled().text
    assert kernels.nccl().status == "warn"
    (tmp_path / "gcc").touch(mode=0o755)
    assert "no Python headers" in kernels.compiled().text or "no triton" in kernels.compiled().text


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("NVIDIA GeForce RTX 4090", (165.2, 1008)),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3090", (71, 936)),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA GeForce RTX 5090", (209.5, 1792)),
        ("Tesla T4", (65, 320)),
        ("Tesla P100-PCIE-16GB", (None, 732)),
        ("Tesla V100-SXM2-32GB", (125, 900)),
        ("Tesla V100-PCIE-32GB", (112, 900)),
        ("NVIDIA A10", (125, 600)),
        ("NVIDIA A10G", None),
        ("NVIDIA A100-SXM4-40GB", (312, 1555)),
        ("NVIDIA A100-PCIE-40GB", (312, 1555)),
        ("NVIDIA A100-SXM4-80GB", (312, 2039)),
        ("NVIDIA A100 80GB PCIe", (312, 1935)),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", None),
        ("NVIDIA A800-SXM4-80GB", (312, 2039)),
        ("NVIDIA L40S", (183, 864)),
        ("NVIDIA L40", None),
        ("NVIDIA L20", (119.5, 864)),
        ("NVIDIA H100 80GB HBM3", (989.4, 3350)),
        ("NVIDIA H100 PCIe", (756, 2000)),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H800", (756, 2000)),
        ("NVIDIA H20", (148, 4000)),
        ("NVIDIA H200", (989, 4800)),
        ("NVIDIA B200", (2250, 8000)),
        ("NVIDIA GB200", None),
        ("", None),
    ],
)
def test_a_card_is_found_by_the_drivers_name(name: str, figures: tuple[float | None, float] | None) -> None:
    """A card without a row has no figures, rather than those of its neighbour."""
    row = cards.peak(name)

    assert (row and (row.tflops, row.bandwidth)) == figures


def test_speed_is_judged_by_the_figure() -> None:
    """Below 60 % warns; without a figure there is no pass."""
    assert speed.against("x", 99.2, "TFLOPS", "RTX", 165.2).status == "pass"
    slow = speed.against("x", 99.0, "TFLOPS", "RTX", 165.2)
    assert (slow.status, "60%" in slow.text, "throttled" in slow.cause) == ("warn", True, True)
    assert speed.against("x", 99.0, "TFLOPS", "RTX", None).status == "warn"


@pytest.mark.parametrize(
    ("to", "back", "link", "status"),
    [
        (24.0, 24.0, (4, 16), "pass"),
        (24.0, 11.0, (4, 16), "warn"),
        (12.0, 12.0, (3, 16), "pass"),
        (12.0, 12.0, (5, 16), "warn"),
        (6.5, 6.5, None, "pass"),
        (3.0, 6.5, None, "warn"),
        (3.0, 6.5, (9, 16), "warn"),
    ],
)
def test_pcie_is_judged_by_its_link(to: float, back: float, link: tuple[int, int] | None, status: str) -> None:
    """Both ways count; an unknown link has a low bound."""
    assert speed.judge_pcie("x", to, back, link).status == status


def test_the_matrix_fits_the_free_memory() -> None:
    """A card that others hold is measured with less."""
    assert [speed._side(free) for free in (2**34, 2**28, 2**26, 2**20)] == [8192, 4096, 2048, 1024]


def test_writing_is_measured_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has no name, and never takes more than a part of what is free."""
    monkeypatch.setattr(disk, "MOST", 2 * disk.BLOCK)

    assert "MB/s written" in disk.write(tmp_path, 2**40).text
    assert list(tmp_path.iterdir()) == []
    assert disk.write(tmp_path, disk.BLOCK).status == "fail"  # nearly full
    assert disk.write(tmp_path / "none", 2**40).status == "fail"


def test_a_slow_disk_warns() -> None:
    """By what checkpoints need."""
    assert disk.judge_write(Path("/data"), 2e9).status == "pass"
    assert disk.judge_write(Path("/data"), 20e6).status == "warn"


def test_the_data_disk_is_the_one_to_measure() -> None:
    """Without one, the system disk where it can be written to; unknown free space stays unknown."""
    bare = detect(Path("/nowhere"), {})._replace(system=Disk("/", None, None), data=None)

    assert disk.target(bare) == (Path(tempfile.gettempdir()), None)
    assert disk.target(bare._replace(data=Disk("/data", 9, 7))) == (Path("/data"), 7)


def test_shared_memory_is_judged() -> None:
    """Docker's 64 MiB are too few; unknown is no pass."""
    sizes = (64 << 20, 8 << 30, None)
    assert [disk.shm(Disk("/dev/shm", size, None)).status for size in sizes] == ["warn", "pass", "warn"]


def test_open_files_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """1024 is too few for many workers; unlimited is enough."""
    for soft, status in ((1024, "warn"), (4096, "pass"), (resource.RLIM_INFINITY, "pass")):
        given: Any = (soft, resource.RLIM_INFINITY)
        monkeypatch.setattr(resource, "getrlimit", lambda _which, given=given: given)
        assert disk.files().status == status


@pytest.mark.parametrize(
    ("statuses", "verdict", "code"),
    [
        ({findings.PROOF: "pass"}, "pass", 0),
        ({findings.PROOF: "pass", "x": "warn"}, "pass", 0),
        ({findings.PROOF: "pass", "x": "fail"}, "fail", 1),
        ({findings.PROOF: "skip", "x": "pass"}, "skip", 3),
        ({findings.PROOF: "warn"}, "skip", 3),
        ({"x": "pass"}, "skip", 3),  # nothing was proven
        ({}, "skip", 3),
    ],
)
def test_only_a_proof_passes(statuses: dict[str, str], verdict: str, code: int) -> None:
    """Unknown never counts as pass."""
    found = [Finding(id_, status, "") for id_, status in statuses.items()]

    assert findings.verdict(found) == verdict
    assert json.loads(report.as_json(found))["exit"] == code


def test_a_finding_is_told_with_cause_and_remedy() -> None:
    """One line each; colour only where asked for; the summary counts."""
    finding = Finding("gpu.count", "fail", "MIG is on", "why", "what")

    assert report.line(finding, color=False).splitlines() == [
        "fail  gpu.count       MIG is on",
        f"{'':<22}cause:  why",
        f"{'':<22}remedy: what",
    ]
    assert "\033[31mfail\033[0m" in report.line(finding, color=True)
    assert report.summary([finding]) == "FAIL: see the remedies above (1 fail)"
    assert report.summary([]).startswith("SKIPPED: no GPU was checked")
