"""A processor of chunks: many keys, their rows and their state as Arrow tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.errors import InvalidArgument
from holdfast.reserved import FOUND, HASH
from holdfast.streams.clock import Clock, TimerValues
from holdfast.streams.outbox import Outbox
from holdfast.streams.processors.groups import GroupReader, Groups
from holdfast.streams.stores.contract import TaskStore
from holdfast.streams.tasks.task import StoreSpec, TaskResult, millis_since, prepare_result
from holdfast.types import Schema, columns_of

GROUP = "_group"
"""The column of `rows` with the position of the row's key in `keys`."""
EXISTS = "_exists"
"""The column of `state` that says whether a key has state."""
_ROWS_AT_A_TIME = 250_000

ArrowProcessor = Callable[
    [pa.Table, pa.Table, pa.Table, TimerValues], tuple[pa.Table, pa.Table | None]
]
"""`processor(keys, rows, state, times)` returns the new state of the keys, and rows to emit."""


@dataclass(frozen=True)
class ArrowTask:
    """Runs a processor over one partition of a version, a chunk of keys at a time."""

    store: StoreSpec
    base_version: int
    processor: ArrowProcessor
    keys: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    """The stream's columns: their names in the input, and the user's names."""
    state: Schema
    output: Schema
    clock: Clock
    outbox: Outbox

    def run(self, partition: int, schema: bytes, batches: Iterable[bytes]) -> TaskResult:
        """Call the processor with one partition's rows and prepare the next version."""
        started = time.monotonic()
        store = self.store.open(partition, self.base_version)
        reader = GroupReader(
            schema,
            batches,
            self.keys,
            partition,
            self.store.partitions,
            self.clock.late,
            _ROWS_AT_A_TIME,
        )
        counts = _Counts()
        emitted = self.outbox.emit(partition, self._results(reader, store, counts))
        return prepare_result(
            store,
            emitted,
            rows=reader.rows,
            updated=counts.updated,
            removed=counts.removed,
            late_rows=reader.late_rows,
            update_ms=millis_since(started),
        )

    def _results(
        self, reader: GroupReader, store: TaskStore, counts: _Counts
    ) -> Iterator[pa.Table]:
        for groups in reader:
            keys = groups.keys(self.keys)
            keys = keys.rename_columns([*self.store.key_schema.names, HASH])
            for batch, owners in _parts(groups):
                yield from self._handle(keys, batch, owners, store, counts)

    def _handle(
        self,
        keys: pa.Table,
        batch: pa.RecordBatch,
        owners: pa.Array,
        store: TaskStore,
        counts: _Counts,
    ) -> Iterator[pa.Table]:
        rows = pa.table(
            [*(batch.column(name) for name, _ in self.columns), owners],
            names=[*(name for _, name in self.columns), GROUP],
        )
        names = self.store.value_schema.names
        found = store.get_many(keys)
        state = found.select([*names, FOUND]).rename_columns([*self.state.names, EXISTS])
        shown = keys.drop_columns([HASH])
        given: object = self.processor(shown, rows, state, self.clock.values)
        if not isinstance(given, tuple) or len(given) != 2:
            raise InvalidArgument(
                "The processor must return two tables: the new state of its keys, and its output."
            )
        new, output = given
        self._write(keys, new, store, counts)
        if output is not None and output.num_rows:
            yield pa.table(columns_of(output, self.output), schema=self.output.arrow)

    def _write(self, keys: pa.Table, new: pa.Table, store: TaskStore, counts: _Counts) -> None:
        if new.num_rows != keys.num_rows:
            raise InvalidArgument(
                f"The processor returned state of {new.num_rows} keys, but got {keys.num_rows}. "
                "Return a row for each key, in the order of the keys, with false in the column "
                f"{EXISTS} if a key has no state."
            )
        stays = np.ones(new.num_rows, bool)
        if EXISTS in new.column_names:
            stays = new.column(EXISTS).to_numpy().astype(bool)
        values = pa.table(columns_of(new, self.state), names=list(self.store.value_schema.names))
        put = keys
        for name, column in zip(values.column_names, values.columns, strict=True):
            put = put.append_column(name, column)
        if stays.any():
            store.put_many(put.filter(pa.array(stays)))
        if not stays.all():
            store.remove_many(keys.filter(pa.array(~stays)))
        counts.updated += int(stays.sum())
        counts.removed += int((~stays).sum())


@dataclass
class _Counts:
    updated: int = 0
    removed: int = 0


def _parts(groups: Groups) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    """The rows of some groups with the group of each; a large group yields several parts."""
    sizes = np.diff(groups.starts)
    yield groups.batch, pa.array(np.repeat(np.arange(groups.count), sizes))
    for batch in groups.rest:
        yield batch, pa.array(np.zeros(batch.num_rows, np.int64))
