"""The hash of a key: Spark SQL's own `hash` and `xxhash64`, computed without Spark.

The hash belongs to the file format. For key columns k1…kn, of which the first r route,

    mask  = the sum of 2^(i-1) over the columns ki that are null
    _hash = hash(k1, …, kr) << 32  |  xxhash64(k1, …, kn, mask) & 0xFFFFFFFF

with Spark's functions and their seed 42, where `mask` is a BIGINT. Spark's hashes skip nulls, so it
is the mask that tells (NULL, 'k') from ('k', NULL).

Why Spark's functions: Spark sends a row to a partition by `hash` of its key, so the state of the
key has to be in that partition as well, and the top half says which one. In a query Spark SQL
computes the hash in the JVM (`spark_sql_hash` is the formula as SQL text). A store without Spark,
the command line and the tests must get the same numbers, so the functions are rebuilt here.

Why two halves: 32 bits alone would collide often in a large state, and the low half covers all key
columns. In a store with prefix keys only the prefix routes, so the rows of a prefix share their top
half and are neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast import errors
from holdfast.engine.arrays import Hashes
from holdfast.engine.hashing import xxh64
from holdfast.engine.hashing.leaves import Leaf, LongLeaf, Scratch, leaves, validity
from holdfast.engine.hashing.rows import row_hasher
from holdfast.types import Row, RowCodec, Schema

HASH_NAME = "spark-murmur3-xxhash64-42"
"""How manifests name this hash."""

MAX_KEY_COLUMNS = 64
SEED = 42

_BLOCK = 32_768


def murmur3(columns: Sequence[pa.Array]) -> npt.NDArray[np.int32]:
    """Spark's `hash(columns…)`, row by row. Needs at least one column."""
    found = np.full(_length(columns), SEED, np.uint32)
    parts = [leaf for column in columns for leaf in leaves(column)]
    for rows, scratch in _blocks(len(found)):
        for leaf in parts:
            leaf.fold32(found[rows], rows, scratch)
    return found.view(np.int32)


def xxhash64(columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """Spark's `xxhash64(columns…)`, row by row. Needs at least one column."""
    found = np.full(_length(columns), SEED, np.uint64)
    parts = [leaf for column in columns for leaf in leaves(column)]
    for rows, scratch in _blocks(len(found)):
        for leaf in parts:
            leaf.fold64(found[rows], rows, scratch)
    return found.view(np.int64)


def key_hashes(
    columns: Sequence[pa.Array], num_routing: int, num_rows: int | None = None
) -> Hashes:
    """The `_hash` of every key, by the formula at the top of this module.

    `columns` are all key columns, of which the first `num_routing` route. `num_rows` is needed
    only for keys without columns. Raises InvalidArgument for more than 64 columns.
    """
    _check_columns(len(columns), num_routing)
    size = _length(columns) if columns else (num_rows or 0)
    parts = [leaves(column) for column in columns]
    routing = [leaf for some in parts[:num_routing] for leaf in some]
    every = [leaf for some in parts for leaf in some]
    mask = _null_mask(columns)
    found = np.empty(size, np.int64)
    # Both halves are written in place, as little-endian words: a shift and an `or` would need the
    # low half masked first, whose sign would otherwise fill the top half.
    halves = found.view(np.uint32)
    for rows, scratch in _blocks(size):
        top = np.full(rows.stop - rows.start, SEED, np.uint32)
        for leaf in routing:
            leaf.fold32(top, rows, scratch)
        halves[2 * rows.start + 1 : 2 * rows.stop : 2] = top
        low = _low_half(every, mask, rows, scratch)
        halves[2 * rows.start : 2 * rows.stop : 2] = low.view(np.uint32)[0::2]
    return found


def partition_of(hashes: Hashes, n: int) -> npt.NDArray[np.int32]:
    """The partition of each hash among `n`: Spark's `pmod(hash(routing columns), n)`.

    The shift keeps the sign, so it gives back Spark's signed hash; numpy's `mod`, like `pmod`, is
    never negative.
    """
    found: npt.NDArray[np.int32] = np.mod(hashes >> 32, n).astype(np.int32)
    return found


def spark_sql_hash(names: Sequence[str], num_routing: int) -> str:
    """SQL text that computes `key_hashes` of the named columns in Spark, as a BIGINT."""
    _check_columns(len(names), num_routing)
    columns = ["`" + name.replace("`", "``") + "`" for name in names]
    bits = [f"if(isnull({c}), shiftleft(1L, {i}), 0L)" for i, c in enumerate(columns)]
    mask = " | ".join(bits) or "0L"
    # hash() takes no empty argument list; hashing nothing gives the seed.
    top = f"hash({', '.join(columns[:num_routing])})" if num_routing else str(SEED)
    low = f"xxhash64({', '.join([*columns, mask])})"
    return f"(shiftleft(cast({top} as bigint), 32) | ({low} & 4294967295L))"


class KeyHasher:
    """Hashes keys of one schema, one at a time or by columns, with the same result.

    Raises InvalidArgument when the schema cannot be a key. Threads may share it.
    """

    def __init__(self, schema: Schema, num_routing: int) -> None:
        schema.check_key()
        _check_columns(len(schema), num_routing)
        self.schema = schema
        self.num_routing = num_routing
        self._codec = RowCodec(schema)
        self.hash_row = row_hasher(schema, num_routing) or self._hash_row_slowly

    def __reduce__(self) -> tuple[object, ...]:
        return (KeyHasher, (self.schema, self.num_routing))

    def hash_columns(self, columns: Sequence[pa.Array], num_rows: int | None = None) -> Hashes:
        """`key_hashes` of the key columns."""
        return key_hashes(columns, self.num_routing, num_rows)

    def _hash_row_slowly(self, row: Row) -> int:
        return int(self.hash_columns(self._codec.to_arrow([row]), 1)[0])


def _check_columns(count: int, num_routing: int) -> None:
    if count > MAX_KEY_COLUMNS:
        raise errors.InvalidArgument(
            f"a key has at most {MAX_KEY_COLUMNS} columns, not {count}",
            condition="STATE_STORE_INVALID_SCHEMA",
        )
    if not 0 <= num_routing <= count:
        raise errors.InvalidArgument(f"{num_routing} routing columns of {count} key columns")


def _length(columns: Sequence[pa.Array]) -> int:
    if not columns:
        raise errors.InvalidArgument("hashing needs at least one column")
    return len(columns[0])


def _blocks(size: int) -> Any:
    """Slices small enough for the processor's cache, and one scratch for all of them."""
    scratch = Scratch(min(size, _BLOCK))
    for start in range(0, size, _BLOCK):
        yield slice(start, min(start + _BLOCK, size)), scratch


def _null_mask(columns: Sequence[pa.Array]) -> LongLeaf | None:
    """The mask as a column, or None when it is zero in every row."""
    mask: npt.NDArray[np.uint64] | None = None
    for number, column in enumerate(columns):
        valid = validity(column)
        if valid is None:
            continue
        if mask is None:
            mask = np.zeros(len(column), np.uint64)
        mask |= (~valid).astype(np.uint64) << np.uint64(number)
    return None if mask is None else LongLeaf(mask, None)


def _low_half(
    every: list[Leaf], mask: LongLeaf | None, rows: slice, scratch: Scratch
) -> npt.NDArray[np.uint64]:
    found = np.full(rows.stop - rows.start, SEED, np.uint64)
    for leaf in every:
        leaf.fold64(found, rows, scratch)
    if mask is None:
        xxh64.fold_zeros(found, scratch.xxh64)
    else:
        mask.fold64(found, rows, scratch)
    return found
