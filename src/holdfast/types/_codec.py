"""Converts rows between what Python code uses and what the store keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa

from holdfast import errors
from holdfast.types import _cells
from holdfast.types._columns import UnrepresentableValue, read_column, write_column
from holdfast.types._schema import Schema, quote_name

Row = tuple[Any, ...]
"""A row as the store returns it: a tuple in the order of the schema."""


class RowCodec:
    """Checks and converts rows of one schema. Stateless after creation, so threads may share it.

    A canonical row is a tuple with one cell for each column, in column order:

    - int, bool, str, bytes, float (for `float` rounded to 32 bits), None, `datetime.date`;
    - timestamp: an aware datetime in UTC; timestamp_ntz: a naive one; time: `datetime.time`;
    - a date or timestamp outside the years 1 to 9999: `numpy.datetime64` in days or microseconds
      (a timestamp is in UTC);
    - day-time interval: `timedelta`; year-month interval: months as int; calendar interval:
      `pyarrow.MonthDayNano`; decimal: `Decimal` with exactly the column's scale;
    - array: list; map: dict (arrays inside its keys are tuples); struct: tuple in field order;
      variant: (value, metadata) as bytes.

    `plain` is True when canonical rows are dictionary keys as they are.
    """

    encode: Callable[[Any], Row]
    """`encode(row)` is the canonical row for a tuple, list, named tuple or PySpark Row (by
    position) or a dict (by name). A canonical tuple of plain cells comes back itself; everything
    mutable is copied, so the caller may reuse it. Structs take tuples or dicts, decimals are
    rounded half up to their scale as in Spark, doubles take integers where that is exact, and a
    timestamp needs a time zone.

    Raises InvalidArgument naming the column, never the value, when a cell has the wrong type or
    range or is null where it may not be, when the length or the names differ, and for None."""

    hashable: Callable[[Row], Row]
    """`hashable(row)` is a dictionary key for a canonical row: equal for equal keys, so NaN is one
    key, -0.0 is 0.0 and lists are tuples. It is the row itself where `plain`."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        columns = [(f.type, f.nullable) for f in schema.fields]
        self._converts = [_cells.canonical(kind, nullable) for kind, nullable in columns]
        freezers = [_cells.freezer(kind) for kind, _ in columns]
        self.plain = not any(freezers)
        self.hashable = _identity if self.plain else _freezing(freezers)
        checks = [_cells.is_canonical(kind, nullable) for kind, nullable in columns]
        self.encode = _encoder(checks, self._encode_slowly)

    def __repr__(self) -> str:
        return f"RowCodec({self.schema.ddl()!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return (RowCodec, (self.schema,))

    def to_arrow(self, rows: Sequence[Row]) -> list[pa.Array]:
        """Return canonical rows as columns, with exactly the types of `schema.arrow`."""
        if not rows:
            return [pa.array([], f.type.arrow) for f in self.schema.fields]
        fields = enumerate(self.schema.fields)
        return [write_column(f.type, list(map(itemgetter(i), rows))) for i, f in fields]

    def from_arrow(
        self, columns: Sequence[pa.Array | pa.ChunkedArray], num_rows: int | None = None
    ) -> list[Row]:
        """Canonical rows out of columns; `from_arrow(to_arrow(rows)) == rows`.

        `num_rows` is needed only for a schema without columns. Raises InvalidArgument naming the
        column when it holds a value no Python object can (nanoseconds).
        """
        if not columns:
            return [()] * (num_rows or 0)
        cells = [
            self._read(name, kind, column)
            for name, kind, column in zip(
                self.schema.names, self.schema.struct.children(), columns, strict=True
            )
        ]
        return list(zip(*cells, strict=True))

    def _read(self, name: str, kind: Any, column: pa.Array) -> list[Any]:
        try:
            return read_column(kind, column)
        except (UnrepresentableValue, OverflowError, ValueError):
            pass  # some moments are outside Python's range: cell by cell, which is slower
        try:
            return read_column(kind, column, far=True)
        except UnrepresentableValue as error:
            raise errors.InvalidArgument(f"column {quote_name(name)} holds {error}") from None

    def _encode_slowly(self, row: Any) -> Row:
        if type(row) is not tuple and isinstance(row, (tuple, list)):
            return self.encode(tuple(row))
        cells = self._cells_of(row)
        encoded = []
        for name, convert, cell in zip(self.schema.names, self._converts, cells, strict=True):
            try:
                encoded.append(convert(cell))
            except _cells.BadCell as error:
                raise errors.InvalidArgument(f"column {quote_name(name)}: {error}") from None
        return tuple(encoded)

    def _cells_of(self, row: Any) -> Sequence[Any]:
        names = self.schema.names
        if not isinstance(row, (tuple, list)):
            if isinstance(row, Mapping):
                return self._cells_by_name(row)
            raise errors.InvalidArgument(
                f"a row of ({self.schema.ddl()}) is a tuple, list or dict, "
                f"not {'None' if row is None else type(row).__name__}"
            )
        if len(row) != len(names):
            short = len(row) < len(names)
            missing = f"; column {quote_name(names[len(row)])} is missing" if short else ""
            raise errors.InvalidArgument(
                f"the row has {len(row)} cells, ({self.schema.ddl()}) has {len(names)}{missing}"
            )
        return row

    def _cells_by_name(self, row: Mapping[Any, Any]) -> list[Any]:
        for name in self.schema.names:
            if name not in row:
                raise errors.InvalidArgument(f"column {quote_name(name)} is missing in the row")
        if len(row) != len(self.schema):
            raise errors.InvalidArgument(f"the row has names that ({self.schema.ddl()}) lacks")
        return [row[name] for name in self.schema.names]


def _encoder(checks: list[_cells.CellCheck], slowly: Callable[[Any], Row]) -> Callable[[Any], Row]:
    """A fast path for rows that are already canonical; without a loop for one or two columns."""
    if len(checks) == 1:
        return _encode_one(checks[0], slowly)
    if len(checks) == 2:
        return _encode_two(checks[0], checks[1], slowly)
    return _encode_any(checks, slowly)


def _encode_one(check: _cells.CellCheck, slowly: Callable[[Any], Row]) -> Callable[[Any], Row]:
    def encode(row: Any) -> Row:
        if type(row) is tuple and len(row) == 1 and check(row[0]):
            return row
        return slowly(row)

    return encode


def _encode_two(
    first: _cells.CellCheck, second: _cells.CellCheck, slowly: Callable[[Any], Row]
) -> Callable[[Any], Row]:
    def encode(row: Any) -> Row:
        if type(row) is tuple and len(row) == 2 and first(row[0]) and second(row[1]):
            return row
        return slowly(row)

    return encode


def _encode_any(
    checks: list[_cells.CellCheck], slowly: Callable[[Any], Row]
) -> Callable[[Any], Row]:
    size = len(checks)

    def encode(row: Any) -> Row:
        if type(row) is tuple and len(row) == size:
            for check, cell in zip(checks, row):  # noqa: B905 - lengths are equal, and this is hot
                if not check(cell):
                    return slowly(row)
            return row
        return slowly(row)

    return encode


def _identity(row: Row) -> Row:
    return row


def _freezing(freezers: list[_cells.CellConverter | None]) -> Callable[[Row], Row]:
    def hashable(row: Row) -> Row:
        pairs = zip(freezers, row, strict=True)
        return tuple([cell if freeze is None else freeze(cell) for freeze, cell in pairs])

    return hashable
