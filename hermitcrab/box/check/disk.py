"""What training needs beside the GPU: a disk that takes checkpoints, shared memory, open files."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from pathlib import Path

from hermitcrab.box.check.findings import FAIL, PASS, WARN, Finding, gib
from hermitcrab.box.disks import Disk
from hermitcrab.box.platform import Platform

BLOCK = 8 * 2**20
MOST = 512 * 2**20
MOST_UNKNOWN = 64 * 2**20  # where the free space is unknown
SECONDS = 5.0
SLOW = 100e6  # bytes a second: a checkpoint of 10 GB takes 100 s
LEAST_SHM = 2**30  # docker's default of 64 MiB breaks every DataLoader with workers
LEAST_FILES = 4096


def target(platform: Platform) -> tuple[Path, int | None]:
    """Choose what to measure: the data disk, else the system disk; with the free bytes, if known."""
    if platform.data:
        return Path(platform.data.path), platform.data.free
    # The root itself is often not to be written to.
    return Path(tempfile.gettempdir()), platform.system.free


def write(folder: Path, free: int | None) -> Finding:
    """Measure writing, up to the disk itself; the file has no name, so that nothing can stay."""
    most = MOST_UNKNOWN if free is None else min(MOST, free // 20)
    if most < BLOCK:
        return Finding(
            "disk.write", FAIL, f"{folder} is full: {gib(free)} free", "", "Make room, or mount a data disk."
        )
    block, written, start = os.urandom(BLOCK), 0, time.monotonic()
    try:
        with tempfile.TemporaryFile(dir=str(folder), buffering=0) as file:
            while written < most and time.monotonic() - start < SECONDS:
                written += file.write(block)
            os.fsync(file.fileno())
    except OSError as error:
        text = f"cannot write to {folder}: {error.strerror}"
        return Finding("disk.write", FAIL, text, "The disk is full, read-only, or not yours.", "Choose another disk.")
    return judge_write(folder, written / max(time.monotonic() - start, 1e-9))


def judge_write(folder: Path, rate: float) -> Finding:
    """Judge the rate by what checkpoints need."""
    text = f"{rate / 1e6:.0f} MB/s written to {folder}"
    if rate < SLOW:
        cause = "A network disk, or a shared one under load: checkpoints will stall training."
        return Finding("disk.write", WARN, text, cause, "Write checkpoints to a local disk, and copy them later.")
    return Finding("disk.write", PASS, text)


def shm(found: Disk) -> Finding:
    """Look at the size of /dev/shm, through which DataLoader workers hand over batches."""
    text = f"{gib(found.total)} of shared memory in /dev/shm"
    if found.total is None:
        return Finding("box.shm", WARN, text, found.note, "Look at `df -h /dev/shm`.")
    if found.total < LEAST_SHM:
        cause = "DataLoader workers die with `Bus error` when it is full."
        return Finding("box.shm", WARN, text, cause, "docker: --shm-size=8g; else num_workers=0.")
    return Finding("box.shm", PASS, text)


def files() -> Finding:
    """Look at the limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least, most = (f"{limit}" if limit != resource.RLIM_INFINITY else "unlimited" for limit in (soft, hard))
    text = f"{least} open files allowed, at most {most}"
    if soft != resource.RLIM_INFINITY and soft < LEAST_FILES:
        return Finding(
            "box.files", WARN, text, "DataLoader workers may meet `Too many open files`.", f"ulimit -n {most}"
        )
    return Finding("box.files", PASS, text)
