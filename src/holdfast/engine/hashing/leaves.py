"""Splits Arrow columns into what Spark's hash functions see: ints, longs and byte strings.

Spark hashes a row from left to right, with the hash so far as the seed of the next value; so the
order of the columns is part of the hash. It hashes a struct by folding in its fields and an array
by folding in its elements; a null leaves the hash as it is. So a column is a list of leaves, and
each leaf folds its values of some rows into the running hashes of those rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast import errors
from holdfast.engine.arrays import Mask
from holdfast.engine.hashing import murmur3, xxh64

RowSelection = slice | npt.NDArray[np.int64]

_INTS = (pa.int8(), pa.int16(), pa.bool_())
_INT_WORDS = (pa.int32(), pa.date32())
_LONG_DIGITS = 18
_PADDING = 8


class Scratch:
    """Buffers for both hashes of a block of up to `size` rows."""

    def __init__(self, size: int) -> None:
        self.murmur3 = murmur3.Scratch32(size)
        self.xxh64 = xxh64.Scratch64(size)


class Leaf:
    """Values of one column or of a part of it. `valid` is None where no value is null."""

    def __init__(self, valid: Mask | None) -> None:
        self.valid = valid

    def fold32(self, h: murmur3.UInt32, rows: RowSelection, scratch: Scratch) -> None:
        """Folds the values of `rows` into their murmur3 hashes `h`; at most a block of them."""
        # All rows are hashed and those with nulls restored, so that no rows have to be chosen.
        before = None if self.valid is None else h.copy()
        self._fold32(h, rows, scratch)
        self._restore(h, before, rows)

    def fold64(self, h: xxh64.UInt64, rows: RowSelection, scratch: Scratch) -> None:
        """Folds the values of `rows` into their XXH64 hashes `h`; at most a block of them."""
        before = None if self.valid is None else h.copy()
        self._fold64(h, rows, scratch)
        self._restore(h, before, rows)

    def _restore(
        self, h: npt.NDArray[Any], before: npt.NDArray[Any] | None, rows: RowSelection
    ) -> None:
        if self.valid is not None and before is not None:
            np.copyto(h, before, where=~self.valid[rows])

    def _fold32(self, h: murmur3.UInt32, rows: RowSelection, scratch: Scratch) -> None:
        raise NotImplementedError

    def _fold64(self, h: xxh64.UInt64, rows: RowSelection, scratch: Scratch) -> None:
        raise NotImplementedError


class IntLeaf(Leaf):
    """32-bit values, as unsigned words."""

    def __init__(self, words: npt.NDArray[np.uint32], valid: Mask | None) -> None:
        super().__init__(valid)
        self._words = words

    def _fold32(self, h: murmur3.UInt32, rows: RowSelection, scratch: Scratch) -> None:
        murmur3.fold_ints(h, self._words[rows], scratch.murmur3)

    def _fold64(self, h: xxh64.UInt64, rows: RowSelection, scratch: Scratch) -> None:
        xxh64.fold_ints(h, self._words[rows], scratch.xxh64)


class LongLeaf(Leaf):
    """64-bit values, as unsigned words."""

    def __init__(self, words: npt.NDArray[np.uint64], valid: Mask | None) -> None:
        super().__init__(valid)
        self._words = words
        halves = np.ascontiguousarray(words).view(np.uint32)
        self._low, self._high = halves[0::2], halves[1::2]

    def _fold32(self, h: murmur3.UInt32, rows: RowSelection, scratch: Scratch) -> None:
        murmur3.fold_longs(h, (self._low[rows], self._high[rows]), scratch.murmur3)

    def _fold64(self, h: xxh64.UInt64, rows: RowSelection, scratch: Scratch) -> None:
        xxh64.fold_longs(h, self._words[rows], scratch.xxh64)


class EqualBytes:
    """Byte strings of one length at equal distances, read as strided views without a copy."""

    def __init__(
        self, data: npt.NDArray[np.uint8], start: int, stride: int, length: int, count: int
    ) -> None:
        self.length = length
        self._data, self._start, self._stride, self._count = data, start, stride, count

    def read(self, at: int, kind: str) -> npt.NDArray[Any]:
        """The value of type `kind` that begins at byte `at` of every string."""
        begin = self._start + at
        shape, strides = (self._count,), (self._stride,)
        return np.ndarray(shape, kind, self._data, offset=begin, strides=strides)


class MixedBytes:
    """Byte strings ordered by length, read by gathering.

    In this order the strings that still have a word left are always the last ones, a plain slice.
    """

    def __init__(
        self,
        padded: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
    ) -> None:
        self.lengths = lengths
        self._starts, self._padded = starts, padded
        self._views: dict[str, npt.NDArray[Any]] = {}

    def first_of_length(self, length: int) -> int:
        """The first string that has at least `length` bytes."""
        return int(np.searchsorted(self.lengths, length))

    def read(self, rows: RowSelection, at: Any, kind: str) -> npt.NDArray[Any]:
        """The value of type `kind` that begins at byte `at` (one for all, or one a row)."""
        if kind not in self._views:
            # A view with a stride of one byte: every position is the start of a value.
            size = len(self._padded) - _PADDING
            self._views[kind] = np.ndarray((size,), kind, self._padded, strides=(1,))
        found: npt.NDArray[Any] = self._views[kind][self._starts[rows] + at]
        return found


class BytesLeaf(Leaf):
    """Byte strings: from `starts[i]` up to `ends[i]` of `data`.

    `stride` is the distance between strings, where it does not depend on their length.
    """

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        starts: npt.NDArray[Any],
        ends: npt.NDArray[Any],
        valid: Mask | None,
        stride: int | None = None,
    ) -> None:
        super().__init__(valid)
        self._data, self._starts, self._ends, self._stride = data, starts, ends, stride
        self._padded: npt.NDArray[np.uint8] | None = None
        self._last_rows: slice | None = None
        self._last: tuple[MixedBytes, npt.NDArray[np.int64]]

    def _fold32(self, h: murmur3.UInt32, rows: RowSelection, scratch: Scratch) -> None:
        equal = self._equal(rows)
        if equal is not None:
            murmur3.fold_equal_bytes(h, equal, scratch.murmur3)
            return
        mixed, order = self._mixed(rows)
        some = h[order]
        murmur3.fold_mixed_bytes(some, mixed, scratch.murmur3)
        h[order] = some

    def _fold64(self, h: xxh64.UInt64, rows: RowSelection, scratch: Scratch) -> None:
        equal = self._equal(rows)
        if equal is not None:
            xxh64.fold_equal_bytes(h, equal, scratch.xxh64)
            return
        mixed, order = self._mixed(rows)
        some = h[order]
        xxh64.fold_mixed_bytes(some, mixed, scratch.xxh64)
        h[order] = some

    def _equal(self, rows: RowSelection) -> EqualBytes | None:
        if not isinstance(rows, slice):
            return None
        starts, ends = self._starts[rows], self._ends[rows]
        length = int(ends[0] - starts[0])
        if (ends - starts != length).any():
            return None
        stride = length if self._stride is None else self._stride
        return EqualBytes(self._data, int(starts[0]), stride, length, len(starts))

    def _mixed(self, rows: RowSelection) -> tuple[MixedBytes, npt.NDArray[np.int64]]:
        if self._padded is None:
            # A read of eight bytes at the last byte of the last string must stay inside.
            self._padded = np.append(self._data, np.zeros(2 * _PADDING, np.uint8))
        if isinstance(rows, slice) and rows == self._last_rows:
            return self._last
        starts = self._starts[rows].astype(np.int64)
        lengths = self._ends[rows].astype(np.int64) - starts
        order = np.argsort(lengths)
        # Kept for the other hash function, which gets the same rows next.
        self._last = MixedBytes(self._padded, starts[order], lengths[order]), order
        self._last_rows = rows if isinstance(rows, slice) else None
        return self._last


class ArrayLeaf(Leaf):
    """Arrays: elements from `starts[i]` up to `ends[i]` of the element leaves."""

    def __init__(
        self,
        elements: list[Leaf],
        starts: npt.NDArray[Any],
        ends: npt.NDArray[Any],
        valid: Mask | None,
    ) -> None:
        super().__init__(valid)
        self._elements, self._starts, self._ends = elements, starts, ends

    def _fold32(self, h: murmur3.UInt32, rows: RowSelection, scratch: Scratch) -> None:
        for some, at in self._positions(rows):
            part = h[some]
            for leaf in self._elements:
                leaf.fold32(part, at, scratch)
            h[some] = part

    def _fold64(self, h: xxh64.UInt64, rows: RowSelection, scratch: Scratch) -> None:
        for some, at in self._positions(rows):
            part = h[some]
            for leaf in self._elements:
                leaf.fold64(part, at, scratch)
            h[some] = part

    def _positions(self, rows: RowSelection) -> Any:
        """For the first, second, … element: the rows that have it, and where it stands."""
        starts = self._starts[rows]
        lengths = self._ends[rows] - starts
        if self.valid is not None:
            lengths[~self.valid[rows]] = 0
        for number in range(int(lengths.max(initial=0))):
            some = np.flatnonzero(lengths > number)
            yield some, starts[some] + number


def leaves(array: pa.Array, valid: Mask | None = None) -> list[Leaf]:
    """The leaves of a column, in the order Spark folds them in.

    A value is null where the column says so or where `valid`, if given, is False.
    Raises InvalidArgument for types that have no hash (maps).
    """
    kind, valid = array.type, _both(valid, validity(array))
    if pa.types.is_null(kind) or len(array) == 0:
        return []
    if pa.types.is_struct(kind):
        return [leaf for i in range(kind.num_fields) for leaf in leaves(array.field(i), valid)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_array_leaf(array, valid)]
    if kind == pa.month_day_nano_interval():
        return _interval_leaves(array, valid)
    return [_leaf(array, valid)]


def validity(array: pa.Array) -> Mask | None:
    """True where the column has a value; None where it has one everywhere."""
    if array.null_count == 0:
        return None
    mask: Mask = pc.is_valid(array).to_numpy(zero_copy_only=False)
    return mask


def _both(one: Mask | None, other: Mask | None) -> Mask | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _array_leaf(array: pa.Array, valid: Mask | None) -> ArrayLeaf:
    offsets = array.offsets.to_numpy().astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    elements = leaves(array.values.slice(first, last - first))
    return ArrayLeaf(elements, offsets[:-1] - first, offsets[1:] - first, valid)


def _leaf(array: pa.Array, valid: Mask | None) -> Leaf:
    kind = array.type
    if kind in _INTS:
        return IntLeaf(_values(array.cast(pa.int32()), np.uint32), valid)
    if kind in _INT_WORDS:
        return IntLeaf(_values(array, np.uint32), valid)
    if kind == pa.float32():
        return IntLeaf(_one_nan_one_zero(_values(array, np.uint32), np.float32), valid)
    if kind == pa.float64():
        return LongLeaf(_one_nan_one_zero(_values(array, np.uint64), np.float64), valid)
    if pa.types.is_decimal128(kind):
        return _decimal_leaf(array, valid)
    if _is_bytes(kind):
        return _bytes_leaf(array, valid)
    if _is_long(kind):
        return LongLeaf(_values(array, np.uint64), valid)
    raise errors.InvalidArgument(f"Spark has no hash for Arrow's {kind}")


def _is_long(kind: pa.DataType) -> bool:
    is_moment = pa.types.is_timestamp(kind) or pa.types.is_duration(kind)
    return kind in (pa.int64(), pa.time64("ns")) or (is_moment and kind.unit == "us")


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def _values(array: pa.Array, kind: Any) -> npt.NDArray[Any]:
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), kind)
    return np.frombuffer(buffer, kind)[array.offset : array.offset + len(array)]


def _one_nan_one_zero(words: npt.NDArray[Any], kind: Any) -> npt.NDArray[Any]:
    numbers = words.view(kind)
    odd = np.isnan(numbers) | (numbers == 0)
    if not odd.any():
        return words
    fixed = numbers.copy()
    fixed[np.isnan(fixed)] = np.nan
    fixed[fixed == 0] = 0.0
    viewed: npt.NDArray[Any] = fixed.view(words.dtype)
    return viewed


def _bytes_leaf(array: pa.Array, valid: Mask | None) -> BytesLeaf:
    _, offset_buffer, data_buffer = array.buffers()
    wide = array.type in (pa.large_string(), pa.large_binary())
    if offset_buffer is None or offset_buffer.size == 0:
        offsets = np.zeros(len(array) + 1, np.int64)
    else:
        offsets = np.frombuffer(offset_buffer, np.int64 if wide else np.int32)
        offsets = offsets[array.offset : array.offset + len(array) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    if data_buffer is None or first == last:
        return BytesLeaf(np.empty(0, np.uint8), offsets[:-1] * 0, offsets[:-1] * 0, valid)
    data = np.frombuffer(data_buffer, np.uint8)[first:last]
    if first:
        offsets = offsets - first
    return BytesLeaf(data, offsets[:-1], offsets[1:], valid)


def _decimal_leaf(array: pa.Array, valid: Mask | None) -> Leaf:
    """Up to 18 digits as a long, more as the shortest big-endian two's complement.

    These are Java's `toUnscaledLong` and `BigInteger.toByteArray`, which Spark hashes.
    """
    words = _values(array, np.dtype((np.uint64, 2)))
    if array.type.precision <= _LONG_DIGITS:
        return LongLeaf(words[:, 0], valid)
    low, high = words[:, 0], words[:, 1]
    sign = (high.view(np.int64) >> 63).view(np.uint64)
    sizes = np.ones(len(words), np.int64)
    for byte in range(1, 16):
        sizes += _reaches(low ^ sign, high ^ sign, 8 * byte - 1)
    big_endian = np.ascontiguousarray(words[:, ::-1].byteswap()).view(np.uint8).reshape(-1)
    ends = np.arange(1, len(words) + 1) * 16
    return BytesLeaf(big_endian, ends - sizes, ends, valid, stride=16)


def _reaches(low: npt.NDArray[np.uint64], high: npt.NDArray[np.uint64], bit: int) -> Mask:
    if bit >= 64:
        return high >= np.uint64(1 << (bit - 64))
    return (high > 0) | (low >= np.uint64(1 << bit))


def _interval_leaves(array: pa.Array, valid: Mask | None) -> list[Leaf]:
    """Microseconds, days and months, in the order in which Spark folds them."""
    kind = np.dtype([("months", "<u4"), ("days", "<u4"), ("nanoseconds", "<i8")])
    parts = _values(array, kind)
    micros = np.ascontiguousarray(parts["nanoseconds"]) // 1000
    return [
        LongLeaf(micros.view(np.uint64), valid),
        IntLeaf(parts["days"], valid),
        IntLeaf(parts["months"], valid),
    ]
