"""Rows of a partition by a range of the index column, and rows as pairs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.engine.arrays import Mask
from holdfast.engine.partition.bounds import IndexRange
from holdfast.engine.partition.reader import PartitionReader
from holdfast.engine.partition.rows import NEVER, Rows, index_numbers
from holdfast.engine.partition.shape import StoreShape
from holdfast.errors import InvalidArgument
from holdfast.store import RowPair
from holdfast.types import RowCodec, parse_schema


def row_pairs(shape: StoreShape, pieces: Iterator[Rows]) -> Iterator[RowPair]:
    """The rows of some pieces as pairs of key and value."""
    for piece in pieces:
        keys = shape.keys.from_arrow(piece.keys)
        columns = [piece.value(i) for i in range(piece.num_values)]
        values = shape.values.from_arrow(columns, len(piece))
        yield from map(RowPair, keys, values)


def range_pieces(partition: PartitionReader, start: Any, end: Any) -> Iterator[Rows]:
    """The rows whose index column lies in start..end, as of this call; all without an index.

    Both ends are inclusive, and None leaves one open.
    """
    shape = partition.shape
    if shape.key_index is None or (start is None and end is None):
        return partition.pieces()
    low, high = index_number(shape, start), index_number(shape, end)
    if (start is None or low is not None) and (end is None or high is not None):
        first = IndexRange().low if low is None else low
        return partition.pieces(within=IndexRange(first, NEVER if high is None else high))
    return _compared(shape, partition.pieces(), start, end)


def index_number(shape: StoreShape, cell: Any) -> int | None:
    """A value of the index column as the whole number it is stored as, if it is one."""
    if cell is None:
        return None
    numbers = index_numbers(_index_cell(shape, cell))
    return None if numbers is None else int(numbers[0])


def _index_cell(shape: StoreShape, cell: Any) -> pa.Array:
    ordinal = shape.key_index
    if ordinal is None:
        raise InvalidArgument("This store was not opened with key_index_ordinal.")
    field = shape.key_schema.json()["fields"][ordinal]
    codec = RowCodec(parse_schema({"type": "struct", "fields": [field]}))
    return codec.to_arrow([codec.encode((cell,))])[0]


def _compared(shape: StoreShape, pieces: Iterator[Rows], start: Any, end: Any) -> Iterator[Rows]:
    """Rows in start..end by Arrow's order, for index columns that are no whole numbers."""
    assert shape.key_index is not None
    for piece in pieces:
        column = piece.keys[shape.key_index]
        inside = np.ones(len(piece), bool)
        if start is not None:
            inside &= _at_least(column, _index_cell(shape, start)[0])
        if end is not None:
            inside &= _at_most(column, _index_cell(shape, end)[0])
        yield piece.where(inside)


def _at_least(column: pa.Array, bound: pa.Scalar) -> Mask:
    """Which cells are `bound` or above it; as in Spark, NaN lies above every number."""
    above = pc.greater_equal(column, bound)
    if pa.types.is_floating(column.type):
        above = pc.or_(above, pc.is_nan(column))
    return cast(Mask, pc.fill_null(above, False).to_numpy(zero_copy_only=False))


def _at_most(column: pa.Array, bound: pa.Scalar) -> Mask:
    """Which cells are `bound` or below it."""
    if pa.types.is_floating(column.type) and math.isnan(bound.as_py()):
        below = pc.is_valid(column)
    else:
        below = pc.fill_null(pc.less_equal(column, bound), False)
    return cast(Mask, below.to_numpy(zero_copy_only=False))
