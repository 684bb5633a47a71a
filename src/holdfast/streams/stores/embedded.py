"""Tasks whose state is in this process's memory, for as long as they run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any
from uuid import uuid4

import pyarrow as pa

from holdfast.backends.memory import MemoryStorage
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.partition.shape import StoreShape
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.first import first_version, new_store_entries
from holdfast.engine.versions.log import VersionLog
from holdfast.ids import OPERATOR
from holdfast.streams.outbox import OutboxReader
from holdfast.streams.tasks.task import StoreSpec
from holdfast.streams.watermark import Watermarks

START, BATCH_ROWS = "_start", "_batch"
"""Struct columns: the rows of the initial state, and the other rows."""


def empty_state(shapes: Mapping[str, StoreShape], partitions: int) -> Manifest:
    """Version 0 of one operator's stores, without rows."""
    return first_version(
        {OPERATOR: new_store_entries(shapes, partitions)},
        Runtime.system(),
        scope={"kind": "query", "operators": []},
        watermark=Watermarks().json(),
    )


@dataclass(frozen=True)
class EmbeddedTask:
    """Runs a task over rows that are no stream; its state is gone afterwards.

    Requires: the task has one partition, an outbox, and its first version to make.
    """

    task: Any
    start: Any = None
    """The task for the rows of the initial state, if there are any."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task over rows in the order of their keys, and yield what it emits.

        With a `start`, the input has the two struct columns START and BATCH_ROWS, one of which is
        null in each row: first come the rows of the initial state, then the others.
        """
        rows = iter(batches)
        first = next(rows, None)
        if first is None:
            return
        name = f"embedded-{uuid4().hex}"
        task, stores = self._moved(f"memory://{name}")
        try:
            shapes = {each.name: each.shape for each in stores}
            versions = VersionLog(MemoryStorage.named(name), Runtime.system())
            versions.publish(empty_state(shapes, 1), 1, None)
            batches = chain((first,), rows)
            if self.start is None:
                result = task.run(0, _schema(first), _raw(batches))
            else:
                halves = _Halves(batches)
                starts = _raw(halves.starts())
                schemas = [_schema(_cells(first.slice(0, 0), name)) for name in (START, BATCH_ROWS)]
                start = self.start, schemas[0], starts
                result = task.run(0, schemas[1], _raw(halves.rows()), start)
            yield from OutboxReader(f"memory://{name}", {}, (result.emitted,)).read(0)
        finally:
            MemoryStorage.forget(name)

    def _moved(self, root: str) -> tuple[Any, list[StoreSpec]]:
        """The task with its stores moved to another root, and those stores."""
        run_id = uuid4().hex
        changes: dict[str, Any] = {"outbox": replace(self.task.outbox, root=root)}
        if "stores" in {field.name for field in fields(self.task)}:
            changes["stores"] = {
                name: replace(store, root=root, run_id=run_id)
                for name, store in self.task.stores.items()
            }
            stores = list(changes["stores"].values())
        else:
            changes["store"] = replace(self.task.store, root=root, run_id=run_id)
            stores = [changes["store"]]
        return replace(self.task, **changes), stores


class _Halves:
    """Splits record batches with START and BATCH_ROWS where the rows begin; read them in order."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches

    def starts(self) -> Iterator[pa.RecordBatch]:
        """The rows of the initial state."""
        for batch in self._batches:
            count = batch.num_rows - batch.column(START).null_count
            yield _cells(batch.slice(0, count), START)
            if count < batch.num_rows:
                self._batches = chain((batch.slice(count),), self._batches)
                return

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The other rows."""
        for batch in self._batches:
            yield _cells(batch, BATCH_ROWS)


def _cells(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(batch.column(name))


def _schema(batch: pa.RecordBatch) -> bytes:
    schema: bytes = batch.schema.serialize().to_pybytes()
    return schema


def _raw(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    for batch in batches:
        yield batch.serialize().to_pybytes()
