"""Converts whole columns: canonical cells to Arrow arrays and back, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, chain, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.types._cells import freezer
from holdfast.types._datatypes import (
    ArrayType,
    AtomicType,
    DataType,
    IntervalType,
    MapType,
    StructType,
    TimeType,
)
from holdfast.types._moments import DAYS, YEARS, far_number

_TIMESTAMP = AtomicType("timestamp")
_VARIANT = AtomicType("variant")
_MICROSECOND = timedelta(microseconds=1)
_EPOCH, _EPOCH_UTC = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)
_NOT_A_TIME = -(2**63)


class UnrepresentableValue(Exception):
    """A stored value that the matching Python type cannot hold."""


def write_column(kind: DataType, cells: Sequence[Any]) -> pa.Array:
    """The array of `kind.arrow` that holds `cells`, all of them canonical.

    Raises pyarrow.ArrowCapacityError when they are more than its offsets reach.
    """
    if kind == _VARIANT:
        return _write_struct(kind.arrow, [AtomicType("binary")] * 2, cells)
    if isinstance(kind, StructType) and kind.fields:
        return _write_struct(kind.arrow, kind.children(), cells)
    if isinstance(kind, ArrayType) and _has_parts(kind.element):
        return _write_list(kind, cells)
    if isinstance(kind, MapType):
        return _write_map(kind, cells)
    if isinstance(kind, StructType):
        return pa.array([None if c is None else {} for c in cells], kind.arrow)
    if isinstance(kind, IntervalType) and not kind.year_month:
        return _write_durations(kind.arrow, cells)
    try:
        array = pa.array(cells, kind.arrow)
    except pa.ArrowNotImplementedError:
        if not pa.types.is_timestamp(kind.arrow):
            raise
        return _write_far(kind.arrow, cells)
    if isinstance(array, pa.ChunkedArray):
        raise pa.ArrowCapacityError("strings or binaries of more than 2 GiB in one column")
    return array


def read_column(kind: DataType, array: pa.Array | pa.ChunkedArray, far: bool = False) -> list[Any]:
    """The canonical cells of a column; raises UnrepresentableValue.

    Days and moments that Python's types cannot hold are `numpy.datetime64` where `far` says so.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if kind == _VARIANT:
        return _read_struct([AtomicType("binary")] * 2, array, far)
    if isinstance(kind, StructType):
        return _read_struct(kind.children(), array, far)
    if isinstance(kind, ArrayType):
        return _read_list(kind, array, far)
    if isinstance(kind, MapType):
        return _read_map(kind, array, far)
    return _read_leaf(kind, array, far)


def _has_parts(kind: DataType) -> bool:
    """Whether pyarrow alone cannot write the cells; it takes structs only as dicts."""
    own = (StructType, MapType, IntervalType)
    return any(isinstance(k, own) or k == _VARIANT for k in kind.walk())


# -- writing -------------------------------------------------------------------------------------


def _write_struct(arrow: pa.DataType, kinds: Sequence[DataType], cells: Sequence[Any]) -> pa.Array:
    filler = next((cell for cell in cells if cell is not None), None)
    if filler is None:
        return pa.nulls(len(cells), arrow)
    # The cell under a null is never read; a real one keeps nulls out of not-null fields.
    rows = [filler if cell is None else cell for cell in cells]
    columns = [write_column(kind, list(map(itemgetter(i), rows))) for i, kind in enumerate(kinds)]
    fields = [arrow.field(i) for i in range(arrow.num_fields)]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=_mask(cells))


def _write_list(kind: ArrayType, cells: Sequence[Any]) -> pa.Array:
    values = write_column(kind.element, list(chain.from_iterable(c or () for c in cells)))
    return pa.ListArray.from_arrays(_offsets(cells), values, kind.arrow, mask=_mask(cells))


def _write_map(kind: MapType, cells: Sequence[Any]) -> pa.Array:
    keys = write_column(kind.key, list(chain.from_iterable(c or () for c in cells)))
    items = write_column(
        kind.value, list(chain.from_iterable(c.values() if c else () for c in cells))
    )
    return pa.MapArray.from_arrays(_offsets(cells), keys, items, kind.arrow, mask=_mask(cells))


