"""What every stateful task of a query has in common: its store, its input, its result."""

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
from holdfast.engine.files.segment import HASH, index_numbers
from holdfast.engine.hashing.spark_hash import partition_of
from holdfast.engine.partition.chain import StoreShape
from holdfast.engine.storage import BlobNotFound, Runtime, Storage
from holdfast.engine.versions.commit import PreparedPartition, Swap
from holdfast.engine.versions.log import RecentVersions, VersionLog
from holdfast.errors import HoldfastError, IllegalState
from holdfast.ids import DEFAULT_STORE_NAME, StateStoreId
from holdfast.store import StateStoreProvider
from holdfast.streams import process
from holdfast.streams.outbox import MOST_INLINE_BYTES, NOTHING, Emission, Outbox
from holdfast.streams.stores import open_providers
from holdfast.streams.stores.contract import ContractStore, TaskStore
from holdfast.types import Schema

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreSpec:
    """Where a store is and what it keeps; goes to every task."""

    root: str
    operator: int
    key_schema: Schema
    value_schema: Schema
    key_index: int | None
    prefix: int
    partitions: int
    conf: StateStoreConf
    run_id: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """How the root is reached; it may hold credentials."""
    name: str = DEFAULT_STORE_NAME
    place: str | None = None
    """What the file `place` of the root says to the driver, where tasks run on other hosts."""
    coordinator: CoordinatorAddress | None = None
    """Whom tasks tell what they hold, if anyone."""
    inline_bytes: int = MOST_INLINE_BYTES
    """How much of the rows that all tasks put out may be in their results."""

    @classmethod
    def of(cls, shape: StoreShape, **where: Any) -> StoreSpec:
        """The store of a shape; `where` are the other fields."""
        return cls(
            key_schema=shape.key_schema,
            value_schema=shape.value_schema,
            key_index=shape.key_index,
            prefix=shape.prefix,
            **where,
        )

    @property
    def shape(self) -> StoreShape:
        """What follows from its schemas."""
        return StoreShape.of(self.key_schema, self.value_schema, self.key_index, self.prefix)

    @property
    def is_foreign(self) -> bool:
        """Whether the state is with a provider of the user's own, known by its contract alone."""
        return self.conf.provider_class != StateStoreConf.empty.provider_class

    def open(self, partition: int, version: int) -> TaskStore:
        """One partition at a version, for update. The executor counts as its holder from then."""
        provider = self._provider(partition)
        open_providers.here.report(self._place(partition), self.coordinator, version)
        if not self.is_foreign:
            return self.engine(partition).get_store(version)
        return ContractStore(provider.get_store(version), self.key_index)

    def engine(self, partition: int) -> HDFSBackedStateStoreProvider:
        """The provider of one partition. Requires: it is Holdfast's own."""
        provider = self._provider(partition)
        assert isinstance(provider, HDFSBackedStateStoreProvider)
        return provider

    def maintain(self, partition: int) -> tuple[Swap, ...]:
        """Merge what is due of one partition's newest version; the next commit swaps it in."""
        provider = self._provider(partition)
        if not isinstance(provider, HDFSBackedStateStoreProvider):
            provider.do_maintenance()
            return ()
        provider.do_snapshot()
        self.tell_snapshots(self.name, partition, provider.finished_merges)
        return provider.finished_merges

    def tell_snapshots(self, name: str, partition: int, swaps: Iterable[Swap]) -> None:
        """Tell the coordinator of the snapshots among finished merges of an operator's store."""
        place = self.run_id, StateStoreId(self.root, self.operator, partition, name)
        for swap in swaps:
            if swap.output.kind == "snapshot":
                open_providers.here.report_snapshot(place, self.coordinator, swap.output.high)

    def _place(self, partition: int) -> open_providers.ProviderKey:
        return self.run_id, StateStoreId(self.root, self.operator, partition, self.name)

    def _provider(self, partition: int) -> StateStoreProvider:
        """The provider of one partition, kept for the next batch in this process."""
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
        """What all providers of the run read manifests from in this process."""

        def made() -> VersionLog:
            storage = open_storage(self.root, self.options, self.conf)
            return RecentVersions(storage, Runtime.system())

        return open_providers.here.history(self.run_id, made)


