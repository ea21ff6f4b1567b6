# ruff: noqa: E501 - a machine is a row
"""`crab check` against a libcuda and an NVML that are really loaded.

They are small stubs, compiled here, that tell of a machine in environment variables; so does the torch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STUBS = ROOT / "tests/stubs"
GCC = shutil.which("gcc")
pytestmark = pytest.mark.skipif(GCC is None, reason="needs gcc to compile the stub libraries")

# Driver, the CUDA it knows, and the card as libcuda and NVML tell of it.
T4 = {"STUB_DRIVER": "470.199.02", "STUB_CUDA": "11040", "STUB_DEVICES": "Tesla T4:75:15109", "STUB_CARDS": "Tesla T4:15109:0:-:-:0:0"}  # fmt: skip
V100 = {"STUB_DRIVER": "535.104.05", "STUB_DEVICES": "Tesla V100-SXM2-32GB:70:32510", "STUB_CARDS": "Tesla V100-SXM2-32GB:32510:0:-:-:0:0"}  # fmt: skip
RTX3090 = {"STUB_DRIVER": "550.54.15", "STUB_CUDA": "12040", "STUB_DEVICES": "NVIDIA GeForce RTX 3090:86:24260", "STUB_CARDS": "NVIDIA GeForce RTX 3090:24576:12:-:-:-:0x4"}  # fmt: skip
RTX4090 = {"STUB_DRIVER": "550.54.15", "STUB_CUDA": "12040", "STUB_DEVICES": "NVIDIA GeForce RTX 4090:89:24210", "STUB_CARDS": "NVIDIA GeForce RTX 4090:24564:1:-:-:-:0x1"}  # fmt: skip
A100 = {"STUB_DRIVER": "580.126.09", "STUB_CUDA": "13000", "STUB_DEVICES": "NVIDIA A100-SXM4-40GB:80:40330", "STUB_CARDS": "NVIDIA A100-SXM4-40GB:40960:4:off:-:0:0"}  # fmt: skip
SLICED = {**A100, "STUB_DEVICES": "NVIDIA A100-SXM4-40GB MIG 3g.20gb:80:20096", "STUB_CARDS": "NVIDIA A100-SXM4-40GB:40960:249:on:3g.20gb=20096,1g.10gb=9984:0:0"}  # fmt: skip
UNCUT = {**A100, "STUB_INIT": "100", "STUB_DEVICES": "", "STUB_CARDS": "NVIDIA A100-SXM4-40GB:40960:0:on:-:0:0"}
RTX5090 = {"STUB_DRIVER": "610.43.02", "STUB_CUDA": "13030", "STUB_DEVICES": "NVIDIA GeForce RTX 5090:120:32607", "STUB_CARDS": "NVIDIA GeForce RTX 5090:32607:1:-:-:-:0"}  # fmt: skip
NO_DEVICE = {"STUB_INIT": "100"}

FAKE_TORCH = '''
"""A torch that is what FAKE_TORCH says."""
import json, os, signal, types, warnings

said = json.loads(os.environ["FAKE_TORCH"])
if "import" in said:
    raise ImportError(said["import"])
__version__ = said["version"]
version = types.SimpleNamespace(cuda=said["cuda"])
float32 = float16 = bfloat16 = "a type"
nn = types.SimpleNamespace(functional=types.SimpleNamespace(conv2d=None))
Generator = lambda: types.SimpleNamespace(manual_seed=lambda seed: None)

def _available():
    if "warning" in said:
        warnings.warn(said["warning"])
    return said.get("available", True)

def zeros(*_, **__):
    if "error" in said:
        raise RuntimeError(said["error"])

def randn(*_, **__):
    if said.get("kernel") == "crash":
        import faulthandler
        faulthandler.disable()
        os.kill(os.getpid(), signal.SIGSEGV)
    raise RuntimeError(said.get("kernel", "CUDA error: no kernel image is available for execution on the device"))

cuda = types.SimpleNamespace(
    is_available=_available,
    device_count=lambda: 1,
    get_arch_list=lambda: said["archs"],
    get_device_capability=lambda index: (8, 0),
    init=lambda: zeros(),
)
'''
OLD = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CU12 = {"version": "2.4.1+cu121", "cuda": "12.1", "archs": OLD}
CU13 = {"version": "2.11.0+cu130", "cuda": "13.0", "archs": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]}


def compile_stubs(folder: Path, *flags: str) -> Path:
    """Compile both libraries; the flags leave functions out."""
    folder.mkdir(parents=True, exist_ok=True)
    for source, name in (("cuda.c", "libcuda.so.1"), ("nvml.c", "libnvidia-ml.so.1")):
        command = [str(GCC), "-Wall", "-Wno-unused-function", "-Werror", "-shared", "-fPIC", *flags]
        subprocess.run([*command, "-o", str(folder / name), str(STUBS / source)], check=True)
    return folder


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The libraries of a driver of today."""
    return compile_stubs(tmp_path_factory.mktemp("stubs"))


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The libraries of a driver that lacks half of the functions."""
    return compile_stubs(tmp_path_factory.mktemp("old"), "-DOLD")


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    """A folder with the fake torch."""
    (tmp_path / "site/torch").mkdir(parents=True)
    (tmp_path / "site/torch/__init__.py").write_text(FAKE_TORCH)
    return tmp_path / "site"


class Result:
    """What one run said."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code = done.returncode
        document = json.loads(done.stdout)
        assert document["exit"] == self.code, done.stderr
        self.found: dict[str, dict[str, str]] = {row["id"]: row for row in document["findings"]}
        assert len(self.found) == len(document["findings"]), "an id stands twice"

    def __getitem__(self, id_: str) -> dict[str, str]:
        return self.found[id_]

    def status(self, *ids: str) -> list[str]:
        return [self.found[id_]["status"] for id_ in ids]


