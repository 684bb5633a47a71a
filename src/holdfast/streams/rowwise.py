"""Rows as PySpark's Row for a processor, and the rows it gives back as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidArgument
from holdfast.types import Schema

_ROWS_AT_A_TIME = 50_000


@dataclass(frozen=True)
class Rowwise:
    """Rows one by one. `make(names)` gives a function of cells that makes a row.

    `columns` are those of the stream, as the input has them and as the user calls them.
    Timestamps have the time zone `zone`.
    """

    columns: tuple[tuple[str, str], ...]
    output: Schema
    zone: str
    make: Callable[[list[str]], Callable[..., Any]]

    def rows(self, batch: pa.RecordBatch) -> list[Any]:
        """The rows of a batch."""
        cells = [self._cells(batch.column(name)) for name, _ in self.columns]
        make = self.make([name for _, name in self.columns])
        return list(map(make, *cells))

    def _cells(self, column: pa.Array) -> list[Any]:
        if pa.types.is_timestamp(column.type) and column.type.tz is not None:
            column = column.cast(pa.timestamp("us", tz=self.zone))
        cells: list[Any] = column.to_pylist()
        return cells

    def group(self, parts: Iterator[list[Any]]) -> Iterator[Any]:
        """The rows of a group."""
        return chain.from_iterable(parts)

    def tables(self, results: Iterator[Any]) -> Iterator[pa.Table]:
        """Tables of what the processor gave, its columns by name."""
        while rows := list(islice(results, _ROWS_AT_A_TIME)):
            yield self._table(rows)

    def _table(self, rows: list[Any]) -> pa.Table:
        names = self.output.names
        columns = []
        by_place = _places(rows, names)
        for name, field in zip(names, self.output.arrow, strict=True):
            if by_place is None:
                cells = [_named(row, name) for row in rows]
            else:
                place = by_place[name]
                cells = [None] * len(rows) if place is None else [row[place] for row in rows]
            columns.append(_column(name, cells, field.type))
        return pa.table(columns, schema=self.output.arrow)


def _places(rows: list[Any], names: tuple[str, ...]) -> dict[str, int | None] | None:
    """Where each column stands in the rows; None where they have to be asked one by one."""
    first = getattr(rows[0], "__fields__", None)
    if first is None:
        return None
    for row in rows:
        if getattr(row, "__fields__", None) != first:
            return None
    known = list(first)
    return {name: known.index(name) if name in known else None for name in names}


def _named(row: Any, name: str) -> Any:
    fields = getattr(row, "__fields__", None)
    if fields is None or not isinstance(row, tuple):
        raise InvalidArgument(
            f"The processor gave {type(row).__name__}, not a Row with named columns."
        )
    known = list(fields)
    return row[known.index(name)] if name in known else None


def _column(name: str, cells: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_nested(kind):
        cells = [_plain(cell) for cell in cells]
    try:
        return pa.array(cells, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError):
        pass
    raise InvalidArgument(
        f"The column {name!r} of what the processor gave cannot be converted to {kind}."
    )


def _plain(cell: Any) -> Any:
    """A cell without rows inside: pyarrow takes structs as dicts."""
    fields = getattr(cell, "__fields__", None)
    if fields is not None and isinstance(cell, tuple):
        return {name: _plain(part) for name, part in zip(fields, cell, strict=True)}
    if isinstance(cell, (list, tuple)):
        return [_plain(part) for part in cell]
    if isinstance(cell, dict):
        return {key: _plain(part) for key, part in cell.items()}
    return cell
