"""Older versions in the columns of the newest: what a version did not hold yet is null."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from holdfast.reserved import FOUND
from holdfast.store import Row
from holdfast.types import Schema


def fit_columns(
    columns: Sequence[pa.Array], stored: Schema, wanted: Schema, rows: int
) -> list[pa.Array]:
    """Value columns of one schema as those of another, by name."""
    if stored == wanted:
        return list(columns)
    by_name = dict(zip(stored.names, columns, strict=True))
    return [
        by_name[field.name].cast(field.type)
        if field.name in by_name
        else pa.nulls(rows, field.type)
        for field in wanted.arrow
    ]


def fit_table(table: pa.Table, keys: Schema, stored: Schema, wanted: Schema) -> pa.Table:
    """A table of key and value columns with other value columns."""
    if stored == wanted:
        return table
    values = [table.column(name) for name in stored.names]
    fitted = fit_columns(values, stored, wanted, table.num_rows)
    columns = [*(table.column(name) for name in keys.names), *fitted]
    return pa.table(columns, schema=pa.schema([*keys.arrow, *wanted.arrow]))


def fit_found(table: pa.Table, keys: Schema, stored: Schema, wanted: Schema) -> pa.Table:
    """The outcome of `get_many` with other value columns."""
    if stored == wanted:
        return table
    values = [table.column(name) for name in stored.names]
    columns = [*(table.column(name) for name in keys.names)]
    columns += fit_columns(values, stored, wanted, table.num_rows)
    fields = [*keys.arrow, *(field.with_nullable(True) for field in wanted.arrow)]
    found = table.schema.field(FOUND)
    return pa.table([*columns, table.column(FOUND)], schema=pa.schema([*fields, found]))


def fit_row(row: Row | None, stored: Schema, wanted: Schema) -> Row | None:
    """A value with other columns."""
    if row is None or stored == wanted:
        return row
    by_name = dict(zip(stored.names, row, strict=True))
    return tuple(by_name.get(name) for name in wanted.names)