def crab(root: Path, libraries: Path | None, machine: dict[str, str], *options: str, **more: Any) -> Result:
    """Run the check in a process of its own, on a fake root, with the libraries where the loader looks."""
    environ = {"PATH": more.get("path", "/nowhere"), "PYTHONPATH": f"{ROOT}:{more.get('site', '')}", **machine}
    if libraries:
        environ["LD_LIBRARY_PATH"] = str(libraries)
    if "torch" in more:
        environ["FAKE_TORCH"] = json.dumps(more["torch"])
    program = (
        "import sys, pathlib; from hermitcrab.box import check; "
        f"check.DRIVER_SECONDS = {more.get('seconds', 30)}; "
        "sys.exit(check.main(sys.argv[2:], pathlib.Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", program, str(root), "--json", "--quick", *options]
    return Result(subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120))


@pytest.mark.parametrize("machine", [T4, V100, RTX3090, RTX4090, A100, RTX5090])
def test_a_driver_and_its_card_are_read(machine: dict[str, str], stubs: Path, tmp_path: Path) -> None:
    """Version, CUDA, name and memory come from the libraries."""
    result = crab(tmp_path, stubs, machine)
    cuda = int(machine.get("STUB_CUDA", "12020"))

    assert result.status("driver.libcuda", "driver.version", "gpu.count", "gpu0.memory") == ["pass"] * 4
    assert (
        f"driver {machine['STUB_DRIVER']}; it knows CUDA {cuda // 1000}.{cuda % 1000 // 10}"
        in result["driver.version"]["text"]
    )
    name = machine["STUB_DEVICES"].split(":")[0]
    assert f"1 GPU: {name}" in result["gpu.count"]["text"]
    assert name in result["gpu0.memory"]["text"]


