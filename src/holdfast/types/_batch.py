"""Takes columns from callers' tables: by name, checked, and converted to the schema's types.

A batch is held to what rows are held to: a cast may change how a value is stored, never what it
means.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidArgument
from holdfast.types._datatypes import (
    ArrayType,
    AtomicType,
    DataType,
    Field,
    MapType,
    StringType,
    StructType,
)
from holdfast.types._schema import Schema

MOST_COLUMN_BYTES = (1 << 31) - 1
"""The most bytes of a column of strings, binaries or lists, whose offsets have 32 bits."""

_is = pa.types
_TEXT = (_is.is_string, _is.is_large_string, _is.is_string_view)
_BYTES = (_is.is_binary, _is.is_large_binary, _is.is_binary_view, _is.is_fixed_size_binary)
_LISTS = (_is.is_list, _is.is_large_list, _is.is_fixed_size_list)
_SAME_KIND = (
    _TEXT, _BYTES, (_is.is_integer,), (_is.is_floating,), (_is.is_decimal,), (_is.is_date,),
    (_is.is_time,), (_is.is_duration,),
)  # fmt: skip


def as_table(batch: Any) -> pa.Table:
    """Return a batch as a table.

    Raises InvalidArgument for other objects, and for a table with two columns of one name.
    """
    if isinstance(batch, pa.RecordBatch):
        batch = pa.Table.from_batches([batch])
    if not isinstance(batch, pa.Table):
        given = "None" if batch is None else type(batch).__name__
        raise InvalidArgument(f"A batch is a pyarrow.Table, not {given}.")
    names = batch.column_names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgument(f"The table has several columns {twice!r}. Rename or drop them.")
    return batch


def columns_of(table: pa.Table, schema: Schema) -> list[pa.Array]:
    """Return the columns of a schema from a table, each in one piece and of the schema's type.

    Raises InvalidArgument when a column is missing, has a type with another meaning, or has cells
    that do not fit. The message names the column, and never a cell.
    """
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            raise InvalidArgument(
                f"The table has no column {field.name!r}. Its columns are {table.column_names}."
            )
        column = _converted(one_array(_fitting(table.column(field.name), field.name)), field)
        if why := _refusal(column, field.type, field.nullable):
            raise InvalidArgument(f"The column {field.name!r} {why}.")
        columns.append(column)
    return columns


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The column in one piece, copied only when it is in several."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def parts_of(table: pa.Table) -> Iterator[pa.Table]:
    """The table in parts, in order, so that no column is too large for one piece."""
    if table.num_rows > 1 and any(_is_too_large(column) for column in table.columns):
        middle = table.num_rows // 2
        yield from parts_of(table.slice(0, middle))
        yield from parts_of(table.slice(middle))
    else:
        yield table


def _fitting(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    if _is_too_large(column):
        raise InvalidArgument(
            f"The column {name!r} has {column.nbytes} bytes in one batch; the limit is "
            f"{MOST_COLUMN_BYTES}. Split the batch."
        )
    return column


def _is_too_large(column: pa.ChunkedArray) -> bool:
    return column.nbytes > MOST_COLUMN_BYTES and _has_offsets(column.type)


def _has_offsets(kind: pa.DataType) -> bool:
    if _is.is_nested(kind):
        return not _is.is_struct(kind) or any(_has_offsets(part.type) for part in kind)
    return _is_one(kind, (*_TEXT, *_BYTES))


def _converted(column: pa.Array, field: Field) -> pa.Array:
    given, wanted = column.type, field.type.arrow
    if given == wanted:
        return column
    if _is.is_null(given):
        return pa.nulls(len(column), wanted)
    what = f"The column {field.name!r} is {given}, not {wanted}"
    if not _means_the_same(given, wanted):
        if _is.is_timestamp(given) and _is.is_timestamp(wanted):
            what += "; give the times a time zone" if given.tz is None else "; it has a time zone"
        raise InvalidArgument(f"{what}. Convert it to {field.type} first.")
    try:
        converted = column.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidArgument(f"{what}, and some of it cannot be converted.") from error
    if _is.is_float32(wanted) and not pc.is_inf(column).equals(pc.is_inf(converted)):
        raise InvalidArgument(f"{what}, and some of it is out of range.")
    return converted


def _means_the_same(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a safe cast between the types gives the same values or fails."""
    if _is.is_null(given) or given == wanted:
        return True
    if _is.is_dictionary(given):
        return _means_the_same(given.value_type, wanted)
    if _is.is_timestamp(given) and _is.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    if _is.is_integer(given) and (_is.is_floating(wanted) or _is.is_decimal(wanted)):
        return True
    if any(_is_one(given, kinds) and _is_one(wanted, kinds) for kinds in _SAME_KIND):
        return True
    both_lists = _is_one(given, _LISTS) and _is_one(wanted, _LISTS)
    if both_lists or (_is.is_map(given) and _is.is_map(wanted)):
        return _parts_mean_the_same(given, wanted)
    if _is.is_struct(given) and _is.is_struct(wanted):
        same_names = [f.name for f in given] == [f.name for f in wanted]
        return same_names and _parts_mean_the_same(given, wanted)
    return False


def _is_one(kind: pa.DataType, tests: tuple[Any, ...]) -> bool:
    return any(test(kind) for test in tests)


def _parts_mean_the_same(given: pa.DataType, wanted: pa.DataType) -> bool:
    parts = range(wanted.num_fields)
    return all(_means_the_same(given.field(i).type, wanted.field(i).type) for i in parts)


def _refusal(column: pa.Array, kind: DataType, nullable: bool) -> str | None:
    """Why cells at any depth do not fit, None when all do."""
    if not nullable and column.null_count and kind != AtomicType("void"):
        return "may not be null"
    if isinstance(kind, StringType) and kind.kind != "string":
        longest = pc.max(pc.utf8_length(column)).as_py()
        return f"takes {kind}, and a text is longer" if (longest or 0) > kind.length else None
    for part, inner, may_be_null in _parts(column, kind):
        if why := _refusal(part, inner, may_be_null):
            return f"has a part that {why}"
    return None


def _parts(column: pa.Array, kind: DataType) -> Iterator[tuple[pa.Array, DataType, bool]]:
    if isinstance(kind, StructType):
        present = column.drop_null() if column.null_count else column
        for field, part in zip(kind.fields, present.flatten(), strict=True):
            yield part, field.type, field.nullable
    elif isinstance(kind, ArrayType):
        yield column.flatten(), kind.element, kind.contains_null
    elif isinstance(kind, MapType) and len(column):
        start, stop = (column.offsets[i].as_py() for i in (0, -1))
        yield column.keys.slice(start, stop - start), kind.key, False
        yield column.items.slice(start, stop - start), kind.value, kind.value_contains_null
