"""The cards and the verdict: each way of having no GPU is a text of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermitcrab.box.check import devices, driver, verdict
from hermitcrab.box.check.banner import Smi
from hermitcrab.box.check.child import Failure
from hermitcrab.box.check.driver import Facts
from hermitcrab.box.check.findings import Finding
from hermitcrab.box.check.libcuda import Cuda, Device
from hermitcrab.box.check.nvml import Card, Nvml, Process, Slice
from hermitcrab.box.limits import read_limits
from hermitcrab.box.platform import Platform, detect
from hermitcrab.box.platforms import ROWS

GIB = 2**30
MISSING = "libcuda.so.1: cannot open shared object file: No such file or directory"
NO_NVML = "libnvidia-ml.so.1: cannot open shared object file: No such file or directory"
NO_DRIVER = Facts(Cuda(error=MISSING), Nvml(error=NO_NVML), Smi(said="nvidia-smi: command not found"))
NO_DEVICE = Facts(
    Cuda("libcuda.so.1", "Error 100: no CUDA-capable device is detected", 12020), Nvml("x", driver="535.54")
)
A100 = Card("NVIDIA A100-SXM4-40GB", 40 * GIB, 0, mig=True)


LIMITS = read_limits(Path("/nowhere"))
UNKNOWN = detect(Path("/nowhere"), {})
AUTODL = UNKNOWN._replace(name="AutoDL", confidence="high", kind="container", row=ROWS["autodl"])
VM = UNKNOWN._replace(name="Lambda", confidence="high", kind="vm", row=ROWS["lambda"])


def judge(facts: Facts, platform: Platform = UNKNOWN, memory: int | None = None, **environ: str) -> Finding:
    """Judge on a machine of the given kind."""
    return verdict.judge(facts, verdict.Box(platform, LIMITS._replace(memory=memory), environ))


def test_no_driver_and_no_device_are_told_apart() -> None:
    """C05: both are skipped, neither passes, and the texts differ."""
    no_driver, no_device = judge(NO_DRIVER), judge(NO_DEVICE)

    assert [no_driver.status, no_device.status] == ["skip", "skip"]
    assert "no NVIDIA driver" in no_driver.text
    assert "there is no device" in no_device.text


def test_the_text_of_a_tool_alone_tells_that_there_is_no_device() -> None:
    """C05: "No devices were found"."""
    facts = NO_DRIVER._replace(smi=Smi(ran=True, said="No devices were found"))

    assert "there is no device" in judge(facts).text


@pytest.mark.parametrize(
    ("cuda", "nvml", "smi", "said"),
    [
        ("Error 999: unknown error", "", None, "nvidia_uvm"),
        ("Error 804: x", "", None, "compat"),
        ("Error 100: x", "Failed to initialize NVML: Driver/library version mismatch", Smi(), "without a reboot"),
        ("Error 999: x", "Failed to initialize NVML: Unknown Error", Smi(), "device files"),
        ("", "", Smi(ran=True, said="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
         "kernel module is not"),
    ],
)  # fmt: skip
def test_a_driver_that_does_not_answer_fails(cuda: str, nvml: str, smi: Smi | None, said: str) -> None:
    """C05, the third verdict: something is there, and it is broken."""
    facts = Facts(Cuda("x" if cuda else "", cuda or MISSING), Nvml("x" if nvml else "", nvml), smi)

    found = judge(facts)
    assert (found.status, found.text.startswith("the driver does not answer: ")) == ("fail", True)
    assert said in found.cause


def test_a_hanging_driver_fails() -> None:
    """No answer is not "no GPU"."""
    facts = driver.unanswered(Failure("no answer in 10 s"))

    assert driver.library_finding(facts, "fail").status == "fail"
    assert (judge(facts).status, "hangs" in judge(facts).text) == ("fail", True)


@pytest.mark.parametrize("facts", [NO_DRIVER, NO_DEVICE, Facts(Cuda("x", "Error 999: unknown error"), Nvml("x", "y"))])
def test_the_mode_without_a_card_is_named(facts: Facts) -> None:
    """AutoDL's 无卡模式 is a skip, whatever the driver says there; known by its memory limit."""
    found = judge(facts, AUTODL, 2147483648)

    assert (found.status, "无卡模式" in found.text) == ("skip", True)
    assert "无卡模式" not in judge(facts, VM, 2147483648).text
    assert "无卡模式" not in judge(facts, AUTODL, 60 << 30).text
    assert "无卡模式" not in judge(facts, AUTODL).text
    assert "无卡模式" not in judge(facts._replace(nodes=("nvidia0",)), AUTODL, 2147483648).text


