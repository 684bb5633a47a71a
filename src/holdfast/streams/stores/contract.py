"""The contract of a store that tasks use, and an adapter that offers it on any provider's store.

Holdfast's own stores implement `TaskStore` directly. `ContractStore` builds it from the row
contract (`holdfast.store`), so that operators run on providers they know nothing about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.engine.files.manifest import fingerprint
from holdfast.engine.partition.rows import NEVER, index_numbers
from holdfast.engine.versions.commit import PreparedPartition
from holdfast.reserved import FOUND
from holdfast.store import StateStore, StateStoreMetrics

EXPIRES_AT = "expires_at_us"
"""The value column with the time at which a key expires."""


class TaskStore(Protocol):
    """One partition of a store at a version, open for update, as tasks use it.

    Tables of keys have the key columns, and optionally the column `_hash`, which spares the store
    hashing them again. Tables of rows have the value columns as well. An *index* is a cell of the
    key column `key_index` as a whole number (microseconds for a timestamp). Methods that change
    the store raise IllegalState after `commit`.
    """

    def get_many(self, keys: pa.Table) -> pa.Table:
        """Return the keys in their order, their values (null if absent) and a boolean `_found`."""
        ...

    def put_many(self, rows: pa.Table) -> None:
        """Put every row; of equal keys the last one wins."""
        ...

    def remove_many(self, keys: pa.Table) -> None:
        """Remove every key; keys that are absent do not matter."""
        ...

    def update_many(self, rows: pa.Table, change: Callable[[pa.Table, pa.Table], pa.Table]) -> None:
        """Read, change and write back many keys.

        `change(rows, state)` gets rows in an order of the store's choice and, row by row, their
        values with `_found`. It returns a table with the new value columns in that order.
        Requires: the keys are distinct.
        """
        ...

    def tables(self) -> Iterator[pa.Table]:
        """Iterate over the whole state, one table of rows at a time."""
        ...

    def prefix_table(self, rows: pa.Table) -> pa.Table:
        """Return at least the rows that share a key prefix with one of `rows`.

        The prefixes are given by their columns or by `_hash`. The result may hold other rows, so
        the caller has to compare.
        """
        ...

    @property
    def evict_bound(self) -> int | None:
        """The index at or below which keys are evicted; None if the store has no such bound."""
        ...

    def evicted_tables(self, above: int | None, upto: int) -> Iterator[pa.Table]:
        """Iterate over the rows whose index is above `above` and at or below `upto`.

        Requires: the store has a `key_index`, and `raise_evict_bound` was not called yet, since
        a store need not keep evicted rows.
        """
        ...

    def earliest_index(self, after: int) -> int | None:
        """Return the lowest index above `after`; it may be that of a removed key."""
        ...

    def earliest_expiry(self, after_ms: int) -> int | None:
        """Return the next time after `after_ms` at which a key may expire; None if unknown."""
        ...

    def raise_evict_bound(self, number: int) -> int:
        """Evict every key whose index is at or below `number`, and return how many there were.

        The bound never falls: a lower number than before does nothing. Requires: the store has a
        `key_index`.
        """
        ...

    def expire(self, now_ms: int) -> int:
        """Remove every key that expires at or before `now_ms`, and return how many there were."""
        ...

    def commit(self) -> int:
        """Prepare the next version and return its number. Requires: not called before."""
        ...

    @property
    def prepared(self) -> PreparedPartition:
        """What the driver needs to commit the version. Requires: `commit` was called."""
        ...

    @property
    def metrics(self) -> StateStoreMetrics:
        """The store's figures, as of now."""
        ...


class ContractStore:
    """A `TaskStore` on a provider that offers only the row contract of `holdfast.store`.

    The provider commits by itself and the driver's manifest only records that the version exists.
    There are no bounds: what Holdfast's own store would hide is removed key by key. `key_index` is
    the key column that state is evicted by, if there is one.
    """

    def __init__(self, store: StateStore, key_index: int | None) -> None:
        self._store = store
        self._key_index = key_index

    def get_many(self, keys: pa.Table) -> pa.Table:
        """Ask the provider, which returns the same columns."""
        return self._store.get_many(keys)

    def put_many(self, rows: pa.Table) -> None:
        """Put every row."""
        self._store.put_many(rows)

    def remove_many(self, keys: pa.Table) -> None:
        """Remove every key."""
        self._store.remove_many(keys)

    def update_many(self, rows: pa.Table, change: Callable[[pa.Table, pa.Table], pa.Table]) -> None:
        """Read all keys, call `change` once, and put the result."""
        names = self._store.value_schema.names
        state = self._store.get_many(rows.select(self._store.key_schema.names))
        changed = change(rows, state.select([*names, FOUND]))
        for name in names:
            rows = _with_column(rows, name, changed.column(name))
        self._store.put_many(rows)

    def tables(self) -> Iterator[pa.Table]:
        """Return the whole state as one table."""
        yield self._store.scan()

    def prefix_table(self, rows: pa.Table) -> pa.Table:
        """Return the whole state: the row contract has no faster way for many prefixes."""
        return self._store.scan()

    @property
    def evict_bound(self) -> int | None:
        """Always None: evicted keys are removed."""
        return None

    def evicted_tables(self, above: int | None, upto: int) -> Iterator[pa.Table]:
        """Return the keys in the range that are not removed yet."""
        yield self._indexed(above, upto)

    def earliest_index(self, after: int) -> int | None:
        """Return the lowest index above `after`, by reading the whole state."""
        table = self._indexed(after, NEVER - 1)
        if not table.num_rows:
            return None
        assert self._key_index is not None
        numbers = index_numbers(table.column(self._key_index).combine_chunks())
        assert numbers is not None
        return int(numbers.min())

    def earliest_expiry(self, after_ms: int) -> int | None:
        """Always None: the row contract knows no expiry."""
        return None

    def raise_evict_bound(self, number: int) -> int:
        """Remove every key whose index is at or below `number`, and return how many."""
        return self._removed(self._indexed(None, number))

    def expire(self, now_ms: int) -> int:
        """Remove every key whose EXPIRES_AT has come. Requires: the store has that column."""
        table = self._store.scan()
        over = pc.less_equal(table.column(EXPIRES_AT), now_ms * 1000)
        return self._removed(table.filter(over))

    def commit(self) -> int:
        """Let the provider commit. Unlike Holdfast's own store, this publishes the version."""
        return self._store.commit()

    @property
    def prepared(self) -> PreparedPartition:
        """What the driver's manifest records of the partition: no files, only its size."""
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
        """The provider's figures."""
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
