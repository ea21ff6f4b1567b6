"""What the cards should reach: dense fp16/bf16 TFLOPS with fp32 accumulation, and memory GB/s.

Every figure is a quotation of a datasheet or whitepaper found in public files; ``quotes`` counts
the independent files that agree. None was read in a datasheet itself, and 0 is general knowledge
or a single secondary table. Of contested figures the lower stands here: the check must not cry
wolf. The key is a pattern for the name that the driver gives; the first match counts.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Peak(NamedTuple):
    """What a card should reach; None is not known."""

    tflops: float | None
    bandwidth: float
    quotes: int


PEAKS = {
    r"P100": Peak(None, 732, 0),
    r"V100-SXM2|V100-SXM3": Peak(125, 900, 1),
    r"V100": Peak(112, 900, 1),
    r"T4$": Peak(65, 320, 1),  # some pages print 300 GB/s
    r"A10$": Peak(125, 600, 1),
    r"A[18]00.*40GB": Peak(312, 1555, 3),
    r"A100-SXM": Peak(312, 2039, 3),
    r"A100": Peak(312, 1935, 3),
    r"A800-SXM": Peak(312, 2039, 0),  # as A100; only NVLink was cut
    r"A800": Peak(312, 1935, 0),
    r"RTX 3090$": Peak(71, 936, 2),
    r"RTX 4090$": Peak(165.2, 1008, 3),
    r"RTX 5090$": Peak(209.5, 1792, 2),
    r"L40S$": Peak(183, 864, 0),  # the datasheet's 362 is contested as the rate with fp16 accumulation
    r"L20$": Peak(119.5, 864, 0),  # one public measurement: 115
    r"H100 PCIe": Peak(756, 2000, 3),  # bandwidth: general knowledge
    r"H100.*HBM3|H100-SXM|H100 SXM": Peak(989.4, 3350, 3),
    r"H800": Peak(756, 2000, 0),  # PCIe; SXM is quoted as 989
    r"H200": Peak(989, 4800, 0),
    r"H20$": Peak(148, 4000, 0),
    r"B200": Peak(2250, 8000, 0),
}
# Another card than the one whose name it carries.
OTHER = re.compile(r"MIG|NVL|Laptop|\bD$|\bTi$|\bvGPU\b|GRID")


def peak(name: str) -> Peak | None:
    """Find a card's row by the driver's name for it; None for a card without one."""
    if OTHER.search(name):
        return None
    return next((row for pattern, row in PEAKS.items() if re.search(rf"\b(?:{pattern})", name)), None)
