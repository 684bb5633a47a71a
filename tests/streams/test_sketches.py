"""Approximate distinct counts: exact when small, within the error promised when large."""

from __future__ import annotations

import random

import numpy as np
import pytest

from holdfast.streams.aggregates.sketches import (
    DENSE,
    SPARSE,
    estimate,
    header,
    precision_of,
    union,
)


def _sketch(hashes: np.ndarray, rsd: float = 0.05) -> bytes:
    return header(precision_of(rsd)) + hashes.astype(">u8").tobytes()


def _hashes(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(0, 2**64, count, dtype=np.uint64)


def test_few_values_are_counted_exactly() -> None:
    rng = np.random.default_rng(1)
    values = _hashes(rng, 60)
    joined = union(_sketch(values[:40]), _sketch(values[20:]))
    assert joined is not None
    assert joined[0] == SPARSE
    assert estimate(joined) == 60
    assert estimate(None) == 0
    assert union(None, _sketch(values)) == _sketch(values)


@pytest.mark.parametrize("rsd", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("count", [100, 1_000, 1_500, 3_000, 20_000, 300_000])
def test_counts_stay_within_the_error_asked_for(rsd: float, count: int) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    errors = []
    for _ in range(20):
        values = _hashes(rng, count)
        joined = None
        for part in np.array_split(values, 4):
            joined = union(joined, _sketch(part, rsd))
        errors.append(estimate(joined) / count - 1)
    assert np.std(errors) <= 1.6 * rsd
    assert abs(np.mean(errors)) <= rsd


def test_the_order_of_unions_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    parts = [_sketch(_hashes(rng, size)) for size in (10, 900, 40, 5_000)]
    forward = backward = None
    for part in parts:
        forward = union(forward, part)
    for part in reversed(parts):
        backward = union(part, backward)
    assert forward is not None
    assert forward[0] == DENSE
    assert forward == backward


def test_a_smaller_error_takes_a_larger_sketch() -> None:
    assert [precision_of(rsd) for rsd in (0.39, 0.05, 0.01)] == [4, 9, 14]
