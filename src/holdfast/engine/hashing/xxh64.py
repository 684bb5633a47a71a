"""XXH64 as Spark SQL's `xxhash64` computes it, over arrays of rows.

Every function folds one value a row into `h`, the running hashes of the rows (the seed of the next
value), in place. This is the published algorithm: ints are their four bytes, longs their eight. The
C package hashes one value at a time; for a column of keys, numpy is much faster than calling it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

UInt64 = npt.NDArray[np.uint64]

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_P5_PLUS_4 = np.uint64(0x27D4EB2F165667C9)
_P5_PLUS_8 = np.uint64(0x27D4EB2F165667CD)
_P1_PLUS_P2 = np.uint64(0x60EA27EEADC0B5D6)
_LANES = (_P1_PLUS_P2, _P2, np.uint64(0), np.uint64(0x61C8864E7A143579))
_STRIPE = 32


class Scratch64:
    """Buffers for the intermediate values of up to `size` rows, so that nothing is allocated."""

    def __init__(self, size: int) -> None:
        self._k = np.empty(size, np.uint64)
        self._t = np.empty(size, np.uint64)

    def mix_long(self, h: UInt64, words: npt.NDArray[Any]) -> None:
        """Mixes eight bytes a row into `h`."""
        self._mix_round(h, words)
        _rotate(h, 27, self._t[: len(h)])
        np.multiply(h, _P1, out=h)
        np.add(h, _P4, out=h)

    def _mix_round(self, h: UInt64, words: npt.NDArray[Any]) -> None:
        k = self._k[: len(h)]
        np.multiply(words, _P2, out=k)
        _rotate(k, 31, self._t[: len(h)])
        np.multiply(k, _P1, out=k)
        np.bitwise_xor(h, k, out=h)

    def mix_zero(self, h: UInt64) -> None:
        """Mixes eight zero bytes a row into `h`, as `mix_long` would, in half the time.

        A zero word is zero after its round too, so only the step on `h` is left.
        """
        _rotate(h, 27, self._t[: len(h)])
        np.multiply(h, _P1, out=h)
        np.add(h, _P4, out=h)

    def mix_int(self, h: UInt64, words: npt.NDArray[Any]) -> None:
        """Mixes four bytes a row into `h`."""
        k = self._k[: len(h)]
        np.multiply(words, _P1, out=k)
        np.bitwise_xor(h, k, out=h)
        _rotate(h, 23, self._t[: len(h)])
        np.multiply(h, _P2, out=h)
        np.add(h, _P3, out=h)

    def mix_byte(self, h: UInt64, byte: npt.NDArray[Any]) -> None:
        """Mixes one byte a row into `h`."""
        k = self._k[: len(h)]
        np.multiply(byte, _P5, out=k)
        np.bitwise_xor(h, k, out=h)
        _rotate(h, 11, self._t[: len(h)])
        np.multiply(h, _P1, out=h)

    def mix_lane(self, lane: UInt64, words: npt.NDArray[Any]) -> None:
        """Mixes eight bytes a row into one of the four lanes of long inputs."""
        k = self._k[: len(lane)]
        np.multiply(words, _P2, out=k)
        np.add(lane, k, out=lane)
        _rotate(lane, 31, self._t[: len(lane)])
        np.multiply(lane, _P1, out=lane)

    def join_lanes(self, h: UInt64, lanes: list[UInt64]) -> None:
        """Sets `h` to the four lanes' joint hash."""
        t, k = self._t[: len(h)], self._k[: len(h)]
        h[:] = 0
        for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
            np.copyto(k, lane)
            _rotate(k, bits, t)
            np.add(h, k, out=h)
        for lane in lanes:
            self._mix_round(h, lane)
            np.multiply(h, _P1, out=h)
            np.add(h, _P4, out=h)

    def finish(self, h: UInt64) -> None:
        """The last step."""
        t = self._t[: len(h)]
        _xor_shifted(h, 33, t)
        np.multiply(h, _P2, out=h)
        _xor_shifted(h, 29, t)
        np.multiply(h, _P3, out=h)
        _xor_shifted(h, 32, t)


