"""What reads hide, and what they look at: bounds of the state, and ranges of its index."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from holdfast.engine.arrays import Index, Mask
from holdfast.engine.files.segment import Layout, Zone
from holdfast.engine.partition.columns import valid_mask
from holdfast.engine.partition.rows import NEVER, Rows, index_numbers

_LOWEST = int(np.iinfo(np.int64).min)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What every read hides: an index at or below `evict`, an expiry at or below `expire`.

    A watermark only grows, so one number in the manifest removes any number of rows. Nothing is
    written for them, and their bytes go with the next merge.

    The newest row of a key is chosen first, and the bounds apply to that row. In the other order an
    expired row would vanish and an older row of its key come back.
    """

    evict: int | None = None
    expire: int | None = None

    def live(self, rows: Rows, at: Index | slice, layout: Layout) -> Mask | None:
        """Which of some rows are part of the state; None when all are."""
        live: Mask | None = None
        if rows.dead is not None:
            live = ~rows.dead[at]
        if self.evict is not None and layout.index is not None:
            numbers = index_numbers(rows.keys[layout.index])
            if numbers is not None:
                live = _and(live, numbers[at] > self.evict)
        if self.expire is not None and rows.expires is not None:
            live = _and(live, rows.expires[at] > self.expire)
        return live


def with_bound(bounds: Bounds, *, evict: int | None = None, expire: int | None = None) -> Bounds:
    """`bounds` raised; a bound never steps back."""
    raised = bounds
    if evict is not None and (bounds.evict is None or evict > bounds.evict):
        raised = replace(raised, evict=evict)
    if expire is not None and (bounds.expire is None or expire > bounds.expire):
        raised = replace(raised, expire=expire)
    return raised


@dataclass(frozen=True, slots=True)
class IndexRange:
    """Index numbers low..high, both inclusive."""

    low: int = _LOWEST
    high: int = NEVER

    def misses(self, zone: Zone) -> bool:
        """Whether no row of that zone lies in the range."""
        return zone.index_max < self.low or zone.index_min > self.high

    def cut(self, rows: Rows, layout: Layout) -> Rows:
        """The rows inside the range."""
        assert layout.index is not None
        numbers = index_numbers(rows.keys[layout.index])
        if numbers is None:
            return rows
        inside = (numbers >= self.low) & (numbers <= self.high)
        valid = valid_mask(rows.keys[layout.index])
        if valid is not None:
            inside &= valid
        return rows.where(inside)


def _and(left: Mask | None, right: Mask) -> Mask:
    return right if left is None else left & right
