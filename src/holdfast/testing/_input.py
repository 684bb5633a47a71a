"""What a test pushes, as a table: rows, DataFrames and Arrow tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidArgument
from holdfast.streams.processors.pandas import PandasFrames
from holdfast.types import AtomicType, RowCodec, Schema, columns_of

_TIMESTAMP = AtomicType("timestamp")

InputRows = Iterable[Mapping[str, Any] | Sequence[Any]] | Any
"""Tuples, dicts or Rows; or all of them as a DataFrame or an Arrow table."""


def input_table(rows: InputRows, schema: Schema, zone: str) -> pa.Table:
    """Rows as a table of a schema; naive timestamps are of the zone.

    Tuples are matched by position, dicts by name, and so are Rows that have the schema's names.
    """
    if isinstance(rows, pa.Table):
        return pa.table(columns_of(rows, schema), schema=schema.arrow)
    if hasattr(rows, "itertuples"):
        return _of_frame(rows, schema, zone)
    codec, names = RowCodec(schema), set(schema.names)
    timed = [place for place, field in enumerate(schema) if field.type == _TIMESTAMP]
    own = pa.lib.string_to_tzinfo(zone)
    columns = codec.to_arrow(
        [codec.encode(_with_zone(_by_name(row, names), schema, timed, own)) for row in rows]
    )
    return pa.Table.from_arrays(columns, schema=schema.arrow)


def _by_name(row: Any, names: set[str]) -> Any:
    fields = getattr(row, "__fields__", None)
    if fields is None or len(fields) != len(row) or set(fields) != names:
        return row
    return dict(zip(fields, row, strict=True))


def _with_zone(row: Any, schema: Schema, timed: list[int], zone: tzinfo) -> Any:
    """A row whose naive timestamps are of a zone."""
    if not timed or not isinstance(row, (tuple, list, dict)):
        return row
    cells: Any = dict(row) if isinstance(row, dict) else list(row)
    for place in timed:
        at: Any = schema.names[place] if isinstance(row, dict) else place
        cell = cells.get(at) if isinstance(row, dict) else (cells[at : at + 1] or [None])[0]
        if isinstance(cell, datetime) and cell.tzinfo is None:
            cells[at] = cell.replace(tzinfo=zone)
    return cells


def _of_frame(frame: Any, schema: Schema, zone: str) -> pa.Table:
    missing = [name for name in schema.names if name not in frame.columns]
    if missing:
        raise InvalidArgument(
            f"The DataFrame has no column {missing[0]!r}. Its columns are {list(frame.columns)}."
        )
    tables = PandasFrames((), schema, zone).tables(iter([frame[list(schema.names)]]))
    return pa.concat_tables([schema.arrow.empty_table(), *tables])
