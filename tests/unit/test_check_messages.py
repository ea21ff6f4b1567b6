# ruff: noqa: E501 - the messages stand as they are said
"""Every message of torch and the driver is known, with a cause and a remedy."""

from __future__ import annotations

import re

import pytest

from hermitcrab.box.check import messages

# By the number in the catalogue of facts.
SAID = (
    (1, "driver-too-old", "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 12080). Please"),
    (2, "no-driver", "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"),
    (3, "no-gpus", "RuntimeError: No CUDA GPUs are available"),
    (3, "no-gpus", "CUDA driver initialization failed, you might not have a CUDA gpu."),
    (4, "unknown-error", "CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable"),
    (5, "forward-compatibility", "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 804: forward compatibility was attempted on non supported HW"),
    (6, "fabric-manager", "Unexpected error from cudaGetDeviceCount(). ... Error 802: system not yet initialized"),
    (7, "version-mismatch", "Failed to initialize NVML: Driver/library version mismatch"),
    (7, "version-mismatch", "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch"),
    (8, "lost-after-reload", "Failed to initialize NVML: Unknown Error"),
    (9, "no-kernels", "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.\nThe current"),
    (9, "no-kernels", "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
    (10, "no-kernels", "Found GPU0 Tesla V100 which is of compute capability (CC) 7.0."),
    (10, "no-kernels", "No published PyTorch CUDA builds for release 2.13.0 support this GPU."),
    (11, "cudnn-incompatible", "cuDNN version incompatibility: PyTorch was compiled  against (9, 1, 0) but found runtime version (8, 9, 7)."),
    (12, "cudnn-too-new", "cuDNN version 91100 is not compatible with devices with SM < 7.5. Please install a version"),
    (13, "nvjitlink", "ImportError: /x/libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12"),
    (13, "nvjitlink", "undefined symbol: __nvJitLinkAddData_12_1"),
    (14, "libcuda-missing", "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"),
    (14, "libcuda-missing", "AssertionError: libcuda.so cannot found!"),
    (15, "cpu-build", "AssertionError: Torch not compiled with CUDA enabled"),
    (16, "image-requires-newer-driver", "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver"),
    (17, "no-container-toolkit", 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'),
    (18, "ptx-too-new", "CUDA error: the provided PTX was compiled with an unsupported toolchain."),
    (19, "broken-build", "libcudart functions unavailable. It looks like you have a broken build?"),
    (20, "forked", "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn'"),
    (0, "version-mismatch", "Error 803: system has unsupported display driver / cuda driver combination"),
    (0, "stub-library", "Error 34: CUDA driver is a stub library"),
    (0, "libcuda-empty", "libcuda.so.1: file too short"),
    (0, "device-lost", "Failed to initialize NVML: GPU is lost"),
    (0, "driver-not-loaded", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
    (0, "out-of-memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB"),
)  # fmt: skip


@pytest.mark.parametrize(("number", "name", "text"), SAID)
def test_a_message_is_recognised(number: int, name: str, text: str) -> None:
    """Cause and remedy are plain words, without a hole."""
    meaning = messages.recognise(f"Traceback (most recent call last):\n  …\n{text}")

    assert number <= 20
    assert meaning is not None
    assert meaning.name == name
    assert meaning.cause and meaning.remedy and "{" not in meaning.cause + meaning.remedy


def test_no_message_of_the_catalogue_is_left_out() -> None:
    """All twenty are there; a row for each name."""
    assert {number for number, _, _ in SAID} >= set(range(1, 21))
    assert len({row.name for row in messages.CATALOGUE}) == len(messages.CATALOGUE)


def test_an_unknown_message_is_not_explained_away() -> None:
    """A guess would send the user the wrong way."""
    assert messages.recognise("RuntimeError: shapes do not fit") is None
    assert messages.explain("RuntimeError: shapes do not fit")[0] == "not known to this check"


def test_no_row_advises_what_a_renter_cannot_do() -> None:
    """Nobody installs a driver in a container."""
    for row in messages.CATALOGUE:
        assert not re.search(r"(?:update|upgrade|install) (?:the|your) driver in", row.remedy), row.name
