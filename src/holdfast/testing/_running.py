"""The versions of a test driver: what a stream's loop does, one step after another.

It goes by the rules of `streams.version`, as the loop of a stream does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

import pyarrow as pa

from holdfast.backends.locations import open_storage
from holdfast.conf import StateStoreConf
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.partition.rows import index_numbers
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.commit import PreparedPartition
from holdfast.engine.versions.committer import Committer
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import IllegalState, InvalidArgument
from holdfast.streams.outbox import Emission, Outbox, OutboxReader
from holdfast.streams.processors.handle import QueryInfo
from holdfast.streams.stores.embedded import empty_state
from holdfast.streams.tasks.task import StoreSpec, TaskResult
from holdfast.streams.version import (
    MOST_TICKS,
    Observation,
    Schedule,
    edited_facts,
    initial_facts,
)
from holdfast.streams.watermark import Watermarks
from holdfast.testing._editing import KeyEdit
from holdfast.testing._keyed import KeyedWork
from holdfast.testing._work import Work, WorkSettings
from holdfast.types import Schema, one_array

CrashPoint = Literal["task", "commit", "deliver"]


@dataclass(frozen=True)
class MadeUpCrash(Exception):
    """The end of a process, made up."""

    step: CrashPoint


class VersionRunner:
    """Makes the versions of one operator, over state in this process's memory."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.now_ms = 0
        self.late_rows = 0
        """How many rows were dropped as late, in versions that were committed."""
        self._schedule = self._first_schedule()
        self._pending: list[pa.Table] = []
        self._is_undelivered = False
        self.root = f"memory://state-test-{uuid4().hex}"
        self._runtime = Runtime.system()
        self._manifest: Manifest | None = None
        self._open()
        if self._manifest is None:
            first = empty_state(self._work.shapes, self._work.partitions)
            self._manifest = self._versions.publish(first, 1, None)

    @property
    def base(self) -> Manifest:
        """The newest version."""
        assert self._manifest is not None
        return self._manifest

    @property
    def marks(self) -> Watermarks:
        """The watermarks of the newest version."""
        return Watermarks.of(self.base.watermark)

    def _open(self) -> None:
        self._versions = VersionLog(open_storage(self.root), self._runtime)
        self._committer = Committer(self._versions, self._runtime, StateStoreConf.empty)
        self._run_id = uuid4().hex
        self._manifest = self._versions.newest_intact()

    def _first_schedule(self) -> Schedule:
        return Schedule.starting(
            by_clock=self._work.by_clock, follows_watermark=self._work.follows_watermark
        )

    def ticks(self) -> list[pa.Table]:
        """What the versions without data give that are due."""
        given: list[pa.Table] = []
        first = self.base.version
        while self._schedule.is_due(self.base, self.now_ms):
            before = self.base.version
            if before - first == MOST_TICKS:
                raise IllegalState(
                    f"After {MOST_TICKS} versions without data something is still due: a timer "
                    "that fires registers one for the past each time. Register it for later than "
                    "timerValues.getCurrentProcessingTimeInMs()."
                )
            given += self.advance(self.no_rows, None, is_tick=True)
            if self.base.version == before:
                break
        return given

    def recover(self) -> list[pa.Table]:
        """Restart from what is stored; a version that was not delivered comes out now."""
        self._open()
        undelivered, self._pending = self._pending, []
        # Spark brings again what was not delivered; before that it runs no batch without data.
        first = self._first_schedule()
        self._schedule = first.begun() if self._is_undelivered else first
        self._is_undelivered = False
        return [*undelivered, *self.ticks()]

    def preload(self, rows: pa.Table, columns: Schema) -> None:
        """Make the version with the state to start with."""
        marks = self.marks.following(self.now_ms)
        results, _ = self._run(rows, marks, self._query(0), columns)
        self._commit(results, initial_facts(self.base, marks))

    def advance(
        self,
        table: pa.Table,
        crash: CrashPoint | None,
        *,
        is_tick: bool = False,
        seen: list[Observation] | None = None,
    ) -> list[pa.Table]:
        """Make the next version, and return what it emits.

        `seen` are the event times it brings, where they are not those of its rows. Raises
        MadeUpCrash where a crash was asked for.
        """
        batch = None if is_tick else self._next_batch()
        step = self._schedule.step(self.base, batch, self.now_ms)
        results, late_rows = self._run(table, step.marks, self._query(step.numbers.epoch))
        if crash == "task":
            raise MadeUpCrash("task")
        self._schedule = self._schedule.after(results)
        if step.is_void(results):
            return []
        rows = self._emitted([result.emitted for result in results])
        if crash == "commit":
            raise MadeUpCrash("commit")
        if seen is None:
            seen = [] if is_tick else self._seen(table)
        step = step.observed(seen)
        self._commit(results, step.facts())
        if not is_tick:
            self._schedule = self._schedule.begun()
        self.late_rows += late_rows
        if crash == "deliver":
            self._pending, self._is_undelivered = rows, True
            raise MadeUpCrash("deliver")
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
                root=self.root,
                operator=0,
                partitions=self._work.partitions,
                conf=StateStoreConf.empty,
                run_id=self._run_id,
                name=name,
            )
            for name, shape in self._work.shapes.items()
        }
        outbox = Outbox(self.root, self.base.version + 1, self._work.partitions, {})
        return WorkSettings(stores, self.base.version, marks, outbox, query)

    def _next_batch(self) -> dict[str, Any]:
        """The facts of the next batch, as Spark would number it."""
        last = self.base.batch
        return {"id": 0 if last is None else last["id"] + 1, "query_id": self.root, "offsets": ""}

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
        self._publish([part for result in results for part in result.prepared], facts)

    def _publish(self, prepared: list[PreparedPartition], facts: Mapping[str, Any]) -> None:
        self._manifest = self._committer.commit(self.base, None, prepared, uuid4().hex, **facts)

    def _emitted(self, emitted: list[Emission]) -> list[pa.Table]:
        table = OutboxReader(self.root, {}, tuple(emitted)).table()
        return [] if table is None else [table]

    @contextmanager
    def edit(self, key: Any) -> Iterator[KeyEdit]:
        """All stores opened to change the state of a key, and committed if anything changed."""
        if not isinstance(self._work, KeyedWork):
            raise InvalidArgument(
                "The state of a WindowedQuery cannot be set from outside. Push rows instead."
            )
        marks = self.marks.waiting(self.now_ms)
        numbers = self._schedule.step(self.base, None, self.now_ms).numbers
        edit = KeyEdit(self._work, self._setting(marks, self._query(numbers.epoch)), key)
        yield edit
        prepared = edit.prepared()
        if prepared:
            self._publish(prepared, edited_facts(self.base, marks))
            self._schedule = self._schedule.asked()

    def _query(self, batch_id: int) -> QueryInfo:
        return QueryInfo(self.root, self._run_id, batch_id)

    @property
    def no_rows(self) -> pa.Table:
        """The input of a version without rows."""
        return self._work.schema.arrow.empty_table()
