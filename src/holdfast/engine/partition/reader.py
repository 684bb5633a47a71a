"""One partition of a store at one version, for reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.engine.arrays import Hashes, Index, Mask
from holdfast.engine.files.blocks import BadSegment
from holdfast.engine.hashing.spark_hash import KeyHasher
from holdfast.engine.partition.bounds import Bounds, IndexRange
from holdfast.engine.partition.chain import Chain
from holdfast.engine.partition.columns import canonical_column, equal
from holdfast.engine.partition.rows import NEVER, Rows
from holdfast.engine.partition.shape import StoreShape
from holdfast.engine.partition.stack import SegmentStack
from holdfast.errors import InvalidArgument, Unavailable
from holdfast.reserved import FOUND, HASH
from holdfast.types import as_table, columns_of, one_array


class PartitionReader:
    """One partition at one version, for reading."""

    def __init__(self, shape: StoreShape, chain: Chain) -> None:
        self.shape = shape
        self.chain = chain
        self._bounds = chain.bounds
        self._row_view: SegmentStack | None = None

    @property
    def bounds(self) -> Bounds:
        """The bounds that every read applies."""
        return self._bounds

    def get(self, key: Any, hashed: int | None = None) -> tuple[Any, ...] | None:
        """The value of a key, or None. `hashed` is its hash, where the caller has it already."""
        return self._get(self.shape.keys.encode(key), hashed)

    def _get(self, key: tuple[Any, ...], hashed: int | None) -> tuple[Any, ...] | None:
        shape = self.shape
        wanted = key if shape.keys.plain else shape.keys.hashable(key)
        if hashed is None:
            hashed = shape.hasher.hash_row(key)
        while True:
            view = self._row_view
            if view is None:
                view = self._row_view = self._new_row_view()
            try:
                return view.get_one(hashed, wanted, shape.keys, shape.values)
            except BadSegment as bad:
                self.chain.fall_back(bad)
                self._row_view = None

    def _new_row_view(self) -> SegmentStack:
        return self.chain.run(lambda view: view, self.shape.layout)

    def get_many(self, keys: pa.Table) -> pa.Table:
        """The keys in their order, their values and `_found`."""
        keys = as_table(keys)
        columns = self._key_columns(keys)
        sorted_hashes, sorted_keys, order = self._sorted(keys, columns)
        found, sorted_values = self._find(sorted_hashes, sorted_keys)
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        values = [column.take(pa.array(back)) for column in sorted_values]
        return self._table(columns, values, found[back])

    def expiries(self, keys: pa.Table) -> pa.Array:
        """When each of the keys expires, in ms; null for one that never does, or is not there."""
        keys = as_table(keys)
        sorted_hashes, sorted_keys, order = self._sorted(keys, self._key_columns(keys))

        def work(view: SegmentStack) -> Hashes:
            found = np.full(len(order), NEVER, np.int64)
            for rows, at, to in view.lookup(sorted_hashes, sorted_keys).parts:
                if rows.expires is not None:
                    found[to] = rows.expires[at]
            return found

        expires = np.empty(len(order), np.int64)
        expires[order] = self._read(work)
        return pa.array(expires, mask=expires == NEVER)

    def _sorted(
        self, table: pa.Table, keys: list[pa.Array]
    ) -> tuple[Hashes, list[pa.Array], Index]:
        """Keys in the order of their hashes, with these, and the rows they come from."""
        hashes = self._hashes(table, keys)
        order = np.argsort(hashes)
        at = pa.array(order)
        return hashes[order], [canonical_column(column).take(at) for column in keys], order

    def _find(self, hashes: Hashes, keys: list[pa.Array]) -> tuple[Mask, list[pa.Array]]:
        """Which of the sorted keys exist, and their values.

        Values are gathered inside the read: their blocks are checked when first touched, and the
        chain must fall back when one is damaged.
        """

        def work(view: SegmentStack) -> tuple[Mask, list[pa.Array]]:
            found = view.lookup(hashes, keys)
            try:
                return found.mask(), found.values(self.shape.layout)
            except (pa.ArrowCapacityError, pa.ArrowInvalid) as error:
                raise InvalidArgument(
                    f"The values of these {len(hashes)} keys do not fit in one column (2 GiB). "
                    "Ask for fewer keys at a time."
                ) from error

        found: tuple[Mask, list[pa.Array]] = self._read(work)
        return found

    def _table(self, keys: list[pa.Array], values: list[pa.Array], found: Mask) -> pa.Table:
        fields = [
            *self.shape.layout.keys,
            *(field.with_nullable(True) for field in self.shape.layout.values),
            pa.field(FOUND, pa.bool_(), nullable=False),
        ]
        return pa.table([*keys, *values, pa.array(found)], schema=pa.schema(fields))

    def pieces(self, **limits: Any) -> Iterator[Rows]:
        """The state in hash order, a piece at a time, as of this call."""
        self.chain.usable()
        return self._watched(self._read(lambda view: view.pieces(**limits)))

    def _watched(self, pieces: Iterator[Rows]) -> Iterator[Rows]:
        """The same pieces; a file that becomes damaged in the middle ends them with an error.

        The reader has already got rows, so the read cannot be repeated from another file here.
        """
        try:
            yield from pieces
        except BadSegment as bad:
            self.chain.fall_back(bad)
            raise Unavailable(
                f"{bad.name} changed while version {self.chain.version} was read ({bad.why}). Read "
                "it again: other files have the same data."
            ) from bad

    def tables(self, within: IndexRange | None = None) -> Iterator[pa.Table]:
        """The state as tables of key and value columns, as of this call."""
        for piece in self.pieces(within=within):
            yield rows_table(self.shape, piece)

    def delta_pieces(self) -> Iterator[Rows]:
        """The changes of this version, including tombstones and rows that the bounds hide."""
        newest = self.chain.entry.segments[:1]
        if not newest or not newest[0].low == newest[0].high == self.chain.version:
            return iter(())
        self.chain.usable()
        delta = self.chain.segments()[0]
        return self._watched(delta.chunk(number) for number in range(delta.num_chunks))

    def changed_pieces(self) -> Iterator[tuple[Rows, Mask | None]]:
        """The changes of this version, and which of the rows are in its state; None for all."""
        for piece in self.delta_pieces():
            yield piece, self.chain.bounds.live(piece, slice(None), self.shape.layout)

    def hidden_pieces(self, before: Bounds) -> Iterator[Rows]:
        """Rows that this version's bounds hide and `before`, those of an earlier one, do not.

        Requires: no version between the two has lowered or raised a bound.
        """
        self.chain.usable()
        now = self.chain.bounds
        return self._watched(self._read(lambda view: view.dying_rows(now), before))

    def evicted_pieces(self, above: int | None, upto: int) -> Iterator[Rows]:
        """Rows with an index above `above` and at or below `upto`, hidden by the bound or not."""
        self.chain.usable()
        within = IndexRange(high=upto) if above is None else IndexRange(above + 1, upto)
        before = Bounds(above, self.chain.entry.expire)
        return self._watched(self._read(lambda view: view.pieces(within=within), before))

    def earliest(self, after: int, *, expiry: bool) -> int | None:
        """The lowest index, or expiry, above a number that a row has or had."""
        found: int | None = self._read(lambda view: view.earliest(after, expiry=expiry))
        return found

    def prefix_pieces(self, prefix: Any) -> Iterator[Rows]:
        """The rows whose first key columns equal `prefix`, as of this call."""
        if self.shape.prefix == 0:
            raise InvalidArgument(
                "This store has no prefix keys. Create it with num_cols_prefix_key to scan them."
            )
        routing = self.shape.prefix_shape
        wanted = routing.keys.encode(prefix)
        top = routing.hasher.hash_row(wanted) >> 32 << 32
        columns = [canonical_column(column) for column in routing.keys.to_arrow([wanted])]
        limit = top + (1 << 32)
        high = None if limit > NEVER else limit
        return _starting_with(columns, self.pieces(low=top, high=high))

    def with_prefixes(self, table: pa.Table) -> list[Rows]:
        """The rows of many prefixes, found in one pass; others may be among them.

        `table` has the prefix columns, or in `_hash` the hashes of rows with these prefixes.
        """
        if self.shape.prefix == 0:
            raise InvalidArgument(
                "This store has no prefix keys. Create it with num_cols_prefix_key to scan them."
            )
        routing = self.shape.prefix_shape
        columns = columns_of(table, routing.key_schema) if HASH not in table.column_names else []
        tops = np.unique(hashes_of(table, columns, routing.hasher) >> 32)
        found: list[Rows] = self._read(lambda view: view.with_tops(tops))
        return found

    def _read(self, work: Callable[[SegmentStack], Any], bounds: Bounds | None = None) -> Any:
        return self.chain.run(work, self.shape.layout, bounds=bounds)

    def _key_columns(self, table: pa.Table) -> list[pa.Array]:
        return columns_of(table, self.shape.key_schema)

    def _hashes(self, table: pa.Table, keys: list[pa.Array]) -> Hashes:
        return hashes_of(table, keys, self.shape.hasher)


def hashes_of(table: pa.Table, keys: list[pa.Array], hasher: KeyHasher) -> Hashes:
    """The `_hash` column of a table, computed if the table does not have one."""
    if HASH not in table.column_names:
        return hasher.hash_columns(keys)
    given = own_column(table, HASH, pa.int64())
    if given.null_count:
        raise InvalidArgument(f"The column {HASH!r} must not have nulls.")
    hashes: Hashes = given.to_numpy()
    return hashes


def own_column(table: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    """A column that only the engine writes, of the type it has there."""
    column = one_array(table.column(name))
    if column.type != kind:
        raise InvalidArgument(f"The column {name!r} is {column.type}, not {kind}.")
    return column


def rows_table(shape: StoreShape, rows: Rows) -> pa.Table:
    """Rows as a table of key and value columns."""
    columns = [*rows.keys, *(rows.value(i) for i in range(rows.num_values))]
    return pa.table(columns, schema=pa.schema([*shape.layout.keys, *shape.layout.values]))


def _starting_with(prefix: list[pa.Array], pieces: Iterator[Rows]) -> Iterator[Rows]:
    for piece in pieces:
        same = _equals_row(piece.keys[: len(prefix)], prefix)
        if same.any():
            yield piece.where(same)


def _equals_row(columns: list[pa.Array], row: list[pa.Array]) -> Mask:
    same = np.ones(len(columns[0]), bool)
    for column, cell in zip(columns, row, strict=True):
        same &= equal(column, cell.take(pa.array(np.zeros(len(column), np.int64))))
    return same
