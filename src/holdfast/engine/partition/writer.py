"""One partition of a store open for update: a memtable over a version, and the delta it becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.engine.arrays import Hashes, Index, Mask
from holdfast.engine.files.blocks import BadSegment
from holdfast.engine.files.segment import DEAD, EXPIRES, HASH, MemorySegment
from holdfast.engine.hashing.spark_hash import KeyHasher
from holdfast.engine.partition.chain import Chain, StoreShape
from holdfast.engine.partition.columns import canonical_column, equal, take
from holdfast.engine.partition.memtable import Memtable
from holdfast.engine.partition.rows import NEVER, Rows, sort_rows
from holdfast.engine.partition.stack import Bounds, IndexRange, KeyMatches, SegmentStack, with_bound
from holdfast.errors import InvalidArgument, Unavailable
from holdfast.types import as_table, columns_of, one_array, parts_of

FOUND = "_found"


@dataclass(frozen=True, slots=True)
class SealedDelta:
    """The result of an update: the delta's rows in hash order, the number of keys, the bounds."""

    pieces: list[Rows]
    num_keys: int
    bounds: Bounds


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
        hashes = self._hashes(keys, columns)
        order = np.argsort(hashes)
        sorted_hashes, at = hashes[order], pa.array(order)
        sorted_keys = [canonical_column(column).take(at) for column in columns]
        found, sorted_values = self._find(sorted_hashes, sorted_keys)
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        values = [column.take(pa.array(back)) for column in sorted_values]
        return self._table(columns, values, found[back])

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


