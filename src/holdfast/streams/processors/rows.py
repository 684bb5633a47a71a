"""Rows as PySpark's Row for a processor, and the rows it returns as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidArgument
from holdfast.types import AtomicType, Schema, UnrepresentableValue, one_array, read_column

_ROWS_AT_A_TIME = 50_000
_FIRST_ROWS = 100
_BYTES_AT_A_TIME = 16 << 20
"""The size of a table of returned rows, estimated from the tables before it."""
_UTC_NAMES = frozenset({"UTC", "Etc/UTC", "Z"})


@dataclass(frozen=True)
class RowObjects:
    """Rows one by one. `make(names)` returns a function that makes a row of a tuple of cells.

    `columns` are the stream's columns: their names in the input, and the user's names. Timestamps
    have the time zone `zone`.
    """

    columns: tuple[tuple[str, str], ...]
    output: Schema
    zone: str
    make: Callable[[tuple[str, ...]], Callable[[tuple[Any, ...]], Any]]

    timer_zone = None
    """Keys of timers have the form of state."""

    def rows(self, batch: pa.RecordBatch) -> list[Any]:
        """The rows of a batch."""
        cells = [self._cells(batch.column(name)) for name, _ in self.columns]
        make = self.make(tuple(name for _, name in self.columns))
        return list(map(make, zip(*cells, strict=True)))

    def keys(self, columns: Sequence[pa.ChunkedArray]) -> list[tuple[Any, ...]]:
        """The keys of groups, in the form of rows."""
        return list(zip(*(self._cells(one_array(column)) for column in columns), strict=True))

    def _cells(self, column: pa.Array) -> list[Any]:
        if pa.types.is_timestamp(column.type) and column.type.tz is not None:
            return self._moments(column)
        wanted = _in_zone(column.type, self.zone)
        zoned = column if wanted == column.type else column.cast(wanted)
        cells: list[Any] = zoned.to_pylist()
        return cells

    def _moments(self, column: pa.Array) -> list[Any]:
        """Datetimes of the zone; pyarrow's conversion takes longer than the rest of the row."""
        in_zone = column.cast(pa.timestamp("us", tz=self.zone))
        try:
            cells = read_column(AtomicType("timestamp"), in_zone)
        except UnrepresentableValue:
            cells = in_zone.to_pylist()  # names the column that fails
        if self.zone in _UTC_NAMES:
            return cells
        zone = pa.lib.string_to_tzinfo(self.zone)
        return [cell if cell is None else cell.astimezone(zone) for cell in cells]

    def group(self, parts: Iterator[list[Any]]) -> Iterator[Any]:
        """The rows of a group."""
        return chain.from_iterable(parts)

    def tables(self, results: Iterator[Any]) -> Iterator[pa.Table]:
        """What the processor returned, as tables; columns are matched by name."""
        count = _FIRST_ROWS
        while rows := list(islice(results, count)):
            table = self._table(rows)
            yield table
            fitting = _BYTES_AT_A_TIME * len(rows) // max(table.nbytes, 1)
            count = min(max(fitting, 1), _ROWS_AT_A_TIME)

    def _table(self, rows: list[Any]) -> pa.Table:
        given = _columns(rows)
        columns = []
        for name, field in zip(self.output.names, self.output.arrow, strict=True):
            if given is None:
                cells: Sequence[Any] = [_named(row, name) for row in rows]
            else:
                cells = given.get(name, [None] * len(rows))
            columns.append(_column(name, cells, field.type))
        return pa.table(columns, schema=self.output.arrow)


def _in_zone(kind: pa.DataType, zone: str) -> pa.DataType:
    """A type whose timestamps with a zone have this one, at every level."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, tz=zone)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_zone(field.type, zone)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_in_zone(kind.key_type, zone), _in_zone(kind.item_type, zone))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_zone(kind.value_type, zone)))
    return kind


def _columns(rows: list[Any]) -> dict[str, Sequence[Any]] | None:
    """The cells of each column; None if the rows have to be read one by one."""
    names = getattr(rows[0], "__fields__", None)
    if names is None:
        return None
    for row in rows:
        if getattr(row, "__fields__", None) != names or not isinstance(row, tuple):
            return None
    return dict(zip(names, zip(*rows, strict=True), strict=True))


def _named(row: Any, name: str) -> Any:
    fields = getattr(row, "__fields__", None)
    if fields is None or not isinstance(row, tuple):
        raise InvalidArgument(
            f"The processor returned {type(row).__name__}, not a Row with named columns."
        )
    known = list(fields)
    return row[known.index(name)] if name in known else None


def _column(name: str, cells: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_nested(kind):
        cells = [plain(cell) for cell in cells]
    try:
        return pa.array(cells, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError):
        pass
    raise InvalidArgument(
        f"The column {name!r} that the processor returned cannot be converted to {kind}."
    )


def plain(cell: Any) -> Any:
    """A cell whose rows inside are dicts, as pyarrow wants structs."""
    fields = getattr(cell, "__fields__", None)
    if fields is not None and isinstance(cell, tuple):
        return {name: plain(part) for name, part in zip(fields, cell, strict=True)}
    if isinstance(cell, (list, tuple)):
        return [plain(part) for part in cell]
    if isinstance(cell, dict):
        return {key: plain(part) for key, part in cell.items()}
    return cell