@dataclass(frozen=True)
class TaskResult:
    """What a task reports to the driver; only a successful task's reaches it."""

    prepared: tuple[PreparedPartition, ...]
    """What each store of the operator needs for the next version."""
    rows: int = 0
    updated: int = 0
    removed: int = 0
    late_rows: int = 0
    dropped_duplicates: int = 0
    update_ms: int = 0
    removal_ms: int = 0
    commit_ms: int = 0
    memory_bytes: int = 0
    state_bytes: int = 0
    emitted: Emission = NOTHING
    due_ms: int | None = None
    """The next moment by the clock at which the partition has something to do."""
    custom: Mapping[str, int] = field(default_factory=dict)
    """Figures of the operator's own, by Spark's names."""

    @property
    def is_idle(self) -> bool:
        """Whether the version changes nothing here, and nothing comes out."""
        unchanged = all(part.delta is None for part in self.prepared)
        return unchanged and not self.removed and not self.emitted.rows


class Task(Protocol):
    """One version's work of one operator, the same for every partition; travels to the workers."""

    @property
    def store(self) -> StoreSpec:
        """The store it works on, or one of them."""
        ...

    @property
    def base_version(self) -> int:
        """The version it starts from."""
        ...

    def run(self, partition: int, schema: bytes, batches: Iterable[bytes]) -> TaskResult:
        """Work one partition's input into state and prepare the next version."""
        ...


def run_task(task: Task, partition: int, schema: bytes, batches: Iterable[bytes]) -> TaskResult:
    """Run a task; what it raises says which one it was."""
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
        if isinstance(error, HoldfastError):  # for the driver, which gets it as text
            error.add_note(f"[{error.condition}]")
        error.add_note(f"In {place} of {task.store.root}; nothing of the version was committed.")
        raise


def check_place(storage: Storage, place: str) -> None:
    """Refuse to go on where the root is another folder than the driver's."""
    try:
        found = bytes(storage.read(PLACE)).decode("ascii", "replace")
    except BlobNotFound:
        found = None
    if found != place:
        raise IllegalState(
            f"{storage.location} is not the folder that the driver writes to: the host "
            f"{socket.gethostname()} has a disk of its own there. Put the checkpoint, or the "
            "stateLocation, in a folder that all hosts share, or on hdfs:// or s3a://."
        )


def prepare_result(store: TaskStore, emitted: Emission = NOTHING, **counts: Any) -> TaskResult:
    """Prepare the next version of a store, and the result that says so."""
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
    """Whole milliseconds since a time of the monotonic clock."""
    return int((time.monotonic() - started) * 1000)


def read_input(
    store: StoreSpec, partition: int, schema: bytes, batches: Iterable[bytes]
) -> pa.Table:
    """Raw record batches as a table, every row of it in the partition it belongs to.

    The first batch is checked in full: the bytes come from the JVM.
    """
    table = _table_of(schema, batches)
    check_routing(table.column(HASH), partition, store.partitions)
    return table


def emit_batches(
    outbox: Outbox, partition: int, schema: bytes, batches: Iterable[bytes]
) -> Emission:
    """Put raw record batches out as they are."""
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
    """Refuse rows of another partition."""
    if len(hashes) and (partition_of(hashes.to_numpy(), partitions) != partition).any():
        raise IllegalState(
            f"Partition {partition} of {partitions} was given rows of another: Spark did not "
            "partition by the key. Nothing was committed."
        )


def split_late(table: pa.Table, column: str, late: int | None) -> tuple[pa.Table, pa.Table | None]:
    """The rows that are not late by a time column, and those that are; null is never late."""
    if late is None or table.num_rows == 0:
        return table, None
    numbers = index_numbers(table.column(column).combine_chunks())
    assert numbers is not None
    is_late = numbers <= late
    if not is_late.any():
        return table, None
    return table.filter(pa.array(~is_late)), table.filter(pa.array(is_late))
