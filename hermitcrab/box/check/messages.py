"""What torch and the driver say when a GPU does not work: cause and remedy of each in plain words."""

from __future__ import annotations

import re
from typing import NamedTuple


class Message(NamedTuple):
    """A message by its stable name and what it looks like; ``{cuda}`` stands for a version in it."""

    name: str
    pattern: str
    cause: str
    remedy: str


class Meaning(NamedTuple):
    """What a message means here."""

    name: str
    cause: str
    remedy: str


LONGEST = 200
ANOTHER_BUILD = "Take a torch build (image) of a CUDA that fits: this check names it at torch.driver and torch.arch."
RESTART = "Stop and start the instance; if it stays, take another machine: only the host's owner can mend this."
# The first match counts: errors with a number come before the sentences that carry them.
CATALOGUE = (
    Message(
        "driver-too-old",
        r"NVIDIA driver on your system is too old \(found version (?P<number>\d+)\)",
        "The driver knows CUDA {cuda}, this torch was built for a newer major version of CUDA.",
        f"{ANOTHER_BUILD} A renter cannot change the driver: never install one in a container.",
    ),
    Message(
        "no-driver",
        r"Found no NVIDIA driver on your system",
        "libcuda.so.1 is not in the box: no GPU was given to it, or NVIDIA_DRIVER_CAPABILITIES lacks `compute`.",
        "Start the instance with its GPU (docker: --gpus all, NVIDIA_DRIVER_CAPABILITIES=compute,utility).",
    ),
    Message(
        "forward-compatibility",
        r"Error 804\b|forward compatibility was attempted on non supported HW",
        "A libcuda of cuda-compat is loaded on a card that may not use it, or the host's driver was upgraded "
        "without a reboot.",
        "Take the compat folder out of LD_LIBRARY_PATH or remove it (ls -d /usr/local/cuda*/compat); "
        "else restart the instance.",
    ),
    Message(
        "fabric-manager",
        r"Error 802\b|system not yet initialized",
        "The cards are joined by NVSwitch and the host's fabric manager does not run.",
        "The host's owner must start nvidia-fabricmanager; as a renter, take another machine.",
    ),
    Message(
        "version-mismatch",
        r"[Dd]river/library version mismatch|Error 803\b|unsupported display driver / cuda driver combination",
        "The driver's libraries are not those of the loaded kernel module: the host was upgraded without a reboot, "
        "or the box holds NVIDIA libraries of its own.",
        "Remove libnvidia-* and nvidia-driver packages from the box (dpkg -l | grep nvidia); "
        "else the host must reboot.",
    ),
    Message(
        "lost-after-reload",
        r"Failed to initialize NVML: Unknown Error",
        "The container lost its device files, as after a `systemctl daemon-reload` on the host.",
        "Restart the container. On your own host: pass the devices by --device or CDI.",
    ),
    Message(
        "device-lost",
        r"GPU is lost|fallen off the bus|has fallen off|CUDA-capable device\(s\) is/are busy or unavailable",
        "The card does not answer any more, or another process holds it alone.",
        RESTART,
    ),
    Message(
        "driver-not-loaded",
        r"Driver Not Loaded|couldn't communicate with the NVIDIA driver",
        "The driver's libraries are there, the kernel module is not.",
        "On a machine of your own, install or load the driver; on a rented one, take another.",
    ),
    Message(
        "driver-hangs",
        r"the driver hangs",
        "libcuda or NVML crashed, or gave no answer.",
        RESTART,
    ),
    Message(
        "stub-library",
        r"Error 34\b|CUDA driver is a stub library",
        "The stub libcuda of a CUDA toolkit is loaded: it serves linkers, not programs.",
        "Take the `stubs` folder out of LD_LIBRARY_PATH.",
    ),
    Message(
        "no-gpus",
        r"No CUDA GPUs are available|CUDA driver initialization failed|Error 100\b",
        "CUDA_VISIBLE_DEVICES is empty or names no card, or the GPU was detached.",
        "`unset CUDA_VISIBLE_DEVICES`, then compare with `nvidia-smi -L`.",
    ),
    Message(
        "unknown-error",
        r"CUDA unknown error - this may be due to an incorrectly set up environment|Error 999\b",
        "nvidia_uvm is not loaded, the device files were lost, or CUDA_VISIBLE_DEVICES changed while running.",
        RESTART,
    ),
    Message(
        "ptx-too-new",
        r"provided PTX was compiled with an unsupported toolchain|Error 222\b",
        "Code for this card must be compiled by the driver, which is older than the CUDA the code came from.",
        "Build the extension for this card's architecture (TORCH_CUDA_ARCH_LIST) or with an older CUDA.",
    ),
    Message(
        "no-kernels",
        r"is not compatible with the current PyTorch installation|no kernel image is available for execution"
        r"|does not include kernels for this GPU|No published PyTorch CUDA builds for release"
        r"|Found GPU\d+ .* which is of (?:compute|cuda) capability",
        "This torch holds no code for this card, although torch.cuda.is_available() says True.",
        ANOTHER_BUILD,
    ),
    Message(
        "cudnn-incompatible",
        r"cuDNN version incompatibility",
        "Another cuDNN than torch's own is found first, mostly by LD_LIBRARY_PATH.",
        "`unset LD_LIBRARY_PATH` and try again; remove it from ~/.bashrc and /etc/profile.d.",
    ),
    Message(
        "cudnn-too-new",
        r"cuDNN version \d+ is not compatible with devices with SM",
        "cuDNN was upgraded beyond what this old card can use.",
        "Install the cuDNN of the lock again (nvidia-cudnn 9.10 or older for cards before Turing).",
    ),
    Message(
        "nvjitlink",
        r"undefined symbol: __nvJitLink|libnvJitLink\.so",
        "An older libnvJitLink is found before torch's own: by LD_LIBRARY_PATH, from conda, or not pinned.",
        "`unset LD_LIBRARY_PATH`; if it stays, install nvidia-nvjitlink again in the lock's version.",
    ),
    Message(
        "libcuda-missing",
        r"lib(?:cuda|nvidia-ml)\.so(?:\.1)?: cannot open shared object file|libcuda\.so cannot found",
        "The driver's library is not in the box, or the loader does not know its folder.",
        "Start with the GPU (docker: --gpus all, NVIDIA_DRIVER_CAPABILITIES=compute,utility); "
        "if the file is there, run `ldconfig FOLDER` on its folder.",
    ),
    Message(
        "libcuda-empty",
        r"lib(?:cuda|nvidia-ml)\.so\S*: (?:file too short|invalid ELF header)",
        "An empty file lies where the driver is mounted: the box was saved while a driver was mounted in it.",
        "Start the instance with its GPU; without one, nothing is missing.",
    ),
    Message(
        "cpu-build",
        r"Torch not compiled with CUDA enabled",
        "This torch is a CPU build: a later `pip install` has pulled it in over the GPU build.",
        "Install the pinned build again, and keep the pin in a constraints file (pip install -c).",
    ),
    Message(
        "image-requires-newer-driver",
        r"nvidia-container-cli: requirement error|unsatisfied condition: cuda",
        "The image asks for a newer CUDA than the host's driver knows (NVIDIA_REQUIRE_CUDA of an nvidia/cuda base).",
        "Take an image on a plain base, or start it with NVIDIA_DISABLE_REQUIRE=1.",
    ),
    Message(
        "no-container-toolkit",
        r"could not select device driver .* with capabilities: \[\[gpu\]\]",
        "Docker on the host has no NVIDIA runtime.",
        "On the host: install nvidia-container-toolkit, `nvidia-ctk runtime configure --runtime=docker`, "
        "restart Docker.",
    ),
    Message(
        "broken-build",
        r"libcudart functions unavailable",
        "torch is installed in part, or from parts of several builds.",
        "Remove torch and every nvidia-* package, then install the lock again.",
    ),
    Message(
        "forked",
        r"Cannot re-initialize CUDA in forked subprocess",
        "A process was forked after CUDA had been used in it.",
        "Use multiprocessing's `spawn`, or touch CUDA only after the fork (DataLoader: multiprocessing_context).",
    ),
    Message(
        "out-of-memory",
        r"CUDA out of memory|CUBLAS_STATUS_ALLOC_FAILED|out of memory",
        "Another process holds the card's memory, perhaps of another tenant.",
        "See `nvidia-smi`; end what is yours; if nothing is, take another machine.",
    ),
    Message(
        "not-an-own-library",
        r"not a driver's library",
        "The file has a driver library's name and none of its functions.",
        "Remove the file from LD_LIBRARY_PATH or the box.",
    ),
)


def recognise(text: str) -> Meaning | None:
    """Find what a message means; None is a message of no known meaning."""
    for message in CATALOGUE:
        found = re.search(message.pattern, text, re.DOTALL)
        if found:
            number = found.groupdict().get("number")
            cause = message.cause.format(cuda=cuda_name(int(number))) if number else message.cause
            return Meaning(message.name, cause, message.remedy)
    return None


def explain(text: str) -> tuple[str, str]:
    """Give the cause and remedy of any message, known or not."""
    meaning = recognise(text)
    if meaning:
        return meaning.cause, meaning.remedy
    return "not known to this check", "Look for the message's text in PyTorch's issues, or take another machine."


def one_line(text: str) -> str:
    """Make a message one line, without the advice at its end: ours follows."""
    words = " ".join(text.split())
    return words if len(words) <= LONGEST else f"{words[:LONGEST]} …"


def cuda_name(number: int) -> str:
    """Say the version in a number of the driver: 11040 is CUDA 11.4."""
    return f"{number // 1000}.{number % 1000 // 10}"
