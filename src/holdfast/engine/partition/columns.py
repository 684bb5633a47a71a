"""Compares and gathers Arrow columns by bit pattern and validity, never by value.

Keys are equal when their bits and null flags are: so NaN equals itself, and a nullable integer is
never converted to a float, which would merge large numbers. `canonical_column` first gives equal
floats equal bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.engine.arrays import Index, Mask
from holdfast.types import MOST_COLUMN_BYTES

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def words(array: pa.Array) -> list[npt.NDArray[Any]] | None:
    """The data of a fixed-width column as unsigned words, or None for other types.

    The words of nulls are undefined.
    """
    kind = array.type
    if pa.types.is_boolean(kind):
        bits = np.unpackbits(_bytes(array.buffers()[1]), bitorder="little")
        return [bits[array.offset : array.offset + len(array)]]
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        return None
    try:
        width = kind.bit_width // 8
    except ValueError:
        return None
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return None
    data = _bytes(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]
    if width in _WORDS:
        return [data.view(_WORDS[width])]
    halves = data.view(np.uint64).reshape(len(array), width // 8)
    return [halves[:, i] for i in range(halves.shape[1])]


def valid_mask(array: pa.Array) -> Mask | None:
    """True where the cell is not null; None when no cell is."""
    if array.null_count == 0:
        return None
    if pa.types.is_null(array.type):
        return np.zeros(len(array), bool)
    bits = np.unpackbits(_bytes(array.buffers()[0]), bitorder="little")
    return cast(Mask, bits[array.offset : array.offset + len(array)].view(np.bool_))


def equal(left: pa.Array, right: pa.Array) -> Mask:
    """Row by row, whether two columns of one type and length have the same bits and nulls."""
    left_valid, right_valid = valid_mask(left), valid_mask(right)
    same = _equal_data(left, right)
    if left_valid is None and right_valid is None:
        return same
    left_mask = np.ones(len(left), bool) if left_valid is None else left_valid
    right_mask = np.ones(len(right), bool) if right_valid is None else right_valid
    return cast(Mask, (left_mask == right_mask) & (same | ~left_mask))


def _equal_data(left: pa.Array, right: pa.Array) -> Mask:
    left_words, right_words = words(left), words(right)
    if left_words is not None and right_words is not None:
        same = left_words[0] == right_words[0]
        for a, b in zip(left_words[1:], right_words[1:], strict=True):
            same &= a == b
        return cast(Mask, same)
    if pa.types.is_struct(left.type):
        same = np.ones(len(left), bool)
        for a, b in zip(left.flatten(), right.flatten(), strict=True):
            same &= equal(a, b)
        return same
    if pa.types.is_list(left.type):
        return _equal_lists(left, right)
    if pa.types.is_null(left.type):
        return np.ones(len(left), bool)
    compared = pc.fill_null(pc.equal(left, right), False)
    return cast(Mask, compared.to_numpy(zero_copy_only=False))


def _equal_lists(left: pa.Array, right: pa.Array) -> Mask:
    left_size = pc.fill_null(pc.list_value_length(left), -1).to_numpy(zero_copy_only=False)
    right_size = pc.fill_null(pc.list_value_length(right), -1).to_numpy(zero_copy_only=False)
    same = (left_size == right_size) & (left_size >= 0)
    rows = np.flatnonzero(same)
    if len(rows):
        chosen = pa.array(rows)
        cells = equal(left.take(chosen).flatten(), right.take(chosen).flatten())
        wrong = np.concatenate([[0], np.cumsum(~cells)])
        ends = np.cumsum(left_size[rows])
        same[rows] = wrong[ends] == wrong[ends - left_size[rows]]
    return cast(Mask, same)


def canonical_column(array: pa.Array) -> pa.Array:
    """The column with one NaN and no negative zero, at every depth."""
    kind = array.type
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return _canonical_floats(array)
    if not _has_floats(kind):
        return array
    if pa.types.is_struct(kind):
        valid = valid_mask(array)
        children = [canonical_column(child) for child in array.flatten()]
        mask = None if valid is None else pa.array(~valid)
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    valid = valid_mask(array)
    return pa.ListArray.from_arrays(
        pa.array(offsets),
        canonical_column(array.flatten()),
        type=kind,
        mask=None if valid is None else pa.array(~valid),
    )


def _canonical_floats(array: pa.Array) -> pa.Array:
    width = array.type.bit_width // 8
    data = _bytes(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]
    floats = data.view(np.float32 if width == 4 else np.float64)
    odd = np.isnan(floats) | (floats == 0)
    if not odd.any():
        return array
    fixed = floats + 0  # -0.0 + 0 is 0.0
    fixed[np.isnan(fixed)] = np.nan
    valid = valid_mask(array)
    return pa.array(fixed, array.type, mask=None if valid is None else ~valid, from_pandas=False)


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_floating(kind):
        return True
    return any(_has_floats(kind.field(i).type) for i in range(kind.num_fields))


def take(array: pa.Array, rows: Index) -> pa.Array:
    """The cells at `rows`, all of which exist."""
    views = words(array) if array.null_count == 0 else None
    if views is None or len(views) != 1 or pa.types.is_boolean(array.type):
        return array.take(pa.array(rows))
    picked = np.take(views[0], rows)
    return pa.Array.from_buffers(array.type, len(rows), [None, pa.py_buffer(picked)])


def gather(parts: Sequence[tuple[pa.Array, Index, Index]], kind: pa.DataType, n: int) -> pa.Array:
    """A column of `n` cells: cell `to[i]` is `source[at[i]]` for each (source, at, to); else null.

    Requires: no cell of the new column is named twice. Raises pyarrow.ArrowCapacityError or
    ArrowInvalid when the cells are more than one column holds.
    """
    scattered = _scatter(parts, kind, n)
    if scattered is not None:
        return scattered
    order = np.full(n, -1, np.int64)
    start = 0
    taken = []
    for source, at, to in parts:
        taken.append(source.take(pa.array(at)))
        order[to] = np.arange(start, start + len(at))
        start += len(at)
    if not taken:
        return pa.nulls(n, kind)
    if sum(array.nbytes for array in taken) > MOST_COLUMN_BYTES:
        raise pa.ArrowCapacityError("the cells are more than one column holds")
    joined = pa.concat_arrays(taken)
    return joined.take(pa.array(order, mask=order < 0))


def _scatter(
    parts: Sequence[tuple[pa.Array, Index, Index]], kind: pa.DataType, n: int
) -> pa.Array | None:
    if not parts or pa.types.is_boolean(kind):
        return None
    if any(source.null_count for source, _, _ in parts):
        return None
    first = words(parts[0][0])
    if first is None or len(first) != 1:
        return None
    out = np.zeros(n, first[0].dtype)
    filled = 0
    for source, at, to in parts:
        views = words(source)
        assert views is not None
        out[to] = views[0].take(at)
        filled += len(at)
    bitmap = None
    if filled < n:
        found = np.zeros(n, bool)
        for _, _, to in parts:
            found[to] = True
        bitmap = pa.py_buffer(np.packbits(found, bitorder="little"))
    return pa.Array.from_buffers(kind, n, [bitmap, pa.py_buffer(out)])


def _bytes(buffer: pa.Buffer | None) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"" if buffer is None else buffer, np.uint8)
