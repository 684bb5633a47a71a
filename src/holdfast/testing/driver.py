"""Runs a processor or a windowed query without Spark or a JVM: for unit tests.

    driver = StateTestDriver(Totals(), keys="id", schema="id string, v long", output=OUTPUT)
    assert driver.push([{"id": "a", "v": 3}]) == [Row(id="a", total=3)]
    assert driver.state("total") == {("a",): (3,)}

It is the code that runs in a stream's tasks, on state in this process's memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import uuid4

import pyarrow as pa

from holdfast.backends.locations import open_storage
from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.partition.rows import index_numbers
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.committer import Committer
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import IllegalState, InvalidArgument
from holdfast.ids import DEFAULT_STORE_NAME
from holdfast.reading import read_state
from holdfast.streams.outbox import Emission, Outbox, OutboxReader
from holdfast.streams.processors.handle import QueryInfo
from holdfast.streams.processors.variables import TIMERS
from holdfast.streams.stores.embedded import empty_state
from holdfast.streams.tasks.task import StoreSpec, TaskResult
from holdfast.streams.version import (
    MOST_TICKS,
    Observation,
    Schedule,
    initial_facts,
)
from holdfast.streams.watermark import Watermarks
from holdfast.testing._durations import micros
from holdfast.testing._processed import ProcessorWork
from holdfast.testing._work import Work, WorkSettings
from holdfast.testing.windowed import Windowed, WindowedWork
from holdfast.types import Row, RowCodec, Schema, one_array, parse_schema

CrashPoint = Literal["task", "commit", "deliver"]
InputRows = Iterable[Mapping[str, Any] | Sequence[Any]]


@dataclass(frozen=True)
class _Crash(Exception):
    """The end of a process, made up."""

    step: CrashPoint


class StateTestDriver:
    """One stateful operator: a processor of the user's, or a `Windowed` query.

    `schema` are the columns of the rows that are pushed. A processor needs `keys`, the grouping
    columns among them, and `output`, the columns it gives; `watermark` is a column and a delay,
    in ms or as "10 minutes". A `Windowed` says all of this itself.

    Time goes on by `set_clock` and by the event times that are pushed. After every call the
    versions without data are run that a stream would run.
    """

    def __init__(
        self,
        processor: Any,
        keys: str | Sequence[str] | None = None,
        schema: object = None,
        output: object = None,
        *,
        time_mode: str = "None",
        watermark: tuple[str, int | str] | None = None,
        partitions: int = 2,
        zone: str = "UTC",
    ) -> None:
        self._work: Work
        if isinstance(processor, Windowed):
            if not (keys is output is watermark is None and time_mode == "None"):
                raise InvalidArgument(
                    "A Windowed query has keys, a watermark and output of its own: give the "
                    "driver its schema alone."
                )
            self._work = WindowedWork(processor, _needed(schema, "schema"), partitions)
        else:
            self._work = ProcessorWork(
                processor,
                _names(keys),
                _needed(schema, "schema"),
                _needed(output, "output"),
                time_mode=time_mode,
                watermark=_with_ms(watermark),
                partitions=partitions,
                zone=zone,
            )
        self._now_ms = 0
        self._late_rows = 0
        self._schedule = self._first_schedule()
        self._pending: list[Any] = []
        self._is_undelivered = False
        self._root = f"memory://state-test-{uuid4().hex}"
        self._runtime = Runtime.system()
        self._manifest: Manifest | None = None
        self._open()
        if self._manifest is None:
            first = empty_state(self._work.shapes, self._work.partitions)
            self._manifest = self._versions.publish(first, 1, None)

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

    @property
    def late_rows(self) -> int:
        """How many rows were dropped as late so far, in versions that were committed."""
        return self._late_rows

    def push(
        self, rows: InputRows, *, crash: CrashPoint | None = None, idle: bool = True
    ) -> list[Any]:
        """A batch of rows; what comes out of it and, where the stream is idle then, after it.

        With `crash` the process ends in mid-version: before its work counts ("task"), before its
        commit or before its delivery. Nothing comes out; `recover` goes on.
        """
        try:
            given = self._version(_table(rows, self._work.schema), crash)
        except _Crash:
            return []
        return [*given, *self.tick()] if idle else given

    def tick(self) -> list[Any]:
        """What an idle stream gives: the versions without data that are due."""
        given: list[Any] = []
        first = self.version
        while self._schedule.is_due(self._base, self._now_ms):
            before = self.version
            if before - first == MOST_TICKS:
                raise IllegalState(
                    f"After {MOST_TICKS} versions without data something is still due: a timer "
                    "that fires registers one for the past each time. Register it for later than "
                    "timerValues.getCurrentProcessingTimeInMs()."
                )
            given += self._version(_table([], self._work.schema), None, is_tick=True)
            if self.version == before:
                break
        return given

    def recover(self) -> list[Any]:
        """Start anew on what is stored; a version that was not delivered comes out now."""
        self._open()
        undelivered, self._pending = self._pending, []
        # Spark brings again what was not delivered; before that it runs no batch without data.
        first = self._first_schedule()
        self._schedule = first.begun() if self._is_undelivered else first
        self._is_undelivered = False
        return [*undelivered, *self.tick()]

    def preload(self, rows: InputRows, schema: object = None) -> None:
        """Rows for handleInitialState. Requires: nothing was pushed yet."""
        if self.version:
            raise InvalidArgument("State to start with comes before the first rows.")
        columns = self._work.schema if schema is None else parse_schema(schema)
        marks = self._marks.following(self._now_ms)
        query = QueryInfo(self._root, self._run_id, 0)
        results, _ = self._run(_table(rows, columns), marks, query, columns)
        self._commit(results, initial_facts(self._base, marks))

    def set_clock(self, moment: int | datetime, *, idle: bool = True) -> list[Any]:
        """Let the clock go on to a moment, in ms or as a datetime; what timers give then.

        Where the stream is not idle, they wait for the next rows.
        """
        now = int(moment.timestamp() * 1000) if isinstance(moment, datetime) else moment
        self._now_ms = max(self._now_ms, now)
        return self.tick() if idle else []

    def advance_clock(self, by: int | timedelta, *, idle: bool = True) -> list[Any]:
        """Let the clock go on by some ms, as `set_clock` does."""
        span = int(by.total_seconds() * 1000) if isinstance(by, timedelta) else by
        return self.set_clock(self._now_ms + span, idle=idle)

    def state(self, name: str = DEFAULT_STORE_NAME, at: int | None = None) -> dict[Row, Any]:
        """What is held at a version: of a variable by grouping key a value, a list or a dict; of
        a `Windowed` query, which has one store, by key and window the partial aggregates.
        """
        live = read_state(self._root, operator=0, store=name)
        return self._work.held(name, (live if at is None else live.at(at)).to_arrow())

    def timers(self) -> dict[Row, list[int]]:
        """The timers of each key."""
        return {key: sorted(own[0] for own in held) for key, held in self.state(TIMERS).items()}

    def close(self) -> None:
        """Give the memory back."""
        MemoryStorage.forget(self._root.removeprefix("memory://"))

    # -- versions ------------------------------------------------------------------------------

    def _open(self) -> None:
        self._versions = VersionLog(open_storage(self._root), self._runtime)
        self._committer = Committer(self._versions, self._runtime, StateStoreConf.empty)
        self._run_id = uuid4().hex
        self._manifest = self._versions.newest_intact()

    def _first_schedule(self) -> Schedule:
        return Schedule.starting(
            by_clock=self._work.by_clock, follows_watermark=self._work.follows_watermark
        )

    @property
    def _base(self) -> Manifest:
        assert self._manifest is not None
        return self._manifest

    @property
    def _marks(self) -> Watermarks:
        return Watermarks.of(self._base.watermark)

    def _version(
        self, table: pa.Table, crash: CrashPoint | None, *, is_tick: bool = False
    ) -> list[Any]:
        batch = None if is_tick else self._next_batch()
        step = self._schedule.step(self._base, batch, self._now_ms)
        query = QueryInfo(self._root, self._run_id, step.numbers.epoch)
        results, late_rows = self._run(table, step.marks, query)
        if crash == "task":
            raise _Crash("task")
        self._schedule = self._schedule.after(results)
        if step.is_void(results):
            return []
        rows = self._rows([result.emitted for result in results])
        if crash == "commit":
            raise _Crash("commit")
        step = step.observed(() if is_tick else self._seen(table))
        self._commit(results, step.facts())
        if not is_tick:
            self._schedule = self._schedule.begun()
        self._late_rows += late_rows
        if crash == "deliver":
            self._pending, self._is_undelivered = rows, True
            raise _Crash("deliver")
        return rows

    def _run(
        self,
        table: pa.Table,
        marks: Watermarks,
        query: QueryInfo,
        initial: Schema | None = None,
    ) -> tuple[list[TaskResult], int]:
        """The results of the tasks, and how many rows were late."""
        setting = self._setting(marks, query)
        given = self._work.given(table, marks)
        if initial is None:
            task = self._work.task(setting)
        else:
            task = self._work.initial(setting, initial)
        schema = given.schema.serialize().to_pybytes()
        results = [
            task.run(partition, schema, [batch.serialize().to_pybytes() for batch in own])
            for partition, own in enumerate(given.parts)
        ]
        return results, given.late_rows + sum(result.late_rows for result in results)

    def _setting(self, marks: Watermarks, query: QueryInfo) -> WorkSettings:
        stores = {
            name: StoreSpec.of(
                shape,
                root=self._root,
                operator=0,
                partitions=self._work.partitions,
                conf=StateStoreConf.empty,
                run_id=self._run_id,
                name=name,
            )
            for name, shape in self._work.shapes.items()
        }
        outbox = Outbox(self._root, self.version + 1, self._work.partitions, {})
        return WorkSettings(stores, self.version, marks, outbox, query)

    def _next_batch(self) -> dict[str, Any]:
        """The facts of the next batch, as Spark would number it."""
        last = self._base.batch
        return {"id": 0 if last is None else last["id"] + 1, "query_id": self._root, "offsets": ""}

    def _seen(self, table: pa.Table) -> list[Observation]:
        """What the query's withWatermark saw of a batch, if it has one."""
        if self._work.watermark is None:
            return []
        column, delay = self._work.watermark
        numbers = index_numbers(one_array(table.column(column)).drop_null())
        assert numbers is not None
        largest = int(numbers.max()) // 1000 if len(numbers) else None
        return [Observation(largest, delay)]

    def _commit(self, results: list[TaskResult], facts: Mapping[str, Any]) -> None:
        prepared = [part for result in results for part in result.prepared]
        self._manifest = self._committer.commit(self._base, None, prepared, uuid4().hex, **facts)

    def _rows(self, emitted: list[Emission]) -> list[Any]:
        table = OutboxReader(self._root, {}, tuple(emitted)).table()
        return [] if table is None else self._work.rows(table)


def _table(rows: InputRows, schema: Schema) -> pa.Table:
    codec = RowCodec(schema)
    columns = codec.to_arrow([codec.encode(row) for row in rows])
    return pa.Table.from_arrays(columns, schema=schema.arrow)


def _names(keys: str | Sequence[str] | None) -> list[str]:
    if keys is None:
        raise InvalidArgument("A processor needs keys: the names of its grouping columns.")
    return [keys] if isinstance(keys, str) else list(keys)


def _needed(schema: object, what: str) -> Schema:
    if schema is None:
        raise InvalidArgument(f"The driver needs {what}, as in {what}='id string, v long'.")
    return parse_schema(schema)


def _with_ms(watermark: tuple[str, int | str] | None) -> tuple[str, int] | None:
    if watermark is None:
        return None
    column, delay = watermark
    return column, delay if isinstance(delay, int) else micros(delay) // 1000
