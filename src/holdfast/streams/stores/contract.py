"""What tasks ask of a store, and how any provider's store gives it by the row contract alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.engine.files.manifest import fingerprint
from holdfast.engine.files.segment import index_numbers
from holdfast.engine.partition.rows import NEVER
from holdfast.engine.partition.writer import FOUND
from holdfast.engine.versions.commit import PreparedPartition
from holdfast.store import StateStore, StateStoreMetrics

EXPIRES_AT = "expires_at_us"
"""The value column that says when a key goes by itself."""


class TaskStore(Protocol):
    """A store open for update, as tasks use it."""

    def get_many(self, keys: pa.Table) -> pa.Table: ...
    def put_many(self, rows: pa.Table) -> None: ...
    def remove_many(self, keys: pa.Table) -> None: ...
    def tables(self) -> Iterator[pa.Table]: ...
    def prefix_table(self, rows: pa.Table) -> pa.Table: ...
    @property
    def evict_bound(self) -> int | None: ...
    def evicted_tables(self, above: int | None, upto: int) -> Iterator[pa.Table]: ...
    def earliest_index(self, after: int) -> int | None: ...
    def earliest_expiry(self, after_ms: int) -> int | None: ...
    def raise_evict_bound(self, number: int) -> int: ...
    def expire(self, now_ms: int) -> int: ...
    def commit(self) -> int: ...

    def update_many(
        self, rows: pa.Table, change: Callable[[pa.Table, pa.Table], pa.Table]
    ) -> None: ...

    @property
    def prepared(self) -> PreparedPartition: ...

    @property
    def metrics(self) -> StateStoreMetrics: ...


class ContractStore:
    """The store of a provider that knows get, put, remove, iterator and commit, and no more.

    Its commit is its own; the driver's manifest only says that the version exists. What a bound
    would hide is removed one by one.
    """

    def __init__(self, store: StateStore, key_index: int | None) -> None:
        self._store = store
        self._key_index = key_index

    def get_many(self, keys: pa.Table) -> pa.Table:
        """The keys with their values and `_found`."""
        return self._store.get_many(keys)

    def put_many(self, rows: pa.Table) -> None:
        """Put every row."""
        self._store.put_many(rows)

    def remove_many(self, keys: pa.Table) -> None:
        """Remove every key."""
        self._store.remove_many(keys)

    def update_many(self, rows: pa.Table, change: Callable[[pa.Table, pa.Table], pa.Table]) -> None:
        """Read, change and write back many keys."""
        names = self._store.value_schema.names
        state = self._store.get_many(rows.select(self._store.key_schema.names))
        changed = change(rows, state.select([*names, FOUND]))
        for name in names:
            rows = _with_column(rows, name, changed.column(name))
        self._store.put_many(rows)

    def tables(self) -> Iterator[pa.Table]:
        """The whole state."""
        yield self._store.scan()

    def prefix_table(self, rows: pa.Table) -> pa.Table:
        """The whole state: a provider by rows has no better way for many prefixes."""
        return self._store.scan()

    @property
    def evict_bound(self) -> int | None:
        """None: keys that went are not there."""
        return None

    def evicted_tables(self, above: int | None, upto: int) -> Iterator[pa.Table]:
        """Keys whose index lies above `above` and at or below `upto`."""
        yield self._indexed(above, upto)

    def earliest_index(self, after: int) -> int | None:
        """The lowest index above a number."""
        table = self._indexed(after, NEVER - 1)
        if not table.num_rows:
            return None
        assert self._key_index is not None
        numbers = index_numbers(table.column(self._key_index).combine_chunks())
        assert numbers is not None
        return int(numbers.min())

    def earliest_expiry(self, after_ms: int) -> int | None:
        """None: a provider by rows keeps no expiry of its own."""
        return None

    def raise_evict_bound(self, number: int) -> int:
        """Remove every key whose index is at or below `number`; return how many."""
        return self._removed(self._indexed(None, number))

    def expire(self, now_ms: int) -> int:
        """Remove every key whose time is over."""
        table = self._store.scan()
        over = pc.less_equal(table.column(EXPIRES_AT), now_ms * 1000)
        return self._removed(table.filter(over))

    def commit(self) -> int:
        """Commit by the provider's own means."""
        return self._store.commit()

    @property
    def prepared(self) -> PreparedPartition:
        """What the driver needs: no files, only that the version is there."""
        place = self._store.id
        return PreparedPartition(
            operator=place.operator_id,
            store=place.store_name,
            partition=place.partition_id,
            base_version=self._store.version,
            schemas=fingerprint(self._store.key_schema, self._store.value_schema),
            delta=None,
            num_keys=self._store.metrics.num_keys,
        )

    @property
    def metrics(self) -> StateStoreMetrics:
        """The provider's own figures."""
        return self._store.metrics

    def _indexed(self, above: int | None, upto: int) -> pa.Table:
        table = self._store.scan()
        assert self._key_index is not None
        column = table.column(self._store.key_schema.names[self._key_index]).combine_chunks()
        numbers = index_numbers(column)
        assert numbers is not None
        inside = numbers <= upto
        if above is not None:
            inside &= numbers > above
        return table.filter(pa.array(inside))

    def _removed(self, table: pa.Table) -> int:
        self._store.remove_many(table)
        return int(table.num_rows)


def _with_column(table: pa.Table, name: str, column: pa.ChunkedArray) -> pa.Table:
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, column)
    return table.append_column(name, column)
