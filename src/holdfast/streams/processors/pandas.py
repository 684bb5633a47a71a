"""Rows as pandas DataFrames for a processor, and the DataFrames it returns as tables.

Converting a DataFrame has a fixed cost that is far above that of a few rows. So a whole batch is
converted at once, and the DataFrame of a key is a slice of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidArgument
from holdfast.streams.processors.rows import plain
from holdfast.types import Schema, one_array

_ROWS_AT_A_TIME = 50_000
_FRAMES_AT_A_TIME = 20_000


def pandas_for(what: str) -> Any:
    """Import pandas, which is an extra; `what` needs it."""
    try:
        import pandas
    except ImportError as error:
        raise InvalidArgument(
            f"{what} needs pandas, which is not installed here. Install the extra "
            "holdfast[pandas] where the driver and the workers run: "
            "pip install 'holdfast[pandas]'."
        ) from error
    return pandas


@dataclass(frozen=True)
class FrameLimits:
    """What Spark's settings say of DataFrames; the defaults are those of the settings."""

    rows: int = 10_000
    """The most rows; 0 or less: no limit."""
    bytes: int = 64 << 20
    """The most bytes, by the average row of a batch. A DataFrame has a row at least."""
    coerces_integers: bool = False
    """Whether integers may be returned for any decimal that has room for them."""

    def rows_of(self, batch: pa.RecordBatch) -> int:
        """The most rows of a DataFrame of this batch."""
        by_bytes: int = self.bytes * batch.num_rows // max(1, batch.nbytes)
        most = by_bytes if self.rows <= 0 else min(by_bytes, self.rows)
        return max(1, most)


@dataclass(frozen=True)
class PandasFrames:
    """Rows as DataFrames.

    `columns` are the stream's columns: their names in the input, and the user's names. Timestamps
    are naive and in the time zone `zone`. With `is_wide`, numbers have 64 bits whatever their
    column's type. With `is_strict`, returned DataFrames may only have the output's columns.
    """

    columns: tuple[tuple[str, str], ...]
    output: Schema
    zone: str
    is_wide: bool = True
    is_strict: bool = False
    limits: FrameLimits = FrameLimits()

    @property
    def timer_zone(self) -> str:
        """As in Spark, keys of timers show the same time as those of DataFrames."""
        return self.zone

    def rows(self, batch: pa.RecordBatch) -> Cut:
        """The rows of a batch, to be cut into groups."""
        pandas = pandas_for("A processor of DataFrames")
        known, loose = {}, []
        for place, (name, label) in enumerate(self.columns):
            column = _widened(batch.column(name)) if self.is_wide else batch.column(name)
            known[place] = to_pandas(column, label, self.zone)
            if column.null_count and _changes_by_nulls(column.type):
                filled = pc.fill_null(column, pa.scalar(0).cast(column.type))
                valid = column.is_valid().to_numpy(zero_copy_only=False)
                loose.append((place, filled.to_numpy(zero_copy_only=False).copy(), valid))
        frame = pandas.DataFrame(known, index=pandas.RangeIndex(batch.num_rows))
        frame.columns = [label for _, label in self.columns]
        most = self.limits.rows_of(batch)
        return Cut(frame, loose, 0, batch.num_rows, most, pandas.RangeIndex)

    def keys(self, columns: Sequence[pa.ChunkedArray]) -> list[tuple[Any, ...]]:
        """The keys of groups; timestamps are pandas' and naive, as in DataFrames."""
        return list(zip(*map(self._key_cells, columns), strict=True))

    def _key_cells(self, column: pa.ChunkedArray) -> list[Any]:
        if not pa.types.is_timestamp(column.type):
            cells: list[Any] = column.to_pylist()
            return cells
        made = to_pandas(one_array(column), "key", self.zone)
        there = column.is_valid().to_pylist()
        return [cell if valid else None for cell, valid in zip(made, there, strict=True)]

    def group(self, parts: Iterator[Cut]) -> Iterator[Any]:
        """The DataFrames of a group."""
        return (frame for part in parts for frame in part.frames())

    @cached_property
    def nothing(self) -> Any:
        """A DataFrame without rows."""
        labels = [label for _, label in self.columns]
        return pandas_for("A processor of DataFrames").DataFrame(columns=labels)

    def checked(self, given: Any) -> Iterator[Any]:
        """What a function returned, if it can be iterated over."""
        if isinstance(given, type(self.nothing)) or not hasattr(given, "__iter__"):
            raise InvalidArgument(
                f"The function returned {type(given).__name__}. It has to return an iterator of "
                "pandas.DataFrame."
            )
        return iter(given)

    def tables(self, results: Iterator[Any]) -> Iterator[pa.Table]:
        """What the processor returned, as tables; unnamed columns are matched by position."""
        taken = _FrameCopy(self)
        for frame in results:
            taken.add(frame)
            if taken.rows >= _ROWS_AT_A_TIME or taken.frames >= _FRAMES_AT_A_TIME:
                yield taken.table()
                taken = _FrameCopy(self)
        if taken.frames:
            yield taken.table()


