"""The contract of a task: its store, its input, its result.

A task is the half of an operator that runs where the state is. The driver makes one `Task` for
each version, pickles it to the executors, and runs it once for every partition of the state. Only
the returned `TaskResult` counts: Spark may run a task twice, or run a second copy of a slow one,
and what the losing attempt wrote is never named by a manifest.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.ipc as ipc

from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.backends.locations import open_storage
from holdfast.conf import StateStoreConf
from holdfast.coordinator import CoordinatorAddress
from holdfast.engine.files.filenames import PLACE
from holdfast.engine.hashing.spark_hash import partition_of
from holdfast.engine.partition.rows import index_numbers
from holdfast.engine.partition.shape import StoreShape
from holdfast.engine.storage import BlobNotFound, Runtime, Storage
from holdfast.engine.versions.commit import PreparedPartition, Swap
from holdfast.engine.versions.log import RecentVersions, VersionLog
from holdfast.errors import HoldfastError, IllegalState
from holdfast.ids import DEFAULT_STORE_NAME, StateStoreId
from holdfast.reserved import HASH
from holdfast.store import StateStoreProvider
from holdfast.streams import process
from holdfast.streams.outbox import MOST_INLINE_BYTES, NOTHING, Emission, Outbox
from holdfast.streams.stores import open_providers
from holdfast.streams.stores.contract import ContractStore, TaskStore
from holdfast.types import Schema

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreSpec:
    """Where a store is and what it keeps. It is pickled with every task."""

    root: str
    operator: int
    """The operator's number in the query, from 0."""
    key_schema: Schema
    value_schema: Schema
    key_index: int | None
    """The key column that state is evicted by, counted from 0."""
    prefix: int
    """How many leading key columns decide the partition; 0: all of them."""
    partitions: int
    conf: StateStoreConf
    run_id: str
    """The run of the query. Providers of an earlier run are never reused."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """How to reach the root; may hold credentials."""
    name: str = DEFAULT_STORE_NAME
    place: str | None = None
    """The text that the driver found in the root's file `place`; tasks on other hosts compare."""
    coordinator: CoordinatorAddress | None = None
    """Where tasks report the partitions they hold; None: nowhere."""
    inline_bytes: int = MOST_INLINE_BYTES
    """How many bytes of emitted rows the results of all tasks together may carry."""

    @classmethod
    def of(cls, shape: StoreShape, **where: Any) -> StoreSpec:
        """Make the spec of a store with this shape; `where` are the remaining fields."""
        return cls(
            key_schema=shape.key_schema,
            value_schema=shape.value_schema,
            key_index=shape.key_index,
            prefix=shape.prefix,
            **where,
        )

    @property
    def shape(self) -> StoreShape:
        """The store's shape: its schemas, and what follows from them."""
        return StoreShape.of(self.key_schema, self.value_schema, self.key_index, self.prefix)

    @property
    def is_foreign(self) -> bool:
        """Whether the state is kept by a provider that is not Holdfast's own.

        Of such a provider only the row contract (`holdfast.store`) is known.
        """
        return self.conf.provider_class != StateStoreConf.empty.provider_class

    def open(self, partition: int, version: int) -> TaskStore:
        """Open one partition at a version for update.

        The coordinator counts this executor as the partition's holder from then on. Raises
        VersionNotFound if the version is not there, Unavailable if the storage does not answer,
        and IllegalState if the root is a different folder on this host.
        """
        provider = self._provider(partition)
        open_providers.here.report(self._place(partition), self.coordinator, version)
        if not self.is_foreign:
            return self.engine(partition).get_store(version)
        return ContractStore(provider.get_store(version), self.key_index)

    def engine(self, partition: int) -> HDFSBackedStateStoreProvider:
        """Return the provider of one partition, opened if necessary. Requires: not `is_foreign`."""
        provider = self._provider(partition)
        assert isinstance(provider, HDFSBackedStateStoreProvider)
        return provider

    def maintain(self, partition: int, *, force: bool = False) -> tuple[Swap, ...]:
        """Merge the segments of one partition's newest version that are due for compaction.

        With `force` all of them are merged into one.
        Returns the swaps that the next commit has to name; until then nothing reads the merged
        files. A foreign provider does its own maintenance and returns none.
        """
        provider = self._provider(partition)
        if not isinstance(provider, HDFSBackedStateStoreProvider):
            provider.do_maintenance()
            return ()
        provider.do_snapshot(force=force)
        self.tell_snapshots(self.name, partition, provider.finished_merges)
        return provider.finished_merges

    def tell_snapshots(self, name: str, partition: int, swaps: Iterable[Swap]) -> None:
        """Report to the coordinator the snapshots among finished merges of the store `name`."""
        place = self.run_id, StateStoreId(self.root, self.operator, partition, name)
        for swap in swaps:
            if swap.output.kind == "snapshot":
                open_providers.here.report_snapshot(place, self.coordinator, swap.output.high)

    def _place(self, partition: int) -> open_providers.ProviderKey:
        return self.run_id, StateStoreId(self.root, self.operator, partition, self.name)

    def _provider(self, partition: int) -> StateStoreProvider:
        """Return the provider of one partition; it stays open in this process for later tasks."""
        place = self._place(partition)
        return open_providers.here.provider(
            place, self.coordinator, lambda: self._new_provider(place[1])
        )

    def _new_provider(self, store_id: StateStoreId) -> StateStoreProvider:
        shape = (self.key_schema, self.value_schema, self.key_index, self.prefix)
        if self.place is not None:
            check_place(self._history().storage, self.place)
        if self.is_foreign:
            return StateStoreProvider.create_and_init(store_id, *shape, self.conf, self.options)
        provider = HDFSBackedStateStoreProvider(prepares_only=True, versions=self._history())
        provider.init(store_id, *shape, self.conf, self.options)
        return provider

    def _history(self) -> VersionLog:
        """The manifests of the root; all providers of the run in this process share them."""

        def made() -> VersionLog:
            storage = open_storage(self.root, self.options, self.conf)
            return RecentVersions(storage, Runtime.system())

        return open_providers.here.history(self.run_id, made)