def _write_durations(arrow: pa.DataType, cells: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(cells, arrow)
    except pa.ArrowInvalid:  # pyarrow overflows within a day of the lowest duration
        return pa.array([c if c is None else c // _MICROSECOND for c in cells]).cast(arrow)


def _write_far(arrow: pa.DataType, cells: Sequence[Any]) -> pa.Array:
    """Writes moments some of which are numpy's: pyarrow takes neither a mix nor ones in a zone."""
    epoch = _EPOCH if arrow.tz is None else _EPOCH_UTC
    numbers = [
        cell
        if cell is None
        else far_number(cell)
        if isinstance(cell, np.datetime64)
        else (cell - epoch) // _MICROSECOND
        for cell in cells
    ]
    return pa.array(numbers, pa.int64()).cast(arrow)


def _mask(cells: Sequence[Any]) -> pa.Array:
    return pa.array([cell is None for cell in cells], pa.bool_())


def _offsets(cells: Sequence[Any]) -> pa.Array:
    return pa.array([0, *accumulate(0 if c is None else len(c) for c in cells)], pa.int32())


# -- reading -------------------------------------------------------------------------------------


def _read_leaf(kind: DataType, array: pa.Array, far: bool) -> list[Any]:
    try:
        return _read_near(kind, array)
    except UnrepresentableValue:
        if not far or isinstance(kind, TimeType):
            raise
        return _read_far(kind, array)


def _read_far(kind: DataType, array: pa.Array) -> list[Any]:
    """Cells of Python's types where these can hold the moment, of numpy's elsewhere."""
    is_date = pa.types.is_date32(array.type)
    numbers = array.view(pa.int32() if is_date else pa.int64()).fill_null(0).to_numpy()
    low, high = DAYS if is_date else YEARS
    far = (numbers < low) | (numbers > high)
    cells = _read_near(kind, pc.if_else(pa.array(~far), array, pa.scalar(None, array.type)))
    for place in np.flatnonzero(far).tolist():
        if numbers[place] == _NOT_A_TIME:
            raise UnrepresentableValue("a moment that neither Python nor numpy can hold")
        cells[place] = np.datetime64(int(numbers[place]), "D" if is_date else "us")
    return cells


def _read_near(kind: DataType, array: pa.Array) -> list[Any]:
    # numpy makes datetimes ten times faster than pyarrow, but gives up on some without a word.
    arrow = array.type
    if pa.types.is_timestamp(arrow):
        if kind == _TIMESTAMP:
            since = _read_numbers(array, pa.int64(), "m8[us]", YEARS)
            return with_nulls(array, list(map(_EPOCH_UTC.__add__, since)))
        return with_nulls(array, _read_numbers(array, pa.int64(), "M8[us]", YEARS))
    if pa.types.is_date32(arrow):
        return with_nulls(array, _read_numbers(array, pa.int32(), "M8[D]", DAYS))
    if pa.types.is_duration(arrow):
        return _read_durations(array)
    if isinstance(kind, TimeType):
        _refuse_nanoseconds(array)
    cells: list[Any] = array.to_pylist()
    return cells


def _read_durations(array: pa.Array) -> list[Any]:
    try:
        lowest, highest = _NOT_A_TIME + 1, -_NOT_A_TIME - 1
        return with_nulls(array, _read_numbers(array, pa.int64(), "m8[us]", (lowest, highest)))
    except UnrepresentableValue:
        found: list[Any] = array.to_pylist()
        return found


def _read_numbers(
    array: pa.Array, number: pa.DataType, unit: str, limits: tuple[int, int]
) -> list[Any]:
    """Moments or durations from their numbers; cells of nulls have no meaning."""
    numbers = array.cast(number).fill_null(0).to_numpy().astype(np.int64)
    if len(numbers) and not limits[0] <= numbers.min() <= numbers.max() <= limits[1]:
        raise UnrepresentableValue("a moment or interval outside Python's range; read it as Arrow")
    found: list[Any] = numbers.view(unit).tolist()
    return found


def _refuse_nanoseconds(array: pa.Array) -> None:
    nanoseconds = array.cast(pa.int64()).drop_null().to_numpy()
    if (nanoseconds % 1000).any():
        raise UnrepresentableValue("a time with nanoseconds; read it as Arrow")


def _read_struct(kinds: Sequence[DataType], array: pa.Array, far: bool) -> list[Any]:
    if not kinds:
        return with_nulls(array, [()] * len(array))
    parts = [read_column(k, a, far) for k, a in zip(kinds, array.flatten(), strict=True)]
    return with_nulls(array, list(zip(*parts, strict=True)))


def _read_list(kind: ArrayType, array: pa.Array, far: bool) -> list[Any]:
    if not far and not _needs_reading(kind.element):
        return array.to_pylist()  # type: ignore[no-any-return]
    starts, values = _inside(array, array.values)
    items = read_column(kind.element, values, far)
    cells = [items[a:b] for a, b in pairwise(starts)]
    return with_nulls(array, cells)


def _read_map(kind: MapType, array: pa.Array, far: bool) -> list[Any]:
    starts, keys = _inside(array, array.keys)
    _, items = _inside(array, array.items)
    freeze = freezer(kind.key)
    key_cells = read_column(kind.key, keys, far)
    if freeze is not None:
        key_cells = [freeze(cell) for cell in key_cells]
    pairs = list(zip(key_cells, read_column(kind.value, items, far), strict=True))
    cells = [dict(pairs[a:b]) for a, b in pairwise(starts)]
    return with_nulls(array, cells)


def _needs_reading(kind: DataType) -> bool:
    """Whether some cell inside differs from what pyarrow returns."""
    own = any(k == _TIMESTAMP or isinstance(k, TimeType) for k in kind.walk())
    return own or _has_parts(kind)


def _inside(array: pa.Array, values: pa.Array) -> tuple[list[int], pa.Array]:
    """Offsets from zero, and only the values that this array, which may be a slice, covers."""
    offsets = array.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    return (offsets - first).tolist(), values.slice(first, last - first)


def with_nulls(array: pa.Array, cells: list[Any]) -> list[Any]:
    """`cells` with None wherever `array` is null; the list is changed."""
    if array.null_count:
        nulls = pc.is_null(array).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(nulls).tolist():
            cells[row] = None
    return cells