_Loose = tuple[int, npt.NDArray[Any], npt.NDArray[np.bool_]]
"""A column whose pandas dtype depends on nulls: its position, its cells, and which are valid."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Rows `start` to `stop` of a batch."""

    whole: Any
    loose: list[_Loose]
    start: int
    stop: int
    most: int
    """The most rows of a DataFrame."""
    index: Callable[[int], Any]

    def __getitem__(self, rows: slice) -> Cut:
        """Some of the rows. Requires: both ends are given."""
        start, stop = self.start + rows.start, self.start + rows.stop
        return Cut(self.whole, self.loose, start, stop, self.most, self.index)

    def frames(self) -> Iterator[Any]:
        """The rows as DataFrames that the processor may change, none larger than is allowed."""
        count = self.stop - self.start
        if count <= self.most:
            yield self._frame()
            return
        for start in range(0, count, self.most):
            yield self[start : min(start + self.most, count)]._frame()

    def _frame(self) -> Any:
        rows = slice(self.start, self.stop)
        frame = self.whole.iloc[rows].copy(deep=False)
        frame.index = self.index(self.stop - self.start)
        for place, cells, valid in self.loose:
            if valid[rows].all():
                frame.isetitem(place, cells[rows])
        return frame


def to_pandas(column: pa.Array, name: str, zone: str) -> Any:
    """A column as PySpark converts it to pandas."""
    kind = column.type
    try:
        if _has_zone(kind):
            return _local(column, zone).to_pandas(coerce_temporal_nanoseconds=True)
        if pa.types.is_nested(kind) and _has_zone_inside(kind):
            return _nested(column, zone)
        return column.to_pandas(
            date_as_object=True, coerce_temporal_nanoseconds=True, maps_as_pydicts="strict"
        )
    except (pa.ArrowException, ValueError):
        pass
    raise InvalidArgument(
        f"The column {name!r} holds what pandas cannot keep as {kind}, such as a time outside of "
        "the years 1678 to 2261. Filter such rows, or cast the column."
    )


def key_cells(column: pa.ChunkedArray, name: str, zone: str) -> list[Any]:
    """The cells of a key column, as PySpark passes them: numpy types, with NaN for null numbers."""
    array = column.combine_chunks()
    if array.null_count and _changes_by_nulls(array.type):
        kind, missing = array.type.to_pandas_dtype(), None
        if pa.types.is_integer(array.type):
            missing = np.float64(np.nan)
        return [missing if cell is None else kind(cell) for cell in array.to_pylist()]
    cells = to_pandas(array, name, zone)
    return list(cells if cells.dtype.kind in "mM" else cells.to_numpy())


def _has_zone(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


def _has_zone_inside(kind: pa.DataType) -> bool:
    return _has_zone(kind) or any(
        _has_zone_inside(kind.field(number).type) for number in range(kind.num_fields)
    )


def _local(column: pa.Array, zone: str) -> pa.Array:
    return pc.local_timestamp(column.cast(pa.timestamp("us", tz=zone)))


def _nested(column: pa.Array, zone: str) -> Any:
    """A column of lists, maps or structs with timestamps inside."""
    pandas = pandas_for("A processor of DataFrames")

    def converted(kind: pa.DataType, cell: Any) -> Any:
        if cell is None:
            return None
        if _has_zone(kind):
            return pandas.Timestamp(cell).tz_convert(zone).tz_localize(None)
        if pa.types.is_struct(kind):
            return {field.name: converted(field.type, cell[field.name]) for field in kind}
        if pa.types.is_map(kind):
            return {
                converted(kind.key_type, own): converted(kind.item_type, value)
                for own, value in cell
            }
        if pa.types.is_list(kind):
            return np.array([converted(kind.value_type, part) for part in cell])
        return cell

    cells = [converted(column.type, cell) for cell in column.to_pylist()]
    return pandas.Series(cells, dtype=object)


def _widened(column: pa.Array) -> pa.Array:
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.float64()) if pa.types.is_float32(column.type) else column


