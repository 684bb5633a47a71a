"""Reads single rows of Arrow columns without building an Arrow scalar for each cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.engine.partition.columns import valid_mask, words
from holdfast.types import RowCodec

RowReader = Callable[[int], tuple[Any, ...]]
_PLAIN = {
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
    pa.bool_(): np.bool_,
}


def row_reader(codec: RowCodec, columns: Sequence[pa.Array]) -> RowReader:
    """Return a function from a row number to that row, as `codec.from_arrow` would give it."""
    readers = [_cell_reader(column) for column in columns]
    if any(reader is None for reader in readers):
        return lambda row: codec.from_arrow([column.slice(row, 1) for column in columns])[0]
    if len(readers) == 1 and readers[0] is not None:
        only = readers[0]
        return lambda row: (only(row),)
    return lambda row: tuple([reader(row) for reader in readers])  # type: ignore[misc]


def _cell_reader(column: pa.Array) -> Callable[[int], Any] | None:
    reader = _cell_reader_of_data(column)
    valid = valid_mask(column)
    if reader is None or valid is None:
        return reader
    flags, read = valid.data, reader
    return lambda row: read(row) if flags[row] else None


def _cell_reader_of_data(column: pa.Array) -> Callable[[int], Any] | None:
    kind = column.type
    if kind in _PLAIN:
        views = words(column)
        assert views is not None
        return views[0].view(_PLAIN[kind]).data.__getitem__
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _bytes_reader(column, pa.types.is_string(kind))
    return None


def _bytes_reader(column: pa.Array, text: bool) -> Callable[[int], Any]:
    _, offset_buffer, data_buffer = column.buffers()
    numbers = np.frombuffer(offset_buffer, np.int32)
    offsets = numbers[column.offset : column.offset + len(column) + 1].data
    data = memoryview(b"" if data_buffer is None else data_buffer)
    if text:
        return lambda row: str(data[offsets[row] : offsets[row + 1]], "utf-8")
    return lambda row: bytes(data[offsets[row] : offsets[row + 1]])