def test_a_driver_without_half_of_the_functions_is_read(old: Path, tmp_path: Path) -> None:
    """What it does not tell is unknown, and nothing breaks."""
    result = crab(tmp_path, old, A100)

    assert result.status("driver.libcuda", "driver.version", "gpu.count", "gpu0.memory") == ["pass"] * 4
    assert result["gpu0.mig"]["status"] == "skip"


def test_unknown_memory_is_no_exception(stubs: Path, tmp_path: Path) -> None:
    """C08: no rights to read it, and a process whose memory is not told."""
    unknown = {**RTX4090, "STUB_CARDS": "NVIDIA GeForce RTX 4090:-:-:-:-:-:-"}
    held = {**RTX4090, "STUB_CARDS": "NVIDIA GeForce RTX 4090:24564:9000:-:-:-:0x60", "STUB_PID": "4242"}

    result = crab(tmp_path, stubs, unknown)
    assert result.status("gpu0.memory", "gpu0.health", "gpu0.users") == ["warn", "skip", "skip"]
    result = crab(tmp_path, stubs, held)
    assert result.status("gpu0.memory", "gpu0.health", "gpu0.users") == ["pass", "warn", "warn"]
    assert "8.8 GiB of its memory is held by a process 4242 (unknown)" in result["gpu0.users"]["text"]
    assert "too hot" in result["gpu0.health"]["text"]


def test_slices_are_what_a_process_gets(stubs: Path, tmp_path: Path) -> None:
    """C08: one usable device of 20 GB, although the card has 40."""
    result = crab(tmp_path, stubs, SLICED)

    assert "1 GPU: NVIDIA A100-SXM4-40GB MIG 3g.20gb" in result["gpu.count"]["text"]
    assert "3g.20gb of 19.6 GiB, 1g.10gb of 9.8 GiB" in result["gpu0.mig"]["text"]
    assert crab(tmp_path, stubs, SLICED, "--expect", "A100")["gpu.expect"]["status"] == "fail"


def test_mig_without_slices_fails(stubs: Path, tmp_path: Path) -> None:
    """C08: a verdict of its own."""
    result = crab(tmp_path, stubs, UNCUT)

    assert result.code == 1
    assert "MIG is on without slices (needs the host owner)" in result["gpu.count"]["text"]


def test_no_driver_is_skipped(tmp_path: Path) -> None:
    """Exit 3, and nothing that was not looked at passes."""
    result = crab(tmp_path, None, {})

    assert result.code == 3
    assert "no NVIDIA driver" in result["gpu.count"]["text"]
    assert result.status("driver.libcuda", "driver.version", "kernel.fp32") == ["skip"] * 3


def test_no_device_is_skipped(stubs: Path, tmp_path: Path) -> None:
    """The driver answers, and there is no card."""
    result = crab(tmp_path, stubs, NO_DEVICE)

    assert result.code == 3
    assert "driver 535.104.05 answers, but there is no device" in result["gpu.count"]["text"]


def test_an_expected_card_that_is_missing_fails(stubs: Path, tmp_path: Path) -> None:
    """Whoever names a card has paid for it."""
    assert crab(tmp_path, stubs, NO_DEVICE, "--expect", "RTX 4090").code == 1
    assert crab(tmp_path, stubs, RTX3090, "--expect", "RTX 4090")["gpu.expect"]["status"] == "fail"
    assert crab(tmp_path, stubs, RTX4090, "--expect", "RTX 4090")["gpu.expect"]["status"] == "pass"


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"STUB_NVML": "18", "STUB_INIT": "803"}, "Driver/library version mismatch"),
        ({"STUB_NVML": "999", "STUB_INIT": "999"}, "Unknown Error"),
        ({"STUB_NVML": "9", "STUB_INIT": "100"}, "Driver Not Loaded"),
        ({"STUB_INIT": "804"}, "Error 804: forward compatibility was attempted"),
        ({"STUB_INIT": "802"}, "Error 802: system not yet initialized"),
        ({"STUB_INIT": "34"}, "stub library"),
    ],
)
def test_a_driver_that_does_not_answer_fails(broken: dict[str, str], said: str, stubs: Path, tmp_path: Path) -> None:
    """With the driver's own words and what they mean."""
    result = crab(tmp_path, stubs, {**A100, **broken})

    assert result.code == 1
    texts = result["gpu.count"]["text"] + result["driver.version"]["text"]
    assert said in texts
    assert result["gpu.count"]["remedy"] and "not known" not in result["gpu.count"]["cause"]


