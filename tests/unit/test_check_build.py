"""Which card runs which build, and which driver is enough, as pure rules."""

from __future__ import annotations

from typing import Any

import pytest

from hermitcrab.box.check import build

OLD = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
NEW = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
FIRST = ("sm_37", "sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86")


def torch(**changes: Any) -> build.Torch:
    """A torch in order, but for the changes."""
    facts: dict[str, Any] = {"version": "2.4.1+cu121", "cuda": "12.1", "archs": OLD, "python": "3.11", "packages": {}}
    return build.Torch(**{**facts, "devices": 1, **changes})


@pytest.mark.parametrize(
    ("archs", "sm", "how"),
    [
        (OLD, 89, "cubin"),  # RTX 4090 by sm_86
        (OLD, 61, "cubin"),  # GTX 1080 by sm_60
        (OLD, 90, "cubin"),
        (OLD, 120, ""),  # RTX 5090
        (OLD, 72, ""),  # a Jetson runs only its own
        (OLD, 87, ""),
        (OLD, 37, ""),  # code never runs on an earlier minor
        (("sm_52",), 50, ""),
        (FIRST, 90, ""),  # H100 on CUDA 11.7
        (NEW, 70, ""),  # V100 on CUDA 13
        (NEW, 103, "cubin"),  # B300 by sm_100
        (NEW, 121, "cubin"),  # GB10 by sm_120
        (NEW, 101, ""),
        (NEW, 130, "ptx"),  # crossing a major needs PTX
        (("sm_87",), 87, "cubin"),
        (("sm_87",), 89, ""),
        (("sm_101",), 110, "cubin"),
        (("sm_90a",), 90, "cubin"),  # for one architecture alone
        (("sm_100a",), 103, ""),
        (("compute_90a",), 100, ""),
        (("compute_70",), 61, ""),
        ((), 89, ""),
        (("gfx90a", ""), 89, ""),
    ],
)
def test_code_covers_a_card(archs: tuple[str, ...], sm: int, how: str) -> None:
    """Same major and no earlier minor, with the exceptions; else PTX."""
    assert build.covers(archs, sm) == how


@pytest.mark.parametrize(
    ("driver", "cuda", "status"),
    [
        ("470.199.02", "11.8", "pass"),  # CUDA 11.4 in the banner: the minor version does not count
        ("470.199.02", "12.1", "fail"),
        ("96.43.23", "11.8", "fail"),  # numbers, not text
        ("525.60.12", "12.1", "fail"),
        ("525.60.13", "12.9", "pass"),
        ("535.104.05", "12.4", "pass"),
        ("550.54.15", "12.8", "pass"),
        ("550.54.15", "13.0", "fail"),
        ("579.99", "13.0", "fail"),
        ("580.65.06", "13.2", "pass"),
        ("610.43.02", "12.1", "pass"),
        ("610.43.02", "14.0", "warn"),  # newer than this check: unknown is no pass
        ("", "12.1", "warn"),
    ],
)
def test_a_driver_fits_by_the_minor_version_rule(driver: str, cuda: str, status: str) -> None:
    """The driver's floor of the major counts, not the CUDA it prints."""
    assert build.fits(cuda, driver, None).status == status


def test_without_a_version_the_cuda_it_knows_decides() -> None:
    """12020 runs 12.x and not 13.x."""
    assert build.fits("12.8", "", 12020).status == "pass"
    assert build.fits("13.0", "", 12020).status == "fail"
    assert "CUDA 12.2" in build.fits("13.0", "", 12020).text


def test_forward_compatibility_is_named() -> None:
    """A libcuda newer than its kernel module is no plain pass."""
    found = build.fits("12.8", "470.199.02", 12080)

    assert found.status == "warn"
    assert "cuda-compat" in found.cause


@pytest.mark.parametrize(
    ("driver", "sms", "named"),
    [
        ("470.199.02", [75], "CUDA 11.8."),  # C01
        ("535.104.05", [89], "CUDA 12.x."),
        ("580.65.06", [70], "CUDA 12.x."),  # CUDA 13 dropped Volta
        ("580.65.06", [89, 70], "CUDA 12.x."),
        ("570.26", [120], "CUDA 12.x (12.8 or later)."),
        ("610.43.02", [120], "CUDA 13.x."),
        ("470.199.02", [120], "another machine"),
        ("390.157", [60], "another machine"),
    ],
)
def test_the_nearest_build_is_named(driver: str, sms: list[int], named: str) -> None:
    """Driver and card together decide."""
    assert named in build.nearest(driver, None, sms)


