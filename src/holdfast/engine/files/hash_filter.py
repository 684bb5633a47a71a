"""A bitmap of the hashes in a segment, which rules out most keys that the segment lacks.

A hash is one bit, numbered by the top bits of the hash, with sixteen bits for each row. Unlike in a
Bloom filter, sorted hashes therefore walk the bitmap in order, and a lookup touches one byte. About
one absent key in sixteen passes; a key that is there always does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.engine.arrays import Hashes, Mask

_BUCKETS_PER_ROW = 16
# Hashes are sorted as signed numbers. Flipping the sign bit puts them in the same order as unsigned
# ones, so that buckets ascend with the hashes.
_SIGN = np.uint32(1 << 31)
Tops = npt.NDArray[np.uint32]


def tops(hashes: Hashes) -> Tops:
    """The top halves of hashes as a filter takes them; computed once for several filters."""
    halves = (hashes >> 32).astype(np.int32).view(np.uint32)
    halves ^= _SIGN
    return halves


class HashFilter:
    """Which hashes may be there."""

    def __init__(self, rows: int, chunks: Iterable[Hashes]) -> None:
        bits = min(32, max(10, (rows * _BUCKETS_PER_ROW - 1).bit_length()))
        self._shift = np.uint32(32 - bits)
        self._bitmap = np.zeros(1 << (bits - 3), np.uint8)
        self._row_shift = 32 - bits
        self._view = self._bitmap.data
        for hashes in chunks:
            self._add(tops(hashes))

    @property
    def nbytes(self) -> int:
        """Memory the bitmap takes."""
        return self._bitmap.nbytes

    def may_contain(self, wanted: Tops) -> Mask:
        """False for hashes that are surely not there."""
        byte, bit = self._places(wanted)
        found = self._bitmap.take(byte)
        found >>= bit
        found &= np.uint8(1)
        return found.view(np.bool_)

    def may_have(self, key_hash: int) -> bool:
        """False for a hash that is surely not there."""
        bucket = ((key_hash >> 32) + (1 << 31)) >> self._row_shift
        return bool(self._view[bucket >> 3] >> (bucket & 7) & 1)

    def _add(self, halves: Tops) -> None:
        byte, bit = self._places(halves)
        # With a repeated index `|=` keeps only the last flag. Hashes are sorted, so flags of one
        # byte are neighbours: they are joined first.
        starts = np.flatnonzero(np.concatenate([[True], byte[1:] != byte[:-1]]))
        flags = np.left_shift(np.uint8(1), bit)
        self._bitmap[byte[starts]] |= np.bitwise_or.reduceat(flags, starts)

    def _places(self, halves: Tops) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
        buckets = halves >> self._shift
        bit = buckets.astype(np.uint8)
        bit &= np.uint8(7)
        buckets >>= np.uint32(3)
        return buckets, bit
