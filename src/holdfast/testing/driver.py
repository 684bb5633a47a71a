"""Runs a processor without Spark or a JVM: for unit tests of processors.

    driver = StateTestDriver(Totals(), keys="id", schema="id string, v long", output=OUTPUT)
    assert driver.push([{"id": "a", "v": 3}]) == [Row(id="a", total=3)]
    assert driver.state("total") == {("a",): (3,)}

It is the code that runs in a stream's tasks, on state in this process's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import uuid4

import numpy as np
import pyarrow as pa

from holdfast.backends.locations import open_storage
from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.chain import StoreShape
from holdfast.engine.committer import Committer
from holdfast.engine.hashing import KeyHasher, partition_of
from holdfast.engine.manifest import Manifest
from holdfast.engine.segment import HASH, index_numbers
from holdfast.engine.storage import Runtime
from holdfast.engine.versions import VersionLog
from holdfast.errors import InvalidArgument
from holdfast.inspection import read_state
from holdfast.streams.clock import NO_TIME, Clock, checked_time_mode
from holdfast.streams.embedded import empty_state
from holdfast.streams.handle import QueryInfo, fresh, variables_of
from holdfast.streams.outbox import Emitted, Outbox, OutboxReader
from holdfast.streams.processing import InitialTask, ProcessorTask
from holdfast.streams.rowwise import Rowwise
from holdfast.streams.task import StoreSpec, Task, TaskResult
from holdfast.streams.variables import TIMER_VARIABLE, TIMERS, Variable, shapes_of
from holdfast.streams.watermark import Watermarks
from holdfast.types import Row, RowCodec, Schema, StructType, parse_schema

Step = Literal["task", "commit", "deliver"]
Rows = Iterable[Mapping[str, Any] | Sequence[Any]]


@dataclass(frozen=True)
class _Crash(Exception):
    """The end of a process, made up."""

    step: Step


class StateTestDriver:
    """One stateful operator with a processor of the user's.

    `keys` are the grouping columns of `schema`; `watermark` is a column and a delay in ms. Time
    goes on by `set_clock` and by the event times that are pushed. After every call the versions
    without data are run that a stream would run.
    """

    def __init__(
        self,
        processor: Any,
        keys: str | Sequence[str],
        schema: object,
        output: object,
        *,
        time_mode: str = "None",
        watermark: tuple[str, int] | None = None,
        partitions: int = 2,
        zone: str = "UTC",
    ) -> None:
        self._processor = processor
        self._schema = parse_schema(schema)
        self._keys = [keys] if isinstance(keys, str) else list(keys)
        self._output = parse_schema(output)
        self._mode = checked_time_mode(time_mode)
        self._watermark = watermark
        self._partitions = partitions
        self._zone = zone
        self._now_ms = 0
        self._due_ms: int | None = None
        self._pending: list[Any] = []
        self._root = f"memory://state-test-{uuid4().hex}"
        self._runtime = Runtime.system()
        self._variables = variables_of(processor, self._mode).variables
        self._manifest: Manifest | None = None
        self._open()
        if self._manifest is None:
            self._manifest = self._versions.publish(
                empty_state(self._shapes, self._partitions), 1, None
            )

    # -- what tests call -----------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The newest version."""
        return self._base.version

    @property
    def location(self) -> str:
        """Where the state is, for everything that reads a root in this process."""
        return self._root

    @property
    def watermark_ms(self) -> int:
        """The watermark that the next rows are judged by."""
        return self._marks.next_ms

    def push(self, rows: Rows, *, crash: Step | None = None, idle: bool = True) -> list[Any]:
        """A batch of rows; what comes out of it and, where the stream is idle then, after it.

        With `crash` the process ends in mid-version: before its work counts ("task"), before its
        commit or before its delivery. Nothing comes out; `recover` goes on.
        """
        try:
            given = self._version(self._batches(rows, self._schema), crash)
        except _Crash:
            return []
        return [*given, *self.tick()] if idle else given

    def tick(self) -> list[Any]:
        """What an idle stream gives: the versions without data that are due."""
        given: list[Any] = []
        while self._mode != NO_TIME and self._is_due:
            before = self.version
            given += self._version([[] for _ in range(self._partitions)], None)
            if self.version == before:
                break
        return given

    def recover(self) -> list[Any]:
        """Start anew on what is stored; a version that was not delivered comes out now."""
        self._open()
        undelivered, self._pending = self._pending, []
        return [*undelivered, *self.tick()]

    def preload(self, rows: Rows, schema: object = None) -> None:
        """Rows for handleInitialState. Requires: nothing was pushed yet."""
        if self.version:
            raise InvalidArgument("State to start with comes before the first rows.")
        columns = self._schema if schema is None else parse_schema(schema)
        self._version(self._batches(rows, columns), None, columns)

    def set_clock(self, moment: int | datetime) -> list[Any]:
        """Let the clock go on to a moment, in ms or as a datetime; what timers give then."""
        now = int(moment.timestamp() * 1000) if isinstance(moment, datetime) else moment
        self._now_ms = max(self._now_ms, now)
        return self.tick()

    def advance_clock(self, by: int | timedelta) -> list[Any]:
        """Let the clock go on by some ms."""
        span = int(by.total_seconds() * 1000) if isinstance(by, timedelta) else by
        return self.set_clock(self._now_ms + span)

    def state(self, name: str, at: int | None = None) -> dict[Row, Any]:
        """What a variable holds at a version, by grouping key: a value, a list or a dict."""
        live = read_state(self._root, operator=0, store=name)
        table = (live if at is None else live.at(at)).to_arrow()
        kind = TIMER_VARIABLE if name == TIMERS else self._variables[name]
        return _held(table, kind, len(self._keys), self._shapes[name].key_schema)

    def timers(self) -> dict[Row, list[int]]:
        """The timers of each key."""
        return {key: sorted(own[0] for own in held) for key, held in self.state(TIMERS).items()}

    # -- versions ------------------------------------------------------------------------------

    def _open(self) -> None:
        self._versions = VersionLog(open_storage(self._root), self._runtime)
        self._committer = Committer(self._versions, self._runtime, StateStoreConf.empty)
        self._run_id = uuid4().hex
        self._manifest = self._versions.newest_intact()
        self._due_ms = 0

    @property
    def _base(self) -> Manifest:
        assert self._manifest is not None
        return self._manifest

    @property
    def _marks(self) -> Watermarks:
        return Watermarks.from_json(self._base.watermark or Watermarks().json())

    @property
    def _shapes(self) -> dict[str, StoreShape]:
        return shapes_of(self._variables, self._grouping, has_time=self._mode != NO_TIME)

    @property
    def _grouping(self) -> Schema:
        by_name = {field.name: field for field in self._schema}
        missing = [name for name in self._keys if name not in by_name]
        if missing:
            raise InvalidArgument(f"The key {missing[0]!r} is no column of {self._schema.ddl()}.")
        return Schema(StructType(tuple(by_name[name] for name in self._keys)))

    @property
    def _is_due(self) -> bool:
        if self._mode == "eventtime":
            return self._marks.is_tick_due
        return self._due_ms is not None and self._due_ms <= self._now_ms

    def _version(
        self,
        batches: list[list[pa.RecordBatch]],
        crash: Step | None,
        initial: Schema | None = None,
    ) -> list[Any]:
        marks = self._marks.following(self._now_ms)
        task = self._task(marks, initial or self._schema)
        runner: Task = task if initial is None else InitialTask(task)
        schema = _input_schema(initial or self._schema)
        results = [
            runner.run(
                partition,
                schema.serialize().to_pybytes(),
                [batch.serialize().to_pybytes() for batch in own],
            )
            for partition, own in enumerate(batches)
        ]
        if crash == "task":
            raise _Crash("task")
        self._due_ms = min((r.due_ms for r in results if r.due_ms is not None), default=None)
        is_tick = not any(batches)
        if is_tick and self._mode != "eventtime" and all(r.is_idle for r in results):
            return []
        rows = self._rows([result.emitted for result in results])
        if crash == "commit":
            raise _Crash("commit")
        self._commit(results, marks if initial else self._observed(marks, batches))
        if crash == "deliver":
            self._pending = rows
            raise _Crash("deliver")
        return rows

    def _observed(self, marks: Watermarks, batches: list[list[pa.RecordBatch]]) -> Watermarks:
        if self._watermark is None:
            return marks
        column, delay = self._watermark
        at = self._schema.names.index(column)
        largest = []
        for batch in (batch for own in batches for batch in own):
            numbers = index_numbers(batch.column(at).drop_null())
            if numbers is not None and len(numbers):
                largest.append(int(numbers.max()) // 1000)
        return marks.observed([max(largest, default=None)], [delay])

    def _commit(self, results: list[TaskResult], marks: Watermarks) -> None:
        prepared = [part for result in results for part in result.prepared]
        self._manifest = self._committer.commit(
            self._base, None, prepared, uuid4().hex, watermark=marks.json()
        )

    def _task(self, marks: Watermarks, columns: Schema) -> ProcessorTask:
        stores = {
            name: StoreSpec.of(
                shape,
                root=self._root,
                operator=0,
                partitions=self._partitions,
                conf=StateStoreConf.empty,
                run_id=self._run_id,
                name=name,
            )
            for name, shape in self._shapes.items()
        }
        names = [f"c{number}" for number in range(len(columns))]
        known = dict(zip(columns.names, names, strict=True))
        timed = None if self._watermark is None else known.get(self._watermark[0])
        clock = Clock(
            self._mode, marks.clock_ms, None if timed is None else marks.evict_ms,
            marks.late_ms, timed,
        )  # fmt: skip
        return ProcessorTask(
            stores=stores,
            base_version=self.version,
            processor=fresh(self._processor),
            keys=tuple(known[name] for name in self._keys),
            rows=Rowwise(
                tuple(zip(names, columns.names, strict=True)), self._output, self._zone, _row_maker
            ),
            clock=clock,
            outbox=Outbox(self._root, self.version + 1, self._partitions, {}),
            query=QueryInfo(self._root, self._run_id, self.version),
        )

    def _batches(self, rows: Rows, schema: Schema) -> list[list[pa.RecordBatch]]:
        """Rows as the tasks of each partition get them."""
        codec = RowCodec(schema)
        columns = codec.to_arrow([codec.encode(row) for row in rows])
        at = [schema.names.index(name) for name in self._keys]
        hashes = KeyHasher(self._grouping, len(at)).hash_columns([columns[i] for i in at])
        order = np.argsort(hashes, kind="stable")
        table = pa.RecordBatch.from_arrays(
            [*columns, pa.array(hashes)], schema=_input_schema(schema)
        ).take(pa.array(order))
        places = partition_of(table.column(table.num_columns - 1).to_numpy(), self._partitions)
        parts = [table.filter(pa.array(places == index)) for index in range(self._partitions)]
        return [[part] if part.num_rows else [] for part in parts]

    def _rows(self, emitted: list[Emitted]) -> list[Any]:
        table = OutboxReader(self._root, {}, tuple(emitted)).table()
        if table is None:
            return []
        make = _row_maker(self._output.names)
        return [make(cells) for cells in zip(*(c.to_pylist() for c in table.columns), strict=True)]

    def close(self) -> None:
        """Give the memory back."""
        MemoryStorage.forget(self._root.removeprefix("memory://"))


def _input_schema(schema: Schema) -> pa.Schema:
    fields = [field.with_name(f"c{number}") for number, field in enumerate(schema.arrow)]
    return pa.schema([*fields, pa.field(HASH, pa.int64())])


def _held(table: pa.Table, variable: Variable, prefix: int, keys: Schema) -> dict[Row, Any]:
    """A store's rows by grouping key, as the variable shows them."""
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    width = len(keys)
    held: dict[Row, Any] = {}
    if variable.kind == "value":
        return {row[:width]: row[width:] for row in rows}
    if variable.kind == "list":
        for row in sorted(rows, key=lambda row: row[prefix]):
            held.setdefault(row[:prefix], []).append(row[width:])
        return held
    for row in rows:
        held.setdefault(row[:prefix], {})[row[prefix:width]] = row[width:]
    return held


def _row_maker(names: tuple[str, ...]) -> Callable[[tuple[Any, ...]], Any]:
    """PySpark's own Row: processors are written for it."""
    from pyspark.sql import Row as SparkRow

    named = SparkRow(*names)
    return lambda cells: named(*cells)