@dataclass(frozen=True)
class TaskResult:
    """What a task returns to the driver, which commits the results of all partitions at once."""

    prepared: tuple[PreparedPartition, ...]
    """For each store of the operator, what the driver needs to commit its next version."""
    rows: int = 0
    """Input rows, without late ones."""
    updated: int = 0
    """Keys written to state."""
    removed: int = 0
    """Keys removed from state, including evicted and expired ones."""
    late_rows: int = 0
    """Input rows dropped because of the watermark."""
    dropped_duplicates: int = 0
    """Input rows that a deduplication dropped."""
    update_ms: int = 0
    removal_ms: int = 0
    commit_ms: int = 0
    memory_bytes: int = 0
    """Private memory that the store uses."""
    state_bytes: int = 0
    """Size of the partition's state in the prepared version."""
    emitted: Emission = NOTHING
    """The rows emitted, or where they are."""
    due_ms: int | None = None
    """The next time by the clock at which a timer fires or an entry expires; None: none known."""
    custom: Mapping[str, int] = field(default_factory=dict)
    """The operator's own metrics, by Spark's names for them."""

    @property
    def committed_removals(self) -> int:
        """How many rows that were committed before are gone; `removed` where stores do not count.

        Not among them are rows that came and went within the version, or were never there.
        """
        counts = [part.num_removed for part in self.prepared]
        return sum(n for n in counts if n is not None) if None not in counts else self.removed

    @property
    def is_idle(self) -> bool:
        """Whether the version changes nothing in this partition and emits no rows."""
        unchanged = all(part.delta is None for part in self.prepared)
        return unchanged and not self.removed and not self.emitted.rows


class Task(Protocol):
    """One operator's work for one version. It is immutable and is pickled to the workers."""

    @property
    def store(self) -> StoreSpec:
        """The store the task works on; any of them if there are several."""
        ...

    @property
    def base_version(self) -> int:
        """The version whose state the task reads; it prepares the next one."""
        ...

    def run(self, partition: int, schema: bytes, batches: Iterable[bytes]) -> TaskResult:
        """Apply one partition's input to its state and prepare the next version.

        `schema` is a serialized Arrow schema and `batches` are serialized record batches of it,
        laid out as `Operator.batch_frame` planned them. Returns what the driver needs to commit
        the version. Nothing is visible before that, so Spark may repeat `run`; with equal input it
        must have the same effect. Whatever it raises stops the version, and no partition of it is
        committed. Requires: no other task of this process is running.
        """
        ...


