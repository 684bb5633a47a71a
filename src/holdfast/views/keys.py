"""Writes keys that a database cannot hold as text.

    ["Sankar",null]

The text is a JSON array with one cell for each key column, without spaces, so that any service can
compute it. docs/views.md says how each type is written.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.engine.arrays import Mask
from holdfast.types import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    IntervalType,
    Schema,
    StringType,
    StructType,
    TimeType,
    one_array,
)
from holdfast.views.cells import plain_cells

MOST_KEY_BYTES = 1024
"""The most bytes of a key cell that stays as it is, and of a key's text before it is hashed."""
CellChange = Callable[[Any], Any]
_PLAIN = ("byte", "short", "integer", "long", "boolean", "timestamp", "timestamp_ntz", "interval")
_IN_COLUMNS = (
    "byte", "short", "integer", "long", "float", "double", "binary", "date", "timestamp",
    "timestamp_ntz",
)  # fmt: skip


def key_texts(schema: Schema, columns: Sequence[pa.Array | pa.ChunkedArray]) -> list[str]:
    """The text of each key in these key columns."""
    parts = []
    for field, column in zip(schema, columns, strict=True):
        change = _changer(field.type)
        cells = plain_cells(field.type, column)
        parts.append(cells if change is None else [change(cell) for cell in cells])
    return [_text(cells) for cells in zip(*parts, strict=True)]


def _text(cells: Sequence[Any]) -> str:
    text = json.dumps(cells, ensure_ascii=False, separators=(",", ":"))
    raw = text.encode()
    return text if len(raw) <= MOST_KEY_BYTES else f"sha256:{hashlib.sha256(raw).hexdigest()}"


def _changer(kind: DataType) -> CellChange | None:
    """A function that converts a plain cell for JSON; None where none is needed."""
    found = _change(kind)
    return None if found is None else lambda cell: None if cell is None else found(cell)


def _change(kind: DataType) -> CellChange | None:
    if isinstance(kind, ArrayType):
        element = _changer(kind.element)
        return None if element is None else lambda cell: [element(part) for part in cell]
    if isinstance(kind, StructType):
        parts = [_changer(part) or _same for part in kind.children()]
        return lambda cell: [change(part) for change, part in zip(parts, cell, strict=True)]
    if isinstance(kind, DecimalType):
        return lambda cell: format(cell, "f")
    if isinstance(kind, AtomicType) and kind.name not in _PLAIN:
        return {"float": _float_bits, "double": _double_bits, "date": iso_date}.get(
            kind.name, bytes.hex
        )
    return None


def _same(cell: Any) -> Any:
    return cell


def _float_bits(cell: float) -> str:
    return struct.pack(">f", cell).hex()


def _double_bits(cell: float) -> str:
    return struct.pack(">d", cell).hex()


def iso_date(days: int) -> str:
    """A date as ISO 8601 writes it: 2026-01-31. Years have at least four digits."""
    return str(np.datetime64(days, "D"))


# -- which keys need no text -----------------------------------------------------------------------


def fits_in_columns(kind: DataType, *, booleans: bool) -> bool:
    """Whether a key column of this type can be part of a primary key, except for some odd cells.

    `booleans` is whether the database allows booleans there.
    """
    if isinstance(kind, AtomicType):
        return kind.name in _IN_COLUMNS or (booleans and kind.name == "boolean")
    return isinstance(kind, StringType | DecimalType | IntervalType | TimeType)


def odd_keys(columns: Sequence[pa.Array | pa.ChunkedArray], numbers: Sequence[float]) -> Mask:
    """Which keys have a cell that no primary key can hold.

    These are null, NaN and infinity, floats whose absolute value is outside `numbers` (the smallest
    and the largest that the database holds), and text or bytes that are empty or very long.
    """
    odd: Mask = np.zeros(len(columns[0]) if columns else 0, bool)
    for column in map(one_array, columns):
        odd |= pc.is_null(column).to_numpy(zero_copy_only=False)
        kind = column.type
        if pa.types.is_floating(kind):
            cells = np.abs(column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64))
            odd |= ~((cells == 0) | ((cells >= numbers[0]) & (cells <= numbers[1])))
        elif pa.types.is_string(kind) or pa.types.is_binary(kind):
            sizes = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
            odd |= (sizes == 0) | (sizes > MOST_KEY_BYTES)
    return odd
