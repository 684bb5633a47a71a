"""The part of an aggregation that runs where the state is: merge a batch into one partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.conf import StateStoreConf
from holdfast.engine.commit import Prepared, Swap
from holdfast.engine.hashing import partition_of
from holdfast.engine.segment import HASH, index_numbers
from holdfast.errors import IllegalState
from holdfast.ids import StateStoreId
from holdfast.streams.merging import Merge, merge_table
from holdfast.types import Schema

ROWS = "_rows"
"""How many input rows went into a row of partial aggregates."""

_providers: dict[tuple[str, StateStoreId], HDFSBackedStateStoreProvider] = {}


@dataclass(frozen=True)
class StoreSpec:
    """Where a store is and what it keeps; goes to every task."""

    root: str
    operator: int
    key_schema: Schema
    value_schema: Schema
    key_index: int | None
    partitions: int
    conf: StateStoreConf
    run_id: str
    options: Mapping[str, str] = field(default_factory=dict)

    def provider(self, partition: int) -> HDFSBackedStateStoreProvider:
        """The provider of one partition, kept for the next batch in this process."""
        store_id = StateStoreId(self.root, self.operator, partition)
        known = _providers.get((self.run_id, store_id))
        if known is not None:
            return known
        for run_id, other in [place for place in _providers if place[0] != self.run_id]:
            _providers.pop((run_id, other)).close()
        provider = HDFSBackedStateStoreProvider(in_query=True)
        provider.init(
            store_id, self.key_schema, self.value_schema, self.key_index, 0, self.conf, self.options
        )
        _providers[self.run_id, store_id] = provider
        return provider


@dataclass(frozen=True)
class AggregationTask:
    """One version's work of an aggregation: the same for every partition.

    Rows whose index is at or below `late` are dropped, state at or below `evict` goes; None for
    either means that nothing is late or evicted.
    """

    store: StoreSpec
    base_version: int
    merges: tuple[Merge, ...]
    ansi: bool
    late: int | None = None
    evict: int | None = None


@dataclass(frozen=True)
class TaskResult:
    """What a task reports to the driver; only a successful task's reaches it."""

    prepared: Prepared
    rows: int
    updated: int
    late_rows: int
    evicted: int
    memory_bytes: int
    state_bytes: int


def run_aggregation(
    task: AggregationTask, partition: int, schema: bytes, batches: Iterable[bytes]
) -> TaskResult:
    """Merge one partition of a batch into state and prepare the next version."""
    table = read_batches(schema, batches)
    _check_routing(table, partition, task.store.partitions)
    store = task.store.provider(partition).get_store(task.base_version)
    table, late_rows = _without_late(table, task)
    if table.num_rows:
        store.update_many(
            table, lambda rows, state: merge_table(task.merges, rows, state, ansi=task.ansi)
        )
    evicted = 0 if task.evict is None else store.raise_evict_bound(task.evict)
    store.commit()
    metrics = store.metrics
    return TaskResult(
        prepared=store.prepared,
        rows=int(np.sum(table.column(ROWS).to_numpy())) if table.num_rows else 0,
        updated=table.num_rows,
        late_rows=late_rows,
        evicted=evicted,
        memory_bytes=metrics.memory_used_bytes,
        state_bytes=metrics.json()["stateOnCurrentVersionSizeBytes"],
    )


def merge_partition(store: StoreSpec, partition: int) -> tuple[Swap, ...]:
    """Merge what is due of one partition's newest version; the next commit swaps it in."""
    provider = store.provider(partition)
    provider.do_snapshot()
    return provider.finished_merges


def read_batches(schema: bytes, batches: Iterable[bytes]) -> pa.Table:
    """Raw record batches as a table; the first is checked in full, the bytes come from the JVM."""
    arrow_schema = ipc.read_schema(pa.py_buffer(schema))
    read: list[pa.RecordBatch] = []
    for raw in batches:
        batch = ipc.read_record_batch(pa.py_buffer(raw), arrow_schema)
        if not read:
            batch.validate(full=True)
        read.append(batch)
    return pa.Table.from_batches(read, schema=arrow_schema)


def _check_routing(table: pa.Table, partition: int, partitions: int) -> None:
    if table.num_rows == 0:
        return
    hashes = table.column(HASH).to_numpy()
    if (partition_of(hashes, partitions) != partition).any():
        raise IllegalState(
            f"Partition {partition} of {partitions} was given rows of another: Spark did not "
            "partition by the key. Nothing was committed."
        )


def _without_late(table: pa.Table, task: AggregationTask) -> tuple[pa.Table, int]:
    """The rows that are not late, and how many input rows were."""
    index = task.store.key_index
    if task.late is None or index is None or table.num_rows == 0:
        return table, 0
    numbers = index_numbers(table.column(task.store.key_schema.names[index]).combine_chunks())
    assert numbers is not None
    late = numbers <= task.late
    if not late.any():
        return table, 0
    counts = table.column(ROWS).to_numpy()
    return table.filter(pa.array(~late)), int(counts[late].sum())