def run_task(task: Task, partition: int, schema: bytes, batches: Iterable[bytes]) -> TaskResult:
    """Run a task, as every worker does it; `task.run` has the parameters.

    What the task raises gets notes that name the run, operator, partition and version.
    """
    try:
        process.acknowledge()
        open_providers.here.tidy(task.store.run_id, task.store.coordinator)
        with process.seldom_collecting():
            result = task.run(partition, schema, batches)
        for part in result.prepared:
            task.store.tell_snapshots(part.store, partition, part.swaps)
        process.acknowledge()
        process.settle("task")
        return result
    except Exception as error:
        place = (
            f"run {task.store.run_id}, operator {task.store.operator}, partition {partition}, "
            f"version {task.base_version + 1}"
        )
        log.exception("A task failed in %s of %s", place, task.store.root)
        if isinstance(error, HoldfastError):  # Spark brings errors to the driver as text only
            error.add_note(f"[{error.condition}]")
        error.add_note(f"In {place} of {task.store.root}; nothing of the version was committed.")
        raise


def check_place(storage: Storage, place: str) -> None:
    """Raise IllegalState if the root on this host is not the driver's folder.

    A local path can exist on every host of a cluster. Without the check, tasks would write state
    to disks that the driver and the next task cannot read.
    """
    try:
        found = bytes(storage.read(PLACE)).decode("ascii", "replace")
    except BlobNotFound:
        found = None
    if found != place:
        raise IllegalState(
            f"{storage.location} on the host {socket.gethostname()} is not the folder that the "
            "driver writes to. Put the checkpoint, or the stateLocation, in a folder that all "
            "hosts share, or on hdfs:// or s3a://."
        )


def prepare_result(store: TaskStore, emitted: Emission = NOTHING, **counts: Any) -> TaskResult:
    """Prepare the next version of a store and return the task's result.

    `emitted` and `counts` are fields of TaskResult. Raises IllegalState if the store cannot be
    prepared. Requires: all changes have been made.
    """
    started = time.monotonic()
    store.commit()
    metrics = store.metrics
    return TaskResult(
        prepared=(store.prepared,),
        commit_ms=millis_since(started),
        memory_bytes=metrics.memory_used_bytes,
        state_bytes=metrics.json().get("stateOnCurrentVersionSizeBytes", 0),
        emitted=emitted,
        **counts,
    )


def millis_since(started: float) -> int:
    """Whole milliseconds since a reading of `time.monotonic`."""
    return int((time.monotonic() - started) * 1000)


def read_input(
    store: StoreSpec, partition: int, schema: bytes, batches: Iterable[bytes]
) -> pa.Table:
    """Return serialized record batches as one table.

    Raises IllegalState if a row belongs to another partition. The first batch is validated in
    full, because its bytes come from the JVM: Arrow would trust wrong offsets and read past them.
    """
    table = _table_of(schema, batches)
    check_routing(table.column(HASH), partition, store.partitions)
    return table


def emit_batches(
    outbox: Outbox, partition: int, schema: bytes, batches: Iterable[bytes]
) -> Emission:
    """Emit serialized record batches unchanged: rows that Spark computed behind the last stage."""
    process.acknowledge()
    tables = (pa.Table.from_batches([batch]) for batch in _batches_of(schema, batches))
    emitted = outbox.emit(partition, tables)
    process.acknowledge()
    return emitted


def _table_of(schema: bytes, batches: Iterable[bytes]) -> pa.Table:
    arrow_schema = ipc.read_schema(pa.py_buffer(schema))
    return pa.Table.from_batches(_batches_of(schema, batches), schema=arrow_schema)


def _batches_of(schema: bytes, batches: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    arrow_schema = ipc.read_schema(pa.py_buffer(schema))
    for number, raw in enumerate(batches):
        batch = ipc.read_record_batch(pa.py_buffer(raw), arrow_schema)
        if not number:
            batch.validate(full=True)
        yield batch


def check_routing(hashes: pa.Array | pa.ChunkedArray, partition: int, partitions: int) -> None:
    """Raise IllegalState if a row belongs to another partition.

    Two partitions would each hold a part of its group, and neither could notice.
    """
    if len(hashes) and (partition_of(hashes.to_numpy(), partitions) != partition).any():
        raise IllegalState(
            f"Partition {partition} of {partitions} received rows of another partition: Spark "
            "did not partition by the key. Nothing was committed."
        )


def split_late(table: pa.Table, column: str, late: int | None) -> tuple[pa.Table, pa.Table | None]:
    """Split rows into those in time and those whose `column` is at or below `late`.

    Without late rows the second table is None. A null is never late, as in Spark.
    """
    if late is None or table.num_rows == 0:
        return table, None
    numbers = index_numbers(table.column(column).combine_chunks())
    assert numbers is not None
    is_late = numbers <= late
    if not is_late.any():
        return table, None
    return table.filter(pa.array(~is_late)), table.filter(pa.array(is_late))
