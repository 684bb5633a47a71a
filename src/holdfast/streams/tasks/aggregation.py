"""The task of an aggregation: merges a batch into one partition of the state.

Spark has already summed the batch up to one row of partial aggregates for each key, so a task
reads, merges and writes each key once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.reserved import FOUND
from holdfast.streams.aggregates.merging import Merge, merge_table
from holdfast.streams.outbox import NOTHING, Emission, Outbox, emit_if_small, small_bytes
from holdfast.streams.stores.contract import TaskStore
from holdfast.streams.tasks.task import (
    StoreSpec,
    TaskResult,
    millis_since,
    prepare_result,
    read_input,
    split_late,
)

ROWS = "_rows"
"""How many input rows went into a row of partial aggregates."""
_FEW_KEYS = 20_000
"""In complete mode, tasks return the rows for the driver to deliver up to so many keys."""


@dataclass(frozen=True)
class BatchEffect:
    """What a batch did to a store: the changed rows, and counts of its input."""

    changed: pa.Table
    rows: int
    late_rows: int = 0
    gone: int = 0


@dataclass(frozen=True)
class AggregationTask:
    """Merges partial aggregates, one row for each key, into state.

    Rows whose index is at or below `late` are dropped, and state at or below `evict` is evicted;
    None means that nothing is late or evicted. With an `outbox`, the groups that `mode` asks for
    are emitted for the next stage. Without, they are emitted only if they are small enough for the
    task's result, which spares the delivery from reading them from state.
    """

    store: StoreSpec
    base_version: int
    merges: tuple[Merge, ...]
    ansi: bool
    mode: str
    late: int | None = None
    evict: int | None = None
    outbox: Outbox | None = None

    def run(self, partition: int, schema: bytes, batches: Iterable[bytes]) -> TaskResult:
        """Merge one partition of a batch into state and prepare the next version."""
        table = read_input(self.store, partition, schema, batches)
        store = self.store.open(partition, self.base_version)
        started = time.monotonic()
        worked = self._work_in(store, table)
        emitted = self._emit(partition, store, worked.changed)
        updated_at = time.monotonic()
        # Only now: evicting hides rows that were just emitted.
        evicted = 0 if self.evict is None else store.raise_evict_bound(self.evict)
        return prepare_result(
            store,
            emitted,
            rows=worked.rows,
            updated=worked.changed.num_rows,
            removed=worked.gone + evicted,
            late_rows=worked.late_rows,
            update_ms=int((updated_at - started) * 1000),
            removal_ms=millis_since(updated_at),
        )

    def _work_in(self, store: TaskStore, table: pa.Table) -> BatchEffect:
        """Merge a batch, one row for each key, into the store."""
        table, late = self._without_late(table)
        if table.num_rows:
            store.update_many(
                table, lambda rows, state: merge_table(self.merges, rows, state, ansi=self.ansi)
            )
        return BatchEffect(table, row_count(table), 0 if late is None else row_count(late))

    def _without_late(self, table: pa.Table) -> tuple[pa.Table, pa.Table | None]:
        index = self.store.key_index
        if index is None:
            return table, None
        return split_late(table, self.store.key_schema.names[index], self.late)

    def _emit(self, partition: int, store: TaskStore, changed: pa.Table) -> Emission:
        if self.outbox is not None:
            return self.outbox.emit(partition, self._groups(store, changed))
        partitions = self.store.partitions
        most = small_bytes(partitions, self.store.inline_bytes)
        if changed.nbytes > most:
            return NOTHING
        if self.mode == "complete" and store.metrics.num_keys > _FEW_KEYS // partitions:
            return NOTHING
        return emit_if_small(partition, most, self._groups(store, changed))

    def _groups(self, store: TaskStore, changed: pa.Table) -> Iterator[pa.Table]:
        """The rows that the output mode emits."""
        if self.mode == "complete":
            yield from store.tables()
        elif self.mode == "update":
            if changed.num_rows:
                keys = changed.select(self.store.key_schema.names)
                yield store.get_many(keys).drop_columns([FOUND])
        elif self.evict is not None:
            # From the store's bound, not from `late`: if the query ran in complete mode before, the
            # watermark has grown without evicting, and those groups are still to be emitted.
            yield from store.evicted_tables(store.evict_bound, self.evict)


def row_count(table: pa.Table) -> int:
    """How many input rows a table of partial aggregates stands for."""
    return int(np.sum(table.column(ROWS).to_numpy())) if table.num_rows else 0
