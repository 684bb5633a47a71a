"""Finds the places of hashes among sorted hashes, by a table instead of binary searches.

Hashes are spread evenly, so the top bits of a hash nearly say where it stands among the others. The
table has the place of the first hash in each bucket; the right one is a step or two further. This
is three to four times as fast as `searchsorted` for many sorted hashes.

Where many rows share their top bits, such as those of one prefix, a bucket is long and the steps
are many: `for_even` then gives no table, and the caller searches.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from holdfast.engine.arrays import Hashes, Index

_ROWS_PER_BUCKET = 2
_MOST_IN_A_BUCKET = 64


class RankTable:
    """The places of hashes among `hashes`. Requires: these are sorted and not empty."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        words = hashes.view(np.uint64)
        # Differences are taken modulo 2^64. So they ascend with the signed hashes, although as
        # unsigned numbers the negative ones would come last.
        self._first = words[0]
        span = int(hashes[-1]) - int(hashes[0])
        buckets = max(1, len(hashes) // _ROWS_PER_BUCKET)
        self._shift = np.uint64(max(0, span.bit_length() - buckets.bit_length()))
        counts = np.bincount((words - self._first >> self._shift).view(np.int64))
        self._is_even = bool(counts.max() <= _MOST_IN_A_BUCKET)
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)

    @classmethod
    def for_even(cls, hashes: Hashes) -> RankTable | None:
        """Return a table, or None where the hashes are not spread evenly enough."""
        table = cls(hashes)
        return table if table._is_even else None

    def places(self, wanted: Hashes) -> Index:
        """Return for each wanted hash the place of the first hash that is not below it.

        Requires: `wanted` lie between the first and the last hash, both included.
        """
        hashes = self._hashes
        buckets = (wanted.view(np.uint64) - self._first) >> self._shift
        at = self._starts.take(buckets.view(np.int64)).astype(np.int64)
        short = np.flatnonzero(hashes.take(at) < wanted)
        while len(short):
            further = at.take(short) + 1
            at[short] = further
            short = short[hashes.take(further) < wanted.take(short)]
        return cast(Index, at)
