"""A small stateful operator: totals by key that close by the watermark and ring by the clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
from pyspark.sql.types import LongType, StructField, StructType

from holdfast.engine.partition.shape import StoreShape
from holdfast.ids import DEFAULT_STORE_NAME
from holdfast.spark.operators.operator import Operator, TaskSettings
from holdfast.streams.outbox import Outbox
from holdfast.streams.tasks.task import StoreSpec, Task, TaskResult, prepare_result
from holdfast.streams.watermark import Watermarks
from holdfast.types import parse_schema
from simulation.frames import Frame

DELAY_MS = 20
RING_AFTER_MS = 150
INPUT = ("k", "v", "ts")
OUTPUT = ("k", "what", "total")
UPDATED, CLOSED, RANG = range(3)
Row = tuple[int, int, int]


def struct(names: Iterable[str]) -> StructType:
    """Columns of whole numbers."""
    return StructType([StructField(name, LongType()) for name in names])


@dataclass(frozen=True)
class Total:
    """What the state holds of a key."""

    total: int = 0
    last_ms: int = 0
    due_ms: int = 0
    """When it rings, 0 for never."""


State = Mapping[int, Total]


def advance(
    state: State, rows: Iterable[Row], marks: Watermarks, *, rings: bool
) -> tuple[dict[int, Total], list[Row]]:
    """The state after a version, and what the version puts out, in no order."""
    after, out = dict(state), []
    touched = set()
    for key, value, moment in rows:
        if moment <= marks.late_ms:
            continue
        total = after.get(key, Total())
        after[key] = Total(
            total.total + value,
            max(total.last_ms, moment),
            marks.clock_ms + RING_AFTER_MS if rings else 0,
        )
        touched.add(key)
    out += [(key, UPDATED, after[key].total) for key in touched]
    for key, total in list(after.items()):
        if 0 < total.due_ms <= marks.clock_ms:
            out.append((key, RANG, total.total))
            after[key] = total = replace(total, due_ms=0)
        if total.last_ms <= marks.evict_ms:
            out.append((key, CLOSED, total.total))
            del after[key]
    return after, out


@dataclass(frozen=True)
class TotalsTask:
    """One version's work on one partition, on the real store."""

    store: StoreSpec
    base_version: int
    outbox: Outbox
    marks: Watermarks
    rings: bool

    def run(self, partition: int, schema: bytes, batches: Iterable[bytes]) -> TaskResult:
        form = ipc.read_schema(pa.py_buffer(schema))
        read = [ipc.read_record_batch(pa.py_buffer(raw), form) for raw in batches]
        rows = [tuple(row[name] for name in INPUT) for batch in read for row in batch.to_pylist()]
        store: Any = self.store.open(partition, self.base_version)
        before = {pair.key[0]: Total(*pair.value) for pair in store.iterator()}
        after, out = advance(before, rows, self.marks, rings=self.rings)
        for key, total in after.items():
            if before.get(key) != total:
                store.put((key,), (total.total, total.last_ms, total.due_ms))
        gone = before.keys() - after.keys()
        for key in sorted(gone):
            store.remove((key,))
        columns = {name: [row[n] for row in sorted(out)] for n, name in enumerate(OUTPUT)}
        table = pa.table(columns, schema=pa.schema([(name, pa.int64()) for name in OUTPUT]))
        due = [total.due_ms for total in after.values() if total.due_ms]
        emitted = self.outbox.emit(partition, [table])
        return prepare_result(
            store,
            emitted,
            rows=len(rows),
            updated=len(after),
            removed=len(gone),
            due_ms=min(due, default=None),
        )


class Totals(Operator):
    """The operator of the task."""

    title = "totals"
    emits = True

    def __init__(self, *, rings: bool) -> None:
        self.by_clock = rings

    def definition(self) -> dict[str, str]:
        return {"operator": self.title}

    def columns(self, before: Any, after: Any) -> dict[str, str]:
        return {}

    def ticks(self, mode: str) -> bool:
        return True

    def batch_frame(self, batch: Any, partitions: int, marks: Watermarks) -> Any:
        rows: list[list[Row]] = [[] for _ in range(partitions)]
        for row in batch.rows():
            rows[row[0] % partitions].append(row)
        return Frame.of(batch.sparkSession, INPUT, rows)

    def stores(self, frame: Any) -> dict[str, StoreShape]:
        value = parse_schema("total long, last_ms long, due_ms long")
        return {DEFAULT_STORE_NAME: StoreShape.of(parse_schema("k long"), value, None, 0)}

    def rows_schema(self, frame: Any) -> StructType:
        return struct(OUTPUT)

    def task(self, settings: TaskSettings) -> Task:
        assert settings.outbox is not None
        return TotalsTask(
            settings.store, settings.base_version, settings.outbox, settings.marks, self.by_clock
        )

    def output(self, rows: Any) -> Any:
        return rows