def _changes_by_nulls(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


class _FrameCopy:
    """Copies of the cells of returned DataFrames, since the processor may change these later."""

    def __init__(self, style: PandasFrames) -> None:
        self._style = style
        self._frame_type = pandas_for("A processor of DataFrames").DataFrame
        self._columns: list[list[Any]] = [[] for _ in style.output.names]
        self._labels: list[Any] = []
        self._places: list[int] = []
        self.rows = 0
        self.frames = 0

    def add(self, frame: Any) -> None:
        """Add a DataFrame. Raises InvalidArgument if its columns are not those of the output."""
        if not isinstance(frame, self._frame_type):
            raise InvalidArgument(
                f"The processor returned {type(frame).__name__}, not a pandas.DataFrame. It has to "
                "give an iterator of DataFrames."
            )
        self.frames += 1
        if len(frame) == 0:
            return
        self.rows += len(frame)
        labels = frame.columns.tolist()
        if labels != self._labels:
            self._labels, self._places = labels, self._places_of(labels)
        for taken, cells in zip(self._columns, _columns(frame, self._places), strict=True):
            is_plain = isinstance(cells.dtype, np.dtype)
            taken.append(np.array(cells) if is_plain else cells.copy())

    def _places_of(self, labels: list[Any]) -> list[int]:
        """The positions of the output's columns."""
        names, count = self._style.output.names, len(labels)
        if self._style.is_strict and count != len(names):
            raise InvalidArgument(
                f"The processor returned a DataFrame of {count} columns, but the output has "
                f"{len(names)}: {', '.join(names)}."
            )
        if any(isinstance(label, str) for label in labels):
            for name in names:
                if name not in labels:
                    raise InvalidArgument(
                        f"The processor returned a DataFrame without the output's column {name!r}."
                    )
            return [labels.index(name) for name in names]
        if count < len(names):
            raise InvalidArgument(
                f"The processor returned a DataFrame of {count} columns without names, but the "
                f"output has {len(names)}: {', '.join(names)}."
            )
        return list(range(len(names)))

    def table(self) -> pa.Table:
        """All rows added so far, with the output's schema."""
        schema = self._style.output.arrow
        columns = [
            pa.chunked_array(self._chunks(field, cells), field.type)
            for field, cells in zip(schema, self._columns, strict=True)
        ]
        return pa.table(columns, schema=schema)

    def _chunks(self, field: pa.Field, cells: list[Any]) -> list[pa.Array]:
        """A column's cells in runs of equal dtype."""
        chunks = []
        for dtype, some in groupby(cells, key=lambda part: part.dtype):
            try:
                parts = list(some)
                if self._style.limits.coerces_integers and pa.types.is_decimal(field.type):
                    parts = list(map(_decimals, parts))
                chunks.append(_to_arrow(parts, field.type, self._style.zone))
                continue
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                pass
            raise InvalidArgument(
                f"Failed to convert the values: the column {field.name!r} that the processor "
                f"returned is {dtype} in pandas and cannot be converted to {field.type}."
            )
        return chunks


def _decimals(cells: Any) -> Any:
    """Integers as decimals; all other cells as they are."""
    if cells.dtype.kind not in "iu":
        return cells
    there = [None if cell is None or cell != cell else Decimal(int(cell)) for cell in _plain(cells)]
    return np.array(there, dtype=object)


def _plain(cells: Any) -> list[Any]:
    """Cells without pandas' own null."""
    return [None if cell is pandas_for("A processor").NA else cell for cell in cells]


def _columns(frame: Any, places: list[int]) -> list[Any]:
    """Arrays of some columns.

    Frames are small and many, and making a Series of each column would take as long as everything
    else. So the arrays are read from the frame's blocks where pandas allows it.
    """
    read = getattr(getattr(frame, "_mgr", None), "iget_values", None)
    if read is None:
        return [frame.iloc[:, place].array for place in places]
    return [read(place) for place in places]


def _to_arrow(parts: list[Any], kind: pa.DataType, zone: str) -> pa.Array:
    """Cells of one dtype as a column; NaN and NaT are null."""
    cells = _joined(parts)
    if _has_zone(kind) and cells.dtype.kind == "M" and isinstance(cells.dtype, np.dtype):
        naive = pa.array(cells, from_pandas=True)
        return pc.assume_timezone(naive, zone, ambiguous="latest").cast(kind)
    if pa.types.is_nested(kind):
        return pa.array([plain(cell) for cell in cells], kind, from_pandas=True)
    try:
        return pa.array(cells, kind, from_pandas=True)
    except pa.ArrowInvalid:
        return pa.array(cells, from_pandas=True).cast(kind)


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0].dtype, np.dtype):
        return np.concatenate(parts)
    pandas = pandas_for("A processor of DataFrames")
    cells = pandas.concat([pandas.Series(part) for part in parts], ignore_index=True)
    is_coded = isinstance(cells.dtype, pandas.CategoricalDtype)
    return cells.astype(cells.dtype.categories.dtype) if is_coded else cells