def test_nvml_alone_in_trouble_warns(stubs: Path, tmp_path: Path) -> None:
    """CUDA works: the cards come from libcuda, and what only NVML tells is unknown."""
    result = crab(tmp_path, stubs, {**RTX4090, "STUB_NVML": "18"})

    assert result.status("driver.version", "gpu.count", "gpu0.memory") == ["warn", "pass", "warn"]


def test_a_driver_that_crashes_is_a_finding(stubs: Path, tmp_path: Path) -> None:
    """The check outlives it."""
    result = crab(tmp_path, stubs, {**A100, "STUB_SICK": "crash"})

    assert result.code == 1
    assert "killed by SIGSEGV" in result["driver.libcuda"]["text"]
    assert result["box.files"]["status"] in {"pass", "warn"}


@pytest.mark.timeout(60)
def test_a_driver_that_hangs_is_a_finding(stubs: Path, tmp_path: Path) -> None:
    """The check does not wait for ever."""
    result = crab(tmp_path, stubs, {**A100, "STUB_SICK": "hang"}, seconds=1)

    assert result.code == 1
    assert "no answer" in result["driver.libcuda"]["text"]


def test_a_library_where_the_loader_does_not_look_is_found(stubs: Path, tmp_path: Path) -> None:
    """As in WSL: it is read, with a warning that torch will not find it."""
    folder = tmp_path / "usr/lib/wsl/lib"
    shutil.copytree(stubs, folder)

    result = crab(tmp_path, None, RTX4090)
    assert result.status("driver.libcuda", "driver.version", "gpu.count") == ["warn", "pass", "pass"]
    assert f"{folder} > /etc/ld.so.conf.d" in result["driver.libcuda"]["remedy"]


def test_an_empty_file_is_no_library(tmp_path: Path) -> None:
    """What is left of a mount in a saved image."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libcuda.so.1").touch()

    result = crab(tmp_path, tmp_path / "lib", {})
    assert result.code == 3
    assert "An empty file lies where the driver is mounted" in result["driver.libcuda"]["cause"]


def test_a_file_without_functions_is_no_driver(tmp_path: Path) -> None:
    """A library of the right name with nothing in it."""
    (tmp_path / "empty.c").write_text("int nothing;\n")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        subprocess.run(
            [str(GCC), "-shared", "-fPIC", "-o", str(tmp_path / name), str(tmp_path / "empty.c")], check=True
        )

    result = crab(tmp_path, tmp_path, {})
    assert result.code == 1
    assert "not a driver's library" in result["gpu.count"]["text"]


@pytest.mark.parametrize(
    ("machine", "said", "failed"),
    [
        (T4, CU12, "torch.driver"),
        (V100, CU13, "torch.driver"),
        ({**V100, "STUB_DRIVER": "580.65.06", "STUB_CUDA": "13000"}, CU13, "torch.arch"),
        (RTX5090, CU12, "torch.arch"),
        (RTX4090, {**CU12, "cuda": None, "version": "2.4.1+cpu"}, "torch.build"),
        (RTX4090, {**CU12, "error": "No CUDA GPUs are available"}, "torch.cuda"),
        (RTX4090, {"import": "x/libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4"}, "torch.build"),
        (RTX4090, CU12, "kernel.fp32"),
    ],
)  # fmt: skip
def test_a_torch_that_does_not_fit_fails(
    machine: dict[str, str], said: dict[str, Any], failed: str, stubs: Path, torch: Path
) -> None:
    """The finding that fails says why and what to do."""
    result = crab(torch.parent, stubs, machine, site=torch, torch=said)

    assert result.code == 1
    assert result[failed]["status"] == "fail"
    assert result[failed]["cause"] and result[failed]["remedy"]
    assert "not known" not in result[failed]["cause"]


def test_an_old_driver_is_explained_from_torchs_own_warning(stubs: Path, torch: Path, tmp_path: Path) -> None:
    """C01: the rule and torch's warning agree, and name the build to take."""
    warning = (ROOT / "tests/cases/C01b.txt").read_text().splitlines()[0]

    result = crab(tmp_path, stubs, T4, site=torch, torch={**CU12, "available": False, "warning": warning})
    assert result.status("torch.driver", "torch.cuda", "torch.arch", "kernel.fp32") == ["fail", "fail", "pass", "skip"]
    assert "CUDA 11.8" in result["torch.driver"]["remedy"]
    assert "CUDA 11.4" in result["torch.cuda"]["cause"]