def test_where_that_mode_exists_it_is_the_likely_cause() -> None:
    """C05: also without the memory limit."""
    assert "无卡模式" in judge(NO_DEVICE, AUTODL).cause


def test_mig_without_slices_fails() -> None:
    """C08: the card is there, and unusable."""
    found = judge(NO_DEVICE._replace(nvml=Nvml("x", driver="580.126", cards=(A100,))))

    assert found.status == "fail"
    assert "MIG is on without slices (needs the host owner)" in found.text


def test_slices_known_from_the_tool_are_slices() -> None:
    """With a slice, MIG is not what is in the way."""
    card = A100._replace(slices=(Slice("", 20 * GIB),))

    assert "MIG" not in judge(NO_DEVICE._replace(nvml=Nvml("x", cards=(card,)))).text


def test_a_hidden_card_fails() -> None:
    """CUDA_VISIBLE_DEVICES is named with its value."""
    facts = NO_DEVICE._replace(nvml=Nvml("x", cards=(Card("Tesla T4"),)))

    found = judge(facts, CUDA_VISIBLE_DEVICES="7")
    assert (found.status, "CUDA_VISIBLE_DEVICES is '7'" in found.text) == ("fail", True)
    assert judge(facts).status == "fail"


def test_a_card_without_its_driver_fails() -> None:
    """Devices without libraries, tools without libcuda, a VM without a driver."""
    assert judge(NO_DRIVER._replace(nodes=("nvidia0",))).status == "fail"
    assert judge(NO_DRIVER._replace(nvml=Nvml("x", cards=(Card("Tesla T4"),)), smi=None)).status == "fail"
    assert judge(NO_DRIVER._replace(on_bus=1), VM).status == "fail"
    assert judge(NO_DRIVER._replace(on_bus=1), AUTODL).status == "skip"  # the host's bus


def test_the_hosts_driver_is_told() -> None:
    """The kernel module is seen also in a box that was started without the GPU."""
    assert "535.54.03" in judge(NO_DRIVER._replace(module="535.54.03")).cause


@pytest.mark.parametrize(
    ("name", "gib", "expect", "same"),
    [
        ("NVIDIA GeForce RTX 4090", 24, "RTX 4090", True),
        ("NVIDIA GeForce RTX 4090", 24, "rtx4090", True),
        ("NVIDIA GeForce RTX 4090", 24, "NVIDIA GeForce RTX 4090 24GB", True),
        ("NVIDIA GeForce RTX 4090", 24, "4090 48GB", False),
        ("NVIDIA GeForce RTX 4090 D", 24, "RTX 4090", False),
        ("NVIDIA GeForce RTX 4090 D", 24, "RTX 4090D", True),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16, "RTX 4090", False),
        ("NVIDIA GeForce RTX 3080 Ti", 12, "RTX 3080", False),
        ("NVIDIA GeForce RTX 3090", 24, "RTX 4090", False),
        ("NVIDIA A100-SXM4-80GB", 80, "A100", True),
        ("NVIDIA A100-SXM4-80GB", 80, "A100 80GB", True),
        ("NVIDIA A100-SXM4-40GB", 40, "A100 80GB", False),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 20, "A100", False),
        ("NVIDIA A10", 24, "A100", False),
        ("NVIDIA A10G", 24, "A10", False),
        ("NVIDIA H200", 141, "H20", False),
        ("Tesla T4", 14.75, "T4 16GB", True),
        ("", 24, "RTX 4090", False),
        ("Tesla T4", 16, "", False),
    ],
)
def test_a_card_is_the_expected_one(name: str, gib: float, expect: str, same: bool) -> None:
    """A variant is another card, and an unknown one is not the expected one."""
    assert devices.is_card(name, int(gib * GIB), expect) is same


