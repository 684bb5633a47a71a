"""One partition of a store open for update: a memtable over a version, and the delta it becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.engine.arrays import Hashes, Index, Mask
from holdfast.engine.files.segment import MemorySegment
from holdfast.engine.partition.bounds import Bounds, with_bound
from holdfast.engine.partition.chain import Chain
from holdfast.engine.partition.columns import take
from holdfast.engine.partition.memtable import Memtable
from holdfast.engine.partition.reader import PartitionReader, own_column
from holdfast.engine.partition.rows import NEVER, Rows, sort_rows
from holdfast.engine.partition.shape import StoreShape
from holdfast.engine.partition.stack import KeyMatches, SegmentStack
from holdfast.errors import InvalidArgument
from holdfast.reserved import DEAD, EXPIRES, FOUND
from holdfast.types import as_table, columns_of, one_array, parts_of


@dataclass(frozen=True, slots=True)
class SealedDelta:
    """The result of an update: the delta's rows in hash order, the bounds, and counts of keys.

    `num_removed` counts keys that the version before had and that were removed, evicted or expired;
    one that was put again after it had expired is among them.
    """

    pieces: list[Rows]
    num_keys: int
    num_removed: int
    bounds: Bounds


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
        counted, hidden = self._bounds, self._hidden()
        was_counted = hidden is not None
        if hidden is not None:
            # No change came after the bounds were raised, and the keys they hid were counted then.
            # So the changes are counted under the old bounds, without reading what is hidden.
            counted = base.bounds
        elif self._bounds != base.bounds:
            hidden = base.run(lambda view: view.dying(self._bounds), layout)
        num_removed = hidden or 0
        num_keys = base.entry.num_keys - num_removed
        known = self.memtable.known_existed if counted == base.bounds else None
        pieces = []
        for rows in self.memtable.seal():
            existed = self._existed(rows, counted) if known is None else known
            live = _all_if_none(counted.live(rows, slice(None), layout), rows)
            added = live & ~existed
            gone = int((~live & existed).sum())
            num_keys += int(added.sum()) - gone
            num_removed += gone
            if was_counted:  # also what this update put, which no version had
                num_removed -= int((added & ~self._stays(rows)).sum())
            if rows.dead is not None:
                # A tombstone is kept where the base has the key, also if a raised bound hides it:
                # evicted rows are read under the old bound and delivered, and a removed key must
                # not be among them.
                if counted != base.bounds:
                    existed = self._existed(rows, base.bounds)
                rows = rows.where(~rows.dead | existed)
            pieces.append(rows)
        pieces = [rows for rows in pieces if len(rows)]
        return SealedDelta(pieces, num_keys, num_removed, self._bounds)

    def _stays(self, rows: Rows) -> Mask:
        """Which rows the bounds do not hide."""
        return _all_if_none(self._bounds.live(rows, slice(None), self.shape.layout), rows)

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


def _all_if_none(mask: Mask | None, rows: Rows) -> Mask:
    return np.ones(len(rows), bool) if mask is None else mask


def expiries(table: pa.Table) -> Hashes | None:
    """The `_expires` column in ms, null as never; None where there is none."""
    if EXPIRES not in table.column_names:
        return None
    filled: Hashes = own_column(table, EXPIRES, pa.int64()).fill_null(NEVER).to_numpy()
    return filled


def tombstones(table: pa.Table) -> Mask | None:
    """The `_dead` column, null as not; None where there is none."""
    if DEAD not in table.column_names:
        return None
    flags = own_column(table, DEAD, pa.bool_()).fill_null(False)
    dead: Mask = flags.to_numpy(zero_copy_only=False)
    return dead
