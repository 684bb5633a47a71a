"""Murmur3_x86_32 as Spark SQL's `hash` computes it, over arrays of rows.

Every function folds one value a row into `h`, the running hashes of the rows, in place. Spark
differs from the published algorithm where the length of a string is not a multiple of four: it
mixes each byte that is left over as if it were a word, sign extended. Libraries of Murmur3
therefore give other hashes, and cannot be used here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

UInt32 = npt.NDArray[np.uint32]

C1, C2, N = 0xCC9E2D51, 0x1B873593, 0xE6546B64
F1, F2 = 0x85EBCA6B, 0xC2B2AE35
_C1, _C2, _N, _F1, _F2 = (np.uint32(c) for c in (C1, C2, N, F1, F2))
_FIVE = np.uint32(5)


class Scratch32:
    """Buffers for the intermediate values of up to `size` rows, so that nothing is allocated."""

    def __init__(self, size: int) -> None:
        self._k = np.empty(size, np.uint32)
        self._t = np.empty(size, np.uint32)

    def mix(self, h: UInt32, words: npt.NDArray[Any]) -> None:
        """One round: mixes a 32-bit word a row into `h`."""
        k, t = self._k[: len(h)], self._t[: len(h)]
        np.multiply(words, _C1, out=k)
        _rotate(k, 15, t)
        np.multiply(k, _C2, out=k)
        np.bitwise_xor(h, k, out=h)
        _rotate(h, 13, t)
        np.multiply(h, _FIVE, out=h)
        np.add(h, _N, out=h)

    def finish(self, h: UInt32, length: Any) -> None:
        """The last step, with the number of bytes mixed in (one for all rows, or one a row)."""
        t = self._t[: len(h)]
        np.bitwise_xor(h, length, out=h)
        _xor_shifted(h, 16, t)
        np.multiply(h, _F1, out=h)
        _xor_shifted(h, 13, t)
        np.multiply(h, _F2, out=h)
        _xor_shifted(h, 16, t)


def fold_ints(h: UInt32, words: UInt32, scratch: Scratch32) -> None:
    """Folds a 32-bit value a row."""
    scratch.mix(h, words)
    scratch.finish(h, np.uint32(4))


def fold_longs(h: UInt32, halves: tuple[UInt32, UInt32], scratch: Scratch32) -> None:
    """Folds a 64-bit value a row, given as its low and high halves."""
    scratch.mix(h, halves[0])
    scratch.mix(h, halves[1])
    scratch.finish(h, np.uint32(8))


def fold_equal_bytes(h: UInt32, block: Any, scratch: Scratch32) -> None:
    """Folds a byte string a row, all of one length (see `leaves.EqualBytes`)."""
    length = block.length
    for at in range(0, length - length % 4, 4):
        scratch.mix(h, block.read(at, "<u4"))
    for at in range(length - length % 4, length):
        scratch.mix(h, block.read(at, "i1").astype(np.int32).view(np.uint32))
    scratch.finish(h, np.uint32(length))


def fold_mixed_bytes(h: UInt32, block: Any, scratch: Scratch32) -> None:
    """Folds a byte string a row, shorter ones first (see `leaves.MixedBytes`)."""
    lengths = block.lengths
    for at in range(0, int(lengths[-1]) - 3, 4):
        first = block.first_of_length(at + 4)
        scratch.mix(h[first:], block.read(slice(first, None), at, "<u4"))
    left = lengths & 3
    for extra in range(int(left.max())):
        rows = np.flatnonzero(left > extra)
        some = h[rows]
        byte = block.read(rows, (lengths - left + extra)[rows], "i1")
        scratch.mix(some, byte.astype(np.int32).view(np.uint32))
        h[rows] = some
    scratch.finish(h, lengths.astype(np.uint32))


def _rotate(x: UInt32, bits: int, t: UInt32) -> None:
    np.left_shift(x, np.uint32(bits), out=t)
    np.right_shift(x, np.uint32(32 - bits), out=x)
    np.bitwise_or(x, t, out=x)


def _xor_shifted(x: UInt32, bits: int, t: UInt32) -> None:
    np.right_shift(x, np.uint32(bits), out=t)
    np.bitwise_xor(x, t, out=x)