def test_one_other_card_among_many_fails() -> None:
    """Every card must be the expected one; and none at all is not."""
    right, other = Device("Tesla T4", 75, 15 * GIB), Device("Tesla P4", 61, 8 * GIB)

    assert devices.expected(Facts(Cuda("x", devices=(right, right))), "T4").status == "pass"
    mixed = devices.expected(Facts(Cuda("x", devices=(right, other))), "T4")
    assert (mixed.status, "found Tesla P4" in mixed.text) == ("fail", True)
    assert devices.expected(NO_DEVICE, "T4").status == "fail"


def test_unknown_memory_warns() -> None:
    """C08: no rights to read it is no exception and no pass."""
    assert devices.memory("x", Card("Tesla T4", 15 * GIB, 0)).status == "pass"
    found = devices.memory("x", Card("Tesla T4"))
    assert (found.status, "memory unknown" in found.text) == ("warn", True)


def test_a_sliced_card_is_not_taken_for_a_whole_one() -> None:
    """C08: 20 or 10 GB, not 40."""
    card = A100._replace(slices=(Slice("NVIDIA A100 MIG 3g.20gb", 20096 << 20), Slice("", None)))

    found = devices.slices("x", card)
    assert found.status == "pass"
    assert "3g.20gb of 19.6 GiB, a slice of unknown; a process uses one" in found.text
    assert devices.slices("x", A100).status == "warn"
    assert devices.slices("x", Card(mig=False)).status == "pass"
    assert devices.slices("x", Card()).status == "skip"


def test_health_is_judged() -> None:
    """Lost data fails, heat warns, an idle clock and a power cap are in order, unknown is no pass."""
    assert devices.health("x", Card(ecc_errors=2, throttle=0)).status == "fail"
    assert devices.health("x", Card(ecc_errors=0, throttle=0x40)).status == "warn"
    assert devices.health("x", Card(ecc_errors=0, throttle=0x1 | 0x4)).status == "pass"
    assert devices.health("x", Card()).status == "skip"


def test_memory_held_by_others_warns(tmp_path: Path) -> None:
    """With the program's name where it is one of ours."""
    (tmp_path / "proc/42").mkdir(parents=True)
    (tmp_path / "proc/42/comm").write_text("python\n")
    card = Card("Tesla T4", 15 * GIB, 9 * GIB, processes=(Process(42, 8 * GIB), Process(7, None)))

    found = devices.users("x", card, tmp_path)
    assert found.status == "warn"
    assert "9.0 GiB of its memory is held by python 42 (8.0 GiB), a process 7 (unknown)" in found.text
    assert "not to be seen" in devices.users("x", card._replace(processes=()), tmp_path).text
    assert devices.users("x", Card(used=500 << 20), tmp_path).status == "pass"
    assert devices.users("x", Card(), tmp_path).status == "skip"


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (x)", "570.86.15"),
        ("NVRM version: something else", ""),
    ],
)
def test_the_kernel_module_tells_its_version(line: str, version: str, tmp_path: Path) -> None:
    """The closed and the open module spell it differently."""
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(f"{line}\nGCC version: gcc version 12.2.0 (x86_64)\n")

    assert driver._module(tmp_path) == version


def test_cards_on_the_bus_are_counted(tmp_path: Path) -> None:
    """Only display and 3D controllers of NVIDIA; a sound device of theirs is none."""
    for number, (vendor, kind) in enumerate([("0x10de", "0x030200"), ("0x10de", "0x040300"), ("0x8086", "0x030000")]):
        folder = tmp_path / f"sys/bus/pci/devices/{number}"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")

    assert sum(driver._is_card(folder) for folder in tmp_path.glob("sys/bus/pci/devices/*")) == 1


def test_an_unknown_driver_is_no_pass() -> None:
    """Neither version nor CUDA: warn beside a card, else what the verdict says."""
    device = Device("Tesla T4", 75, 15 * GIB)

    assert driver.version_finding(Facts(Cuda("x", devices=(device,))), "fail").status == "warn"
    assert driver.version_finding(Facts(Cuda("x", "Error 999: x")), "fail").status == "fail"
    assert driver.version_finding(Facts(Cuda("x", version=12020), module="535.54.03"), "fail").status == "pass"
