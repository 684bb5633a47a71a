"""Counting distinct values approximately: a sketch of 64-bit hashes that can be merged.

A sketch is two bytes, its form and its precision p, and then either the hashes themselves (SPARSE,
8 bytes each, big-endian) or one register for each of 2**p buckets (DENSE): the longest run of
leading zeros, plus one, seen in the bucket. Few values stay hashes, so small counts are exact.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

SPARSE, DENSE = 0, 1
_HEADER = 2
_HASH_BITS = 64
_LEAST_PRECISION, _MOST_PRECISION = 4, 24
Registers = npt.NDArray[np.uint8]


def precision_of(rsd: float) -> int:
    """The precision at which the standard deviation of the error is at most `rsd`."""
    wanted = math.ceil(2 * math.log2(1.106 / rsd))
    return min(max(wanted, _LEAST_PRECISION), _MOST_PRECISION)


def header(precision: int) -> bytes:
    """How a sketch of hashes begins."""
    return bytes([SPARSE, precision])


def union(left: bytes | None, right: bytes | None) -> bytes | None:
    """The sketch of all values of both; None is that of none."""
    if left is None or right is None:
        return right if left is None else left
    precision = left[1]
    if left[0] == right[0] == SPARSE:
        hashes = np.union1d(_hashes(left), _hashes(right))
        if 8 * len(hashes) <= 1 << precision:
            return header(precision) + hashes.astype(">u8").tobytes()
        return _dense(_registers_of(hashes, precision), precision)
    return _dense(np.maximum(_registers(left), _registers(right)), precision)


def estimate(sketch: bytes | None) -> int:
    """How many distinct values the sketch has seen."""
    if sketch is None:
        return 0
    if sketch[0] == SPARSE:
        return (len(sketch) - _HEADER) // 8
    return _estimate(_registers(sketch), sketch[1])


def _hashes(sketch: bytes) -> npt.NDArray[np.uint64]:
    return np.frombuffer(sketch, ">u8", offset=_HEADER).astype(np.uint64)


def _registers(sketch: bytes) -> Registers:
    if sketch[0] == SPARSE:
        return _registers_of(_hashes(sketch), sketch[1])
    return np.frombuffer(sketch, np.uint8, offset=_HEADER)


def _dense(registers: Registers, precision: int) -> bytes:
    return bytes([DENSE, precision]) + registers.tobytes()


def _registers_of(hashes: npt.NDArray[np.uint64], precision: int) -> Registers:
    buckets = (hashes >> np.uint64(_HASH_BITS - precision)).astype(np.int64)
    rest = hashes << np.uint64(precision)
    runs = np.minimum(_leading_zeros(rest), _HASH_BITS - precision) + 1
    registers = np.zeros(1 << precision, np.uint8)
    np.maximum.at(registers, buckets, runs.astype(np.uint8))
    return registers


def _leading_zeros(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """The leading zero bits of each word; 64 for zero."""
    zeros = np.full(len(words), _HASH_BITS, np.int64)
    high, low = words >> np.uint64(32), words & np.uint64(0xFFFF_FFFF)
    for part, above in ((low, 32), (high, 0)):
        there = part > 0
        # A part below 2**32 is exact as a double, whose exponent is the number of its bits.
        bits = np.frexp(part[there].astype(np.float64))[1]
        zeros[there] = above + 32 - bits
    return zeros


def _estimate(registers: Registers, precision: int) -> int:
    """Ertl's estimator: without a bias anywhere between few and many values."""
    size, longest = 1 << precision, _HASH_BITS - precision
    counts = np.bincount(registers, minlength=longest + 2).tolist()
    total = size * _tau(1 - counts[longest + 1] / size)
    for count in reversed(counts[1 : longest + 1]):
        total = 0.5 * (total + count)
    total += size * _sigma(counts[0] / size)
    return 0 if math.isinf(total) else round(size * size / (2 * math.log(2) * total))


def _sigma(x: float) -> float:
    if x == 1.0:
        return math.inf
    y, total, before = 1.0, x, -1.0
    while total != before:
        x, before = x * x, total
        total += x * y
        y *= 2
    return total


def _tau(x: float) -> float:
    if x in (0.0, 1.0):
        return 0.0
    y, total, before = 1.0, 1 - x, -1.0
    while total != before:
        x, before = math.sqrt(x), total
        y *= 0.5
        total -= (1 - x) ** 2 * y
    return total / 3
