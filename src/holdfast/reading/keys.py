"""Keys and parts of keys as people give them: tuples, dicts by column name, or plain cells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidArgument
from holdfast.types import ArrayType, Field, RowCodec, Schema, StructType, far_number


def row_of(key: Any, codec: RowCodec) -> Any:
    """A key as a row: a cell on its own is one where the key has one column."""
    fields = codec.schema.fields
    if len(fields) != 1 or key is None or isinstance(key, (tuple, Mapping)):
        return key
    if not isinstance(key, list):
        return (key,)
    return (key,) if isinstance(fields[0].type, ArrayType) and not _is_row(key, codec) else key


def cells_of_key(part: Any, keys: Schema, prefix: int) -> dict[str, Any]:
    """Canonical cells of some columns of a key, by name.

    A dict names its columns; a tuple has the first ones. A plain cell is that of the first column.
    `prefix` is how many columns the store's own prefix has. Raises InvalidArgument where the part
    does not fit.
    """
    if isinstance(part, Mapping):
        fields = tuple(field for field in keys.fields if field.name in part)
        if not fields or len(fields) != len(part):
            raise InvalidArgument(f"A part of a key has some of the columns ({keys.ddl()}).")
        part = tuple(part[field.name] for field in fields)
    else:
        first = keys.fields[: prefix or 1]
        row = row_of(part, RowCodec(Schema(StructType(first))))
        part = tuple(row) if isinstance(row, (tuple, list)) else (row,)
        fields = keys.fields[: len(part)]
    if not part or len(part) > len(fields):
        raise InvalidArgument(
            f"A part of a key has the first columns of ({keys.ddl()}), not {len(part)} cells."
        )
    encoded = RowCodec(Schema(StructType(fields))).encode(part)
    return {field.name: cell for field, cell in zip(fields, encoded, strict=True)}


def equal_cells(cells: Mapping[str, Any], keys: Schema) -> pc.Expression | None:
    """A filter for the rows that have these cells; None where there are none.

    Raises InvalidArgument for a column whose cells Arrow cannot compare.
    """
    found = None
    for field in keys.fields:
        if field.name in cells:
            test = _equal(field, cells[field.name])
            found = test if found is None else found & test
    return found


def _equal(field: Field, cell: Any) -> Any:
    column, kind = pc.field(field.name), field.type.arrow
    if cell is None:
        return column.is_null()
    if pa.types.is_nested(kind):
        raise InvalidArgument(
            f"Keys cannot be found by the column {field.name!r} alone, which is of type "
            f"{field.type}: give the whole key."
        )
    if isinstance(cell, float) and math.isnan(cell):
        return pc.is_nan(column)
    return column == pa.scalar(far_number(cell) if isinstance(cell, np.datetime64) else cell, kind)


def _is_row(key: list[Any], codec: RowCodec) -> bool:
    """Whether a list is a row with an array in it, and cannot be that array itself."""
    try:
        codec.encode((key,))
    except InvalidArgument:
        return len(key) == 1
    return False
