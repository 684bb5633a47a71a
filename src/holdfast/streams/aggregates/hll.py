"""Spark's estimate of a number of distinct values: HyperLogLog++ of its registers.

Spark's arithmetic is followed step by step, since an estimate that differs by one is another
result. Registers are counted by rank first; the estimate needs nothing else of them.
"""

from __future__ import annotations

import functools
import math
from importlib import resources
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.errors import InvalidArgument

HASH_BITS = 64
_LEAST_PRECISION, MOST_PRECISION = 4, 24
_MOST_CORRECTED = 18
"""The highest precision whose bias was measured."""
_NEIGHBOURS = 6
_ALPHA = {4: 0.673, 5: 0.697, 6: 0.709}
Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]


def precision_of(rsd: float) -> int:
    """The precision p for a relative standard deviation: there are 2**p registers.

    Spark's, but at most 24: one more, and a group would take 32 MB. Raises InvalidArgument where
    Spark refuses the deviation.
    """
    if not 0 < rsd < math.inf:
        raise InvalidArgument(
            f"The error of approx_count_distinct must be above 0 and at most 0.39, not {rsd}."
        )
    wanted = math.ceil(2.0 * math.log(1.106 / rsd) / math.log(2.0))
    if wanted < _LEAST_PRECISION:
        raise InvalidArgument(
            f"The error of approx_count_distinct must be at most 0.39, not {rsd}."
        )
    return min(wanted, MOST_PRECISION)


def estimates(inverses: Floats, zeros: Longs, precision: int) -> Longs:
    """The estimates of several sets of registers.

    `inverses` are the sums of 2**-rank over all registers of a set, and `zeros` how many of them
    have the rank 0.
    """
    size = float(1 << precision)
    alpha = _ALPHA.get(precision, 0.7213 / (1.0 + 1.079 / size))
    raw = alpha * size * size / inverses
    found = raw.copy()
    if precision <= _MOST_CORRECTED:
        near = raw < 5.0 * size
        found[near] -= _biases(raw[near], _corrections()[precision - _LEAST_PRECISION])
    with np.errstate(divide="ignore"):
        linear = size * np.log(size / zeros)
    is_linear = raw <= 2.5 * size
    if precision <= _MOST_CORRECTED:
        is_linear |= linear <= _corrections()[precision - _LEAST_PRECISION].threshold
    found = np.where((zeros > 0) & is_linear, linear, found)
    return np.floor(found + 0.5).astype(np.int64)


class _Correction(NamedTuple):
    threshold: float
    raw: Floats
    biases: Floats


@functools.cache
def _corrections() -> list[_Correction]:
    text = resources.files(__package__).joinpath("hll_bias.txt").read_text("ascii")
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    rows = [np.array(line, np.float64) for line in lines]
    return [
        _Correction(float(rows[at][0]), rows[at + 1], rows[at + 2]) for at in range(0, len(rows), 3)
    ]


def _biases(raw: Floats, correction: _Correction) -> Floats:
    """The mean bias of the six measured estimates that are nearest to each raw one."""
    known, count = correction.raw, len(correction.raw)
    low = np.maximum(_places(known, raw) - _NEIGHBOURS + 1, 0)
    high = np.minimum(low + _NEIGHBOURS, count)
    while True:
        above = known[np.minimum(high, count - 1)]
        closer = (high < count) & ((raw - above) ** 2 < (raw - known[low]) ** 2)
        if not closer.any():
            break
        low, high = low + closer, high + closer
    total = np.zeros(len(raw))
    for step in range(_NEIGHBOURS):
        there = low + step < high
        total += np.where(there, correction.biases[np.minimum(low + step, count - 1)], 0.0)
    mean: Floats = total / (high - low)
    return mean


def _places(known: Floats, wanted: Floats) -> Longs:
    """Where Java's binary search finds each number, or would insert it.

    The measured estimates are not quite ascending, so that another search may end elsewhere.
    """
    low = np.zeros(len(wanted), np.int64)
    high = np.full(len(wanted), len(known) - 1)
    while (searching := low <= high).any():
        middle = (low + high) >> 1
        cells = known[np.where(searching, middle, 0)]
        up, down = searching & (cells < wanted), searching & (cells > wanted)
        hit = searching & ~up & ~down
        low = np.where(up, middle + 1, np.where(hit, middle, low))
        high = np.where(down | hit, middle - 1, high)
    return low
