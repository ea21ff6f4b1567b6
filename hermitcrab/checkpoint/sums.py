"""The CRC32 of two texts in a row, from those of the two: so that no byte need be summed twice."""

from __future__ import annotations

import functools

POLYNOMIAL = 0xEDB88320  # of CRC32, as zip and zlib have it: the highest power in the lowest bit
ONE, BYTE = 1 << 31, 1 << 23  # x^0 and x^8


def combine(first: int, second: int, length: int) -> int:
    """Return the sum of a text with sum ``first`` and one with sum ``second`` of ``length`` bytes after it."""
    return _times(_moved_by(length), first) ^ second


@functools.lru_cache(maxsize=1024)  # the tensors of a model have few sizes
def _moved_by(length: int) -> int:
    """The polynomial x to the power of 8 × length."""
    power, square = ONE, BYTE
    while length:
        power = _times(square, power) if length & 1 else power
        square, length = _times(square, square), length >> 1
    return power


def _times(one: int, other: int) -> int:
    """Multiply two polynomials over two elements, modulo CRC32's."""
    product, bit = 0, ONE
    while bit:
        product ^= other if one & bit else 0
        other = other >> 1 ^ (POLYNOMIAL if other & 1 else 0)
        bit >>= 1
    return product