def fold_ints(h: UInt64, words: npt.NDArray[np.uint32], scratch: Scratch64) -> None:
    """Folds a 32-bit value a row."""
    np.add(h, _P5_PLUS_4, out=h)
    scratch.mix_int(h, words)
    scratch.finish(h)


def fold_longs(h: UInt64, words: UInt64, scratch: Scratch64) -> None:
    """Folds a 64-bit value a row."""
    np.add(h, _P5_PLUS_8, out=h)
    scratch.mix_long(h, words)
    scratch.finish(h)


def fold_zeros(h: UInt64, scratch: Scratch64) -> None:
    """Folds a 64-bit zero a row: the mask of nulls of a key that has none, the common case."""
    np.add(h, _P5_PLUS_8, out=h)
    scratch.mix_zero(h)
    scratch.finish(h)


def fold_equal_bytes(h: UInt64, block: Any, scratch: Scratch64) -> None:
    """Folds a byte string a row, all of one length (see `leaves.EqualBytes`)."""
    length = block.length
    striped = length // _STRIPE * _STRIPE
    if striped:
        lanes = [h + start for start in _LANES]
        for at in range(0, striped, 8):
            scratch.mix_lane(lanes[at // 8 % 4], block.read(at, "<u8"))
        scratch.join_lanes(h, lanes)
    else:
        np.add(h, _P5, out=h)
    np.add(h, np.uint64(length), out=h)
    for at in range(striped, length - 7, 8):
        scratch.mix_long(h, block.read(at, "<u8"))
    if length % 8 >= 4:
        scratch.mix_int(h, block.read(length // 8 * 8, "<u4"))
    for at in range(length // 4 * 4, length):
        scratch.mix_byte(h, block.read(at, "u1"))
    scratch.finish(h)


def fold_mixed_bytes(h: UInt64, block: Any, scratch: Scratch64) -> None:
    """Folds a byte string a row, shorter ones first (see `leaves.MixedBytes`)."""
    lengths = block.lengths
    long_ones = block.first_of_length(_STRIPE)
    np.add(h[:long_ones], _P5, out=h[:long_ones])
    if long_ones < len(h):
        _fold_stripes(h[long_ones:], block, long_ones, scratch)
    np.add(h, lengths.astype(np.uint64), out=h)
    words_left, at = lengths % _STRIPE // 8, lengths // _STRIPE * _STRIPE
    for word in range(3):
        rows = np.flatnonzero(words_left > word)
        _mix_some(h, rows, block.read(rows, at[rows] + 8 * word, "<u8"), scratch.mix_long)
    rows = np.flatnonzero(lengths % 8 >= 4)
    _mix_some(h, rows, block.read(rows, lengths[rows] // 8 * 8, "<u4"), scratch.mix_int)
    bytes_left, at = lengths % 4, lengths // 4 * 4
    for extra in range(3):
        rows = np.flatnonzero(bytes_left > extra)
        _mix_some(h, rows, block.read(rows, at[rows] + extra, "u1"), scratch.mix_byte)
    scratch.finish(h)


def _fold_stripes(h: UInt64, block: Any, first_row: int, scratch: Scratch64) -> None:
    lanes = [h + start for start in _LANES]
    longest = int(block.lengths[-1])
    for at in range(0, longest - _STRIPE + 1, _STRIPE):
        first = block.first_of_length(at + _STRIPE)
        for number, lane in enumerate(lanes):
            words = block.read(slice(first, None), at + 8 * number, "<u8")
            scratch.mix_lane(lane[first - first_row :], words)
    scratch.join_lanes(h, lanes)


def _mix_some(h: UInt64, rows: npt.NDArray[np.int64], words: npt.NDArray[Any], mix: Any) -> None:
    if len(rows):
        some = h[rows]
        mix(some, words)
        h[rows] = some


def _rotate(x: UInt64, bits: int, t: UInt64) -> None:
    np.left_shift(x, np.uint64(bits), out=t)
    np.right_shift(x, np.uint64(64 - bits), out=x)
    np.bitwise_or(x, t, out=x)


def _xor_shifted(x: UInt64, bits: int, t: UInt64) -> None:
    np.right_shift(x, np.uint64(bits), out=t)
    np.bitwise_xor(x, t, out=x)
