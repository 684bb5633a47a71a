"""Converts columns to cells that every database's client accepts: numbers, text and bytes.

A moment becomes a number, so every value that Arrow can hold is possible, also beyond the range of
Python's own dates and times.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from holdfast.types import (
    ArrayType,
    AtomicType,
    DataType,
    MapType,
    StructType,
    one_array,
    with_nulls,
)

_BINARY = AtomicType("binary")
VARIANT = AtomicType("variant")


def plain_cells(kind: DataType, column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The cells of a column, None for null.

    A date is its days since 1970-01-01, a timestamp of either kind its microseconds since then, a
    time its nanoseconds since midnight, an interval its months or its microseconds, a calendar
    interval (months, days, nanoseconds), a variant (value, metadata). An array is a list, a struct
    a tuple, a map a list of (key, value) pairs.
    """
    array = one_array(column)
    if kind == VARIANT:
        return _structs((_BINARY, _BINARY), array)
    if isinstance(kind, StructType):
        return _structs(kind.children(), array)
    if isinstance(kind, ArrayType):
        return _lists(array, plain_cells(kind.element, _covered(array, array.values)))
    if isinstance(kind, MapType):
        keys = plain_cells(kind.key, _covered(array, array.keys))
        items = plain_cells(kind.value, _covered(array, array.items))
        return _lists(array, list(zip(keys, items, strict=True)))
    return _leaves(array)


def _leaves(array: pa.Array) -> list[Any]:
    kind = array.type
    if pa.types.is_date32(kind):
        array = array.view(pa.int32())
    elif pa.types.is_timestamp(kind) or pa.types.is_time64(kind) or pa.types.is_duration(kind):
        array = array.view(pa.int64())
    cells: list[Any] = array.to_pylist()
    if kind == pa.month_day_nano_interval():
        return [None if cell is None else tuple(cell) for cell in cells]
    return cells


def _structs(kinds: Sequence[DataType], array: pa.Array) -> list[Any]:
    if not kinds:
        return with_nulls(array, [()] * len(array))
    parts = [plain_cells(k, a) for k, a in zip(kinds, array.flatten(), strict=True)]
    return with_nulls(array, list(zip(*parts, strict=True)))


def _lists(array: pa.Array, items: list[Any]) -> list[Any]:
    starts = array.offsets.to_numpy()
    return with_nulls(array, [items[a:b] for a, b in pairwise((starts - starts[0]).tolist())])


def _covered(array: pa.Array, values: pa.Array) -> pa.Array:
    """Only the values that this array, which may be a slice, covers."""
    offsets = array.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return values.slice(first, last - first)