def test_c01_names_driver_floor_and_build() -> None:
    """C01: what is there, what is needed, what fits; and no driver is ever to be installed."""
    found = build.fits("12.1", "470.199.02", 11040, [75])

    assert "470.199.02" in found.text and "525.60.13" in found.text
    assert "11.8" in found.remedy and "never install one" in found.remedy


@pytest.mark.parametrize(
    ("facts", "sm", "knows", "status"),
    [
        (torch(), 89, 12020, "pass"),
        (torch(), 120, 12080, "fail"),
        (torch(), None, 12020, "warn"),
        (torch(archs=()), 89, 12020, "warn"),
        (torch(cuda="13.0", archs=NEW), 130, 13000, "warn"),  # PTX runs, and is slow at first
        (torch(cuda="13.2", archs=NEW), 130, 13000, "fail"),  # PTX newer than the driver
        (torch(cuda="13.0", archs=NEW), 130, None, "fail"),
        (torch(cuda="13.0", archs=NEW), 70, 13000, "fail"),
    ],
)
def test_the_build_has_code_for_the_card(facts: build.Torch, sm: int | None, knows: int | None, status: str) -> None:
    """Unknown is never a pass."""
    assert build.covered(facts, knows, [sm]).status == status


def test_the_remedy_for_a_card_says_which_way() -> None:
    """A new card needs a newer build, an old one an older."""
    assert "12.8 or later" in build.covered(torch(), 12080, [120]).remedy
    assert "12.6 or older" in build.covered(torch(archs=NEW), 13000, [70]).remedy


def test_a_cpu_build_fails_where_a_gpu_is() -> None:
    """`+cpu` is caught; without a GPU it is a warning."""
    cpu = torch(version="2.4.1+cpu", cuda=None)

    assert build.build(cpu, has_gpu=True).status == "fail"
    assert "CPU build" in build.build(cpu, has_gpu=True).cause
    assert build.build(cpu, has_gpu=False).status == "warn"
    assert build.build(torch(), has_gpu=True).status == "pass"


def test_the_build_equals_the_combo() -> None:
    """Another torch than the image's is found; a box without a manifest is not judged."""
    manifest = {"combo": "one", "torch": "2.4.1", "cuda": "12.1", "python": "3.11"}

    assert build.combo(torch(), manifest).status == "pass"
    assert build.combo(torch(), None).status == "skip"
    other = build.combo(torch(version="2.5.1+cpu", cuda=None), manifest)
    assert other.status == "fail"
    assert "torch 2.5.1 instead of 2.4.1" in other.text and "cuda none instead of 12.1" in other.text
    assert build.combo(torch(python="3.12"), manifest).status == "fail"


def test_changed_packages_are_named() -> None:
    """Another version or a missing one warns; one more does not."""
    rows = [
        {"name": "nvidia_cudnn.cu12", "version": "9.1", "kind": "wheel"},
        {"name": "bash", "version": "5", "kind": "system"},
    ]
    installed = {"nvidia-cudnn-cu12": "9.1", "extra": "1"}

    assert build.packages(torch(packages=installed), {"packages": rows}).status == "pass"
    changed = build.packages(torch(packages={"nvidia-cudnn-cu12": "9.11"}), {"packages": rows})
    assert (changed.status, "9.11 instead of 9.1" in changed.text) == ("warn", True)
    assert "missing" in build.packages(torch(), {"packages": rows}).text


def test_torch_says_whether_it_can_use_the_gpu() -> None:
    """A warning beside a working card warns; an error, or no card, fails."""
    assert build.usable(torch()).status == "pass"
    assert build.usable(torch(warned="GPU0 … which is of compute capability (CC) 7.0")).status == "warn"
    assert build.usable(torch(error="RuntimeError: No CUDA GPUs are available")).status == "fail"
    silent = build.usable(torch(devices=0))
    assert (silent.status, "does not say why" in silent.text) == ("fail", True)
