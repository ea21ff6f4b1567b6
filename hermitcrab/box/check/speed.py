"""Measured speed of every GPU against its card's figures; run in the child, with torch."""

from __future__ import annotations

import time
from typing import Any, Callable

from hermitcrab.box.check.cards import peak
from hermitcrab.box.check.findings import PASS, WARN, Finding

ENOUGH = 0.6  # below it the card is throttled, shared, or not the one that was paid for
SECONDS = 0.5
FIRST_WITH_BF16 = (8, 0)
LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}  # GB/s of one PCIe lane by generation
LEAST_PCIE = 6.0  # GB/s where the link is unknown: half of PCIe 3 with 16 lanes
CAUSE = "The card is throttled, shared with others, or not the one that was paid for."
REMEDY = "See gpu*.health and gpu*.users, measure again; if it stays, take another machine."


def compute(index: int) -> Finding:
    """Measure the TFLOPS of a large half-precision matmul."""
    import torch

    device = _empty(torch, index)
    kind = torch.bfloat16 if torch.cuda.get_device_capability(device) >= FIRST_WITH_BF16 else torch.float16
    side = _side(torch.cuda.mem_get_info(device)[0])
    a, b = (torch.randn(side, side, device=device, dtype=kind) for _ in range(2))
    out = torch.empty_like(a)
    seconds = _time(torch, device, lambda: torch.mm(a, b, out=out))
    name = torch.cuda.get_device_name(device)
    row = peak(name)
    tflops = 2 * side**3 / seconds / 1e12
    return against(f"gpu{index}.tflops", tflops, f"TFLOPS ({kind})", name, row and row.tflops)


def bandwidth(index: int) -> Finding:
    """Measure the memory bandwidth by a copy within the card, which reads and writes."""
    import torch

    device = _empty(torch, index)
    count = min(2**30, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.ones(count, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    seconds = _time(torch, device, lambda: target.copy_(source))
    name = torch.cuda.get_device_name(device)
    row = peak(name)
    rate = 2 * count / seconds / 1e9
    return against(f"gpu{index}.bandwidth", rate, "GB/s of memory", name, row and row.bandwidth)


def pcie(index: int, link: tuple[int, int] | None) -> Finding:
    """Measure host to device and back with pinned memory, against the link's own rate."""
    import torch

    device = _empty(torch, index)
    host = torch.empty(2**27, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(2**27, dtype=torch.uint8, device=device)
    to = host.numel() / _time(torch, device, lambda: there.copy_(host, non_blocking=True)) / 1e9
    back = host.numel() / _time(torch, device, lambda: host.copy_(there, non_blocking=True)) / 1e9
    return judge_pcie(f"gpu{index}.pcie", to, back, link)


def against(id_: str, measured: float, unit: str, name: str, figure: float | None) -> Finding:
    """Judge a measured value by the card's figure; without one it is no pass."""
    text = f"{measured:.4g} {unit.replace('torch.', '')}"
    if figure is None:
        return Finding(id_, WARN, f"{text}; no figure of {name} to compare with", "The card is not in the table.", "")
    text = f"{text}, {measured / figure:.0%} of the {figure:g} quoted for {name}"
    if measured < ENOUGH * figure:
        return Finding(id_, WARN, text, CAUSE, REMEDY)
    return Finding(id_, PASS, text)


def judge_pcie(id_: str, to: float, back: float, link: tuple[int, int] | None) -> Finding:
    """Judge the PCIe rates by the link, or by a low bound where it is unknown."""
    rate = LANE.get(link[0], 0.0) * link[1] if link else 0.0
    least = ENOUGH * rate or LEAST_PCIE
    said = f"PCIe {link[0]} x{link[1]}" if link else "the link is unknown"
    text = f"{to:.3g} GB/s to the card, {back:.3g} back ({said})"
    if min(to, back) < least:
        cause = f"At least {least:.3g} GB/s are expected: the link is shared, narrow, or the host is busy."
        return Finding(id_, WARN, text, cause, "Loading data may be slow; measure again, or take another machine.")
    return Finding(id_, PASS, text)


def _empty(torch: Any, index: int) -> Any:
    """Give the device, without what earlier checks left in torch's own pool."""
    torch.cuda.empty_cache()
    return torch.device("cuda", index)


def _side(free: int) -> int:
    """Choose a matrix large enough to fill the card and small enough for what is free."""
    return next((side for side in (8192, 4096, 2048) if 4 * 2 * side * side < free), 1024)


def _time(torch: Any, device: Any, work: Callable[[], Any]) -> float:
    """Return the seconds of one run: the best of several rounds, after warming up."""
    best, end = float("inf"), time.monotonic() + SECONDS
    with torch.cuda.device(device):
        for _ in range(3):
            work()
        while time.monotonic() < end or best == float("inf"):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(5):
                work()
            stop.record()
            stop.synchronize()
            best = min(best, start.elapsed_time(stop) / 5e3)
    return best
