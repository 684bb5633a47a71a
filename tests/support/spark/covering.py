"""Covering sets: few cases that hold every pair of values of any two dimensions."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

Case = tuple[str, ...]
Pair = tuple[tuple[int, str], tuple[int, str]]


def covering(dimensions: Mapping[str, Sequence[str]], seed: int) -> list[Case]:
    """Cases that together hold every pair, the same for the same seed.

    Each case is the best of some random ones that begin with a pair still missing.
    """
    rnd = random.Random(seed)
    values = list(dimensions.values())
    missing = {
        ((left, a), (right, b))
        for left, right in itertools.combinations(range(len(values)), 2)
        for a in values[left]
        for b in values[right]
    }
    cases = []
    while missing:
        wanted = min(missing)
        drawn = [_drawn(values, wanted, rnd) for _ in range(60)]
        best = max(drawn, key=lambda case: len(pairs(case) & missing))
        missing -= pairs(best)
        cases.append(best)
    return cases


def pairs(case: Case) -> set[Pair]:
    """Every pair of values that a case holds."""
    return set(itertools.combinations(enumerate(case), 2))


def _drawn(values: list[Sequence[str]], wanted: Pair, rnd: random.Random) -> Case:
    drawn = [rnd.choice(each) for each in values]
    for place, value in wanted:
        drawn[place] = value
    return tuple(drawn)