class PartitionWriter(PartitionReader):
    """One partition at one version, with the changes for the next version."""

    def __init__(self, shape: StoreShape, chain: Chain) -> None:
        super().__init__(shape, chain)
        self.memtable = Memtable(shape)
        self._raised: tuple[list[MemorySegment], int] | None = None
        """The changes so far when bounds were raised, and how many keys the bounds hid."""

    def get(self, key: Any, hashed: int | None = None) -> tuple[Any, ...] | None:
        encoded = self.shape.keys.encode(key)
        if self.memtable.rows:
            change = self.memtable.rows.get(self.shape.keys.hashable(encoded))
            if change is not None:
                if self._bounds != Bounds():
                    self._flush()
                    return self._get(encoded, hashed)
                value, codec = change[1], self.shape.values
                # Lists and maps are copied: changing them must not change the state.
                return value if value is None or codec.plain else codec.encode(value)
        return self._get(encoded, hashed)

    def _flush(self) -> list[MemorySegment]:
        if self.memtable.rows:
            self._row_view = None
        return self.memtable.sources()

    def _new_row_view(self) -> SegmentStack:
        # The dict was searched before, so the runs are enough: no get has to flush it.
        return self.chain.run(
            lambda view: view,
            self.shape.layout,
            newer=self.memtable.runs(),
            bounds=self._bounds,
        )

    def _add(self, rows: Rows, existed: Mask | None = None) -> None:
        self.memtable.add(rows, existed)
        self._row_view = None

    def put(self, key: Any, value: Any, expires: int | None = None) -> None:
        """Set one key."""
        shape = self.shape
        canonical_key = shape.keys.encode(key)
        change = (canonical_key, shape.values.encode(value), expires)
        hashable = canonical_key if shape.keys.plain else shape.keys.hashable(canonical_key)
        self.memtable.rows[hashable] = change

    def remove(self, key: Any) -> None:
        """Remove one key."""
        canonical_key = self.shape.keys.encode(key)
        self.memtable.rows[self.shape.keys.hashable(canonical_key)] = (canonical_key, None, None)

    def put_many(self, table: pa.Table) -> None:
        """Set every key of a table; of equal keys the last wins."""
        for part in parts_of(as_table(table)):
            keys = self._key_columns(part)
            values = columns_of(part, self.shape.value_schema)
            rows, _ = sort_rows(self._hashes(part, keys), keys, values, expires=expiries(part))
            self._add(rows)

    def remove_many(self, table: pa.Table) -> None:
        """Remove every key of a table."""
        for part in parts_of(as_table(table)):
            keys = self._key_columns(part)
            empty = [pa.nulls(part.num_rows, field.type) for field in self.shape.layout.values]
            dead = np.ones(part.num_rows, bool)
            rows, _ = sort_rows(self._hashes(part, keys), keys, empty, dead)
            self._add(rows)

    def update_many(
        self, table: pa.Table, change: Callable[[pa.Table, pa.Table], pa.Table]
    ) -> None:
        """Read, change and write back many keys, sorting and searching once.

        `change(rows, state)` gets `table` in another order and, row for row, the value columns
        with `_found`; it returns the new value columns in that order, and optionally a boolean
        `_dead` (remove the key) and `_expires`. Requires: the keys of `table` are distinct, and
        what the function returned is not changed afterwards.
        """
        table = as_table(table)
        keys = self._key_columns(table)
        hashes = self._hashes(table, keys)
        sorted_rows, order = sort_rows(hashes, keys, [])
        if len(order) < table.num_rows:
            raise InvalidArgument(
                f"The batch has {table.num_rows - len(order)} rows with the key of another row. "
                "Aggregate by key before update_many."
            )
        existed, found_values = self._find(sorted_rows.hashes, sorted_rows.keys)
        state = pa.table(
            [*found_values, pa.array(existed)],
            names=[*self.shape.value_schema.names, FOUND],
        )
        changed = as_table(change(self._in_order(table, sorted_rows.keys, order), state))
        if changed.num_rows != len(order):
            raise InvalidArgument(
                f"The function returned {changed.num_rows} rows for {len(order)} keys. It must "
                "return one row for each key, in the same order."
            )
        values = columns_of(changed, self.shape.value_schema)
        dead, expires = tombstones(changed), expiries(changed)
        rows = Rows(sorted_rows.hashes, sorted_rows.keys, values, dead, expires)
        known = existed if not len(self.memtable) else None
        self._add(rows, known)

    def _in_order(self, table: pa.Table, keys: list[pa.Array], order: Index) -> pa.Table:
        """`table` in the order of its hashes; the key columns are sorted already."""
        sorted_keys = dict(zip(self.shape.key_schema.names, keys, strict=True))
        columns = [
            sorted_keys[name] if name in sorted_keys else take(one_array(column), order)
            for name, column in zip(table.column_names, table.columns, strict=True)
        ]
        return pa.table(columns, names=table.column_names)

    def raise_bounds(self, *, evict: int | None = None, expire: int | None = None) -> int:
        """Hide what is due from every read from now on; return how many keys it hid."""
        raised = with_bound(self._bounds, evict=evict, expire=expire)
        if raised == self._bounds:
            return 0
        gone: int = self._read(lambda view: view.dying(raised))
        before = 0 if self._bounds == self.chain.bounds else self._hidden()
        self._raised = None if before is None else (self.memtable.sources(), before + gone)
        self._bounds = raised
        self._row_view = None
        return gone

    def _hidden(self) -> int | None:
        """How many keys the bounds have hidden, if they were raised after the last change."""
        if self._raised is None or self._raised[0] is not self.memtable.sources():
            return None
        return self._raised[1]

    def seal(self) -> SealedDelta:
        """End the update: the rows of the delta and the exact number of keys."""
        self._flush()
        base = self.chain
        layout = self.shape.layout
        num_keys = base.entry.num_keys
        counted, hidden = self._bounds, self._hidden()
        if hidden is not None:
            # No change came after the bounds were raised, and the keys they hid were counted then.
            # So the changes are counted under the old bounds, without reading what is hidden.
            counted = base.bounds
            num_keys -= hidden
        elif self._bounds != base.bounds:
            num_keys -= base.run(lambda view: view.dying(self._bounds), layout)
        known = self.memtable.known_existed if counted == base.bounds else None
        pieces = []
        for rows in self.memtable.seal():
            existed = self._existed(rows, counted) if known is None else known
            live = counted.live(rows, slice(None), layout)
            if live is None:
                num_keys += int((~existed).sum())
            else:
                num_keys += int((live & ~existed).sum()) - int((~live & existed).sum())
            if rows.dead is not None:
                # A tombstone is kept where the base has the key, also if a raised bound hides it:
                # evicted rows are read under the old bound and delivered, and a removed key must
                # not be among them.
                if counted != base.bounds:
                    existed = self._existed(rows, base.bounds)
                rows = rows.where(~rows.dead | existed)
            pieces.append(rows)
        return SealedDelta([rows for rows in pieces if len(rows)], num_keys, self._bounds)

    def _existed(self, rows: Rows, bounds: Bounds) -> Mask:
        """Which of the keys the base has, seen through these bounds."""
        found: KeyMatches = self.chain.run(
            lambda view: view.lookup(rows.hashes, rows.keys), self.shape.layout, bounds=bounds
        )
        return found.mask()

    def num_keys(self) -> int:
        """The exact number of keys as of now."""
        return self.seal().num_keys

    def _read(self, work: Callable[[SegmentStack], Any], bounds: Bounds | None = None) -> Any:
        seen = self._bounds if bounds is None else bounds
        return self.chain.run(work, self.shape.layout, newer=self._flush(), bounds=seen)


def hashes_of(table: pa.Table, keys: list[pa.Array], hasher: KeyHasher) -> Hashes:
    """The `_hash` column of a table, computed if the table does not have one."""
    if HASH not in table.column_names:
        return hasher.hash_columns(keys)
    given = _own_column(table, HASH, pa.int64())
    if given.null_count:
        raise InvalidArgument(f"The column {HASH!r} must not have nulls.")
    hashes: Hashes = given.to_numpy()
    return hashes


def expiries(table: pa.Table) -> Hashes | None:
    """The `_expires` column in ms, null as never; None where there is none."""
    if EXPIRES not in table.column_names:
        return None
    filled: Hashes = _own_column(table, EXPIRES, pa.int64()).fill_null(NEVER).to_numpy()
    return filled


def tombstones(table: pa.Table) -> Mask | None:
    """The `_dead` column, null as not; None where there is none."""
    if DEAD not in table.column_names:
        return None
    flags = _own_column(table, DEAD, pa.bool_()).fill_null(False)
    dead: Mask = flags.to_numpy(zero_copy_only=False)
    return dead


def _own_column(table: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
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