def test_a_fitting_torch_has_no_fault_before_the_kernels(stubs: Path, torch: Path, tmp_path: Path) -> None:
    """The neighbour of the rows above: RTX 4090 by sm_86, driver 550 for CUDA 12.1."""
    result = crab(tmp_path, stubs, RTX4090, site=torch, torch=CU12)

    assert result.status("torch.build", "torch.driver", "torch.cuda", "torch.arch") == ["pass"] * 4
    assert "sm_89" in result["torch.arch"]["text"]
    assert result.status("kernel.compile", "kernel.nccl", "disk.write") == ["skip"] * 3  # --quick


def test_a_kernel_that_crashes_is_a_finding(stubs: Path, torch: Path, tmp_path: Path) -> None:
    """After two crashes the rest is not run, and says so."""
    result = crab(tmp_path, stubs, RTX4090, site=torch, torch={**CU12, "kernel": "crash"})

    assert result.code == 1
    assert "SIGSEGV" in result["kernel.fp32"]["text"]
    assert "not run" in result["kernel.cudnn"]["text"]


def test_a_changed_combo_fails_also_without_a_gpu(stubs: Path, torch: Path, tmp_path: Path) -> None:
    """The image's manifest is on the box."""
    manifest = tmp_path / "etc/hermitcrab/manifest.json"
    manifest.parent.mkdir(parents=True)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    manifest.write_text(json.dumps({"combo": "one", "torch": "2.4.1", "cuda": "12.1", "python": version}))

    assert crab(tmp_path, stubs, NO_DEVICE, site=torch, torch=CU12).code == 3
    result = crab(tmp_path, stubs, NO_DEVICE, site=torch, torch={**CU12, "version": "2.5.0+cpu", "cuda": None})
    assert result.code == 1
    assert result.status("torch.build", "torch.combo") == ["warn", "fail"]


def test_the_tools_text_is_the_last_resort(tmp_path: Path) -> None:
    """C01: without any library the banner still tells driver and card, and that programs cannot use it."""
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ -n "$1" ] && exit 2\nexec /bin/cat {ROOT}/tests/cases/C01.txt\n')
    program.chmod(0o755)

    result = crab(tmp_path, None, {}, path=str(program.parent))
    assert result.code == 1
    assert "driver 470.199.02; it knows CUDA 11.4" in result["driver.version"]["text"]
    assert "the driver does not answer: libcuda.so.1" in result["gpu.count"]["text"]


def test_wrong_use_is_told() -> None:
    """Exit 2, as everywhere."""
    command = [sys.executable, "-m", "hermitcrab.cli", "check", "--nonsense"]
    done = subprocess.run(command, cwd=str(ROOT), env=dict(os.environ), capture_output=True, text=True, check=False)

    assert (done.returncode, "--nonsense" in done.stderr) == (2, True)
