"""The task of a deduplication: finds the rows whose keys are new."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.engine.partition.rows import first_rows, index_numbers
from holdfast.reserved import EXPIRES, FOUND, HASH
from holdfast.streams.outbox import Outbox
from holdfast.streams.stores.contract import EXPIRES_AT, TaskStore
from holdfast.streams.tasks.task import (
    StoreSpec,
    TaskResult,
    millis_since,
    prepare_result,
    read_input,
    split_late,
)

SEEN = "seen"


@dataclass(frozen=True)
class DeduplicationTask:
    """Emits the first row of each key that is not in state, and stores the key.

    `columns` are the columns to emit, and `time` is the event time that decides whether a row is
    late. With `delay_ms` a key expires once the watermark is that far beyond its row's event time.
    Without, it is evicted when `evict` reaches the event time in the key, because every later row
    with that key would be late.
    """

    store: StoreSpec
    base_version: int
    outbox: Outbox
    columns: tuple[str, ...]
    time: str | None
    delay_ms: int | None
    late: int | None = None
    evict: int | None = None

    def run(self, partition: int, schema: bytes, batches: Iterable[bytes]) -> TaskResult:
        """Emit one partition's new rows and prepare the next version."""
        table = read_input(self.store, partition, schema, batches)
        store = self.store.open(partition, self.base_version)
        started = time.monotonic()
        rows, late = table, None
        if self.time is not None:
            rows, late = split_late(table, self.time, self.late)
        new = self._new(store, rows)
        if new.num_rows:
            store.put_many(self._entries(new))
        emitted = self.outbox.emit(partition, [new.select(self.columns)])
        updated_at = time.monotonic()
        removed = self._forget(store)
        return prepare_result(
            store,
            emitted,
            rows=rows.num_rows,
            updated=new.num_rows,
            removed=removed,
            late_rows=0 if late is None else late.num_rows,
            dropped_duplicates=rows.num_rows - new.num_rows,
            update_ms=int((updated_at - started) * 1000),
            removal_ms=millis_since(updated_at),
        )

    def _new(self, store: TaskStore, rows: pa.Table) -> pa.Table:
        if rows.num_rows == 0:
            return rows
        names = self.store.key_schema.names
        keys = [rows.column(name).combine_chunks() for name in names]
        firsts = rows.take(pa.array(first_rows(rows.column(HASH).to_numpy(), keys)))
        found = store.get_many(firsts.select([*names, HASH])).column(FOUND)
        return firsts.filter(pa.array(~found.to_numpy()))

    def _entries(self, new: pa.Table) -> pa.Table:
        keys = new.select([*self.store.key_schema.names, HASH])
        if self.delay_ms is None:
            return keys.append_column(SEEN, pa.array(np.ones(new.num_rows, bool)))
        assert self.time is not None
        times = index_numbers(new.column(self.time).combine_chunks())
        assert times is not None
        expires = times + self.delay_ms * 1000
        in_ms = -(-expires // 1000)
        return keys.append_column(EXPIRES_AT, pa.array(expires)).append_column(
            EXPIRES, pa.array(in_ms)
        )

    def _forget(self, store: TaskStore) -> int:
        if self.evict is None:
            return 0
        if self.delay_ms is not None:
            return store.expire(self.evict // 1000)
        return store.raise_evict_bound(self.evict) if self.store.key_index is not None else 0
