"""The task of a custom operator: runs the user's processor for each key."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.engine.partition.rows import NEVER, index_numbers
from holdfast.errors import InvalidArgument
from holdfast.reserved import HASH
from holdfast.streams.aggregates.grouping import Numbers, Runs, codes_of
from holdfast.streams.clock import EVENT_TIME, PROCESSING_TIME, Clock, ExpiredTimerInfo, LateFilter
from holdfast.streams.outbox import Outbox
from holdfast.streams.processors.forms import StateForm
from holdfast.streams.processors.groups import GroupReader, Groups
from holdfast.streams.processors.handle import Handle, QueryInfo, state_class
from holdfast.streams.processors.states import Cursor, StateVariable, Timers
from holdfast.streams.processors.variables import TIMER_VARIABLE, TIMERS, Variable
from holdfast.streams.stores.contract import TaskStore
from holdfast.streams.tasks.task import StoreSpec, TaskResult, millis_since
from holdfast.types import RowCodec, Schema, StructType

_KEYS_AT_A_TIME = 50_000
"""How many keys with due timers are handled at a time."""


class RowStyle(Protocol):
    """The form in which a processor takes and returns rows. It is pickled to the workers."""

    @property
    def timer_zone(self) -> str | None:
        """The zone of timestamps in the keys of timers; None: the local time."""
        ...

    def rows(self, batch: pa.RecordBatch) -> Any:
        """The rows of a batch, which slices cut into groups."""
        ...

    def group(self, parts: Iterator[Any]) -> Iterator[Any]:
        """What the processor gets for a group whose rows come in several parts."""
        ...

    def keys(self, columns: Sequence[pa.ChunkedArray]) -> list[tuple[Any, ...]]:
        """The keys of groups, as the processor gets them beside rows."""
        ...

    def tables(self, results: Iterator[Any]) -> Iterator[pa.Table]:
        """What the processor returned, as tables."""
        ...


@dataclass(frozen=True)
class ProcessorTask:
    """Runs a processor over one partition of a version."""

    stores: Mapping[str, StoreSpec]
    base_version: int
    processor: Any
    keys: tuple[str, ...]
    """The names of the key columns in the input."""
    rows: RowStyle
    clock: Clock
    outbox: Outbox
    query: QueryInfo
    event_time: str | None = None
    """The output's event-time column, if later operators use the watermark."""

    @property
    def store(self) -> StoreSpec:
        """One of the stores."""
        return next(iter(self.stores.values()))

    def run(
        self,
        partition: int,
        schema: bytes,
        batches: Iterable[bytes],
        start: tuple[ProcessorTask, bytes, Iterable[bytes]] | None = None,
    ) -> TaskResult:
        """Call the processor with one partition's rows and due timers; prepare the next version.

        `start` is the task of the initial state with its input, if it runs together with the first
        rows.
        """
        return _Run(self, partition).run(schema, batches, start)


@dataclass(frozen=True)
class InitialTask:
    """Calls a processor with the rows of its initial state, before the first batch."""

    task: ProcessorTask

    @property
    def store(self) -> StoreSpec:
        """One of the stores."""
        return self.task.store

    @property
    def base_version(self) -> int:
        """The version whose state the task reads."""
        return self.task.base_version

    def run(self, partition: int, schema: bytes, batches: Iterable[bytes]) -> TaskResult:
        """Call the processor with one partition's rows and prepare the first version."""
        return _Run(self.task, partition).fill(schema, batches)


class _Run:
    """One run of a task over a partition."""

    def __init__(self, task: ProcessorTask, partition: int) -> None:
        self._task = task
        self._partition = partition
        self._cursor = Cursor(task.base_version + 1)
        self._stores: dict[str, TaskStore] = {
            name: spec.open(partition, task.base_version) for name, spec in task.stores.items()
        }
        self._timers: Timers | None = None
        if TIMERS in task.stores:
            self._timers = self._open(TIMER_VARIABLE)  # type: ignore[assignment]
        self._handle = Handle(task.clock.mode, self._open, self._timers, task.query)
        self._fired = 0
        self._expired = 0

    def _open(self, variable: Variable) -> StateVariable | None:
        spec = self._task.stores.get(variable.name)
        if spec is None:
            return None
        kind = state_class(variable.kind)
        return kind(variable, spec, self._stores[variable.name], self._cursor)

    def run(
        self,
        schema: bytes,
        batches: Iterable[bytes],
        start: tuple[ProcessorTask, bytes, Iterable[bytes]] | None,
    ) -> TaskResult:
        """Handle the initial state, if there is one, then the input rows, then due timers."""
        reader = self._reader(self._task, schema, batches, self._task.clock.late)
        results = self._results(reader)
        if start is not None:
            first, its_schema, its_batches = start
            before = self._started_with(first, self._reader(first, its_schema, its_batches))
            results = chain(before, results)
        return self._worked(reader, results)

    def fill(self, schema: bytes, batches: Iterable[bytes]) -> TaskResult:
        """Handle the rows of the initial state."""
        reader = self._reader(self._task, schema, batches)
        return self._worked(reader, self._started_with(self._task, reader))

    def _reader(
        self,
        task: ProcessorTask,
        schema: bytes,
        batches: Iterable[bytes],
        late: LateFilter | None = None,
    ) -> GroupReader:
        partitions = self._task.store.partitions
        return GroupReader(schema, batches, task.keys, self._partition, partitions, late)

    def _worked(self, reader: GroupReader, results: Iterator[Any]) -> TaskResult:
        """Run the processor over `results`, which calls it, and prepare the next version."""
        task = self._task
        started = time.monotonic()
        task.processor.init(self._handle)
        self._handle.close_init()
        tables = map(self._checked, task.rows.tables(results))
        emitted = task.outbox.emit(self._partition, tables)
        updated_at = time.monotonic()
        close = getattr(task.processor, "close", None)
        if close is not None:
            close()
        due = self._next_due()
        prepared = []
        for part in self._stores.values():
            part.commit()
            prepared.append(part.prepared)
        states = self._states
        metrics = [part.metrics for part in self._stores.values()]
        return TaskResult(
            prepared=tuple(prepared),
            rows=reader.rows,
            updated=sum(state.updated for state in states),
            removed=sum(state.removed for state in states) + self._expired,
            late_rows=reader.late_rows,
            update_ms=int((updated_at - started) * 1000),
            commit_ms=millis_since(updated_at),
            memory_bytes=sum(figures.memory_used_bytes for figures in metrics),
            state_bytes=sum(
                figures.json().get("stateOnCurrentVersionSizeBytes", 0) for figures in metrics
            ),
            emitted=emitted,
            due_ms=due,
            custom=self._figures(),
        )

    def _checked(self, table: pa.Table) -> pa.Table:
        """Reject output that the operators after this one would drop as late."""
        name = self._task.event_time
        if name is not None:
            times = table.column(name).cast(pa.int64())
            if pc.any(pc.less_equal(times, self._task.clock.late_ms * 1000)).as_py():
                raise InvalidArgument(
                    f"The processor returned a row whose {name!r} is not after the watermark, so "
                    "the operators after it would drop it. Compare times with "
                    "timerValues.getCurrentWatermarkInMs() first."
                )
        return table

    def _next_due(self) -> int | None:
        """The next time by the clock at which a timer fires or an entry expires."""
        clock = self._task.clock
        if clock.mode != PROCESSING_TIME:
            return None
        now = clock.processing_ms
        moments = [
            self._stores[name].earliest_expiry(now)
            for name, variable in self._handle.variables.items()
            if variable.ttl_ms is not None
        ]
        if self._timers is not None:
            moments.append(self._timers.earliest(now))
        return min((moment for moment in moments if moment is not None), default=None)

    def _figures(self) -> dict[str, int]:
        """Spark's metrics for such an operator; those of the query come from partition 0 alone."""
        figures = {
            "numRegisteredTimers": self._handle.registered,
            "numDeletedTimers": self._handle.unregistered,
            "numExpiredTimers": self._fired,
            "numValuesRemovedDueToTTLExpiry": self._expired,
        }
        if self._partition == 0:
            figures["numDeletedStateVars"] = len(self._handle.deleted)
        for variable in self._handle.variables.values() if self._partition == 0 else ():
            kind = f"num{variable.kind.capitalize()}StateVars"
            kind += "" if variable.ttl_ms is None else "WithTTL"
            figures[kind] = figures.get(kind, 0) + 1
        return figures

    @property
    def _states(self) -> list[StateVariable]:
        timers = [] if self._timers is None else [self._timers]
        return [*self._handle.states, *timers]

    def _expire(self) -> None:
        """Remove expired entries before any call, so that no processor sees one.

        Expiry is a bound that every read applies: no entry is rewritten for it.
        """
        now = self._task.clock.now_ms
        for name, variable in self._handle.variables.items():
            if now is not None and variable.ttl_ms is not None:
                self._expired += self._stores[name].expire(now)

    # -- input ---------------------------------------------------------------------------------

    def _results(self, reader: GroupReader) -> Iterator[Any]:
        self._expire()
        for groups in reader:
            yield from self._handle_groups(groups)
        yield from self._fire()

    def _started_with(self, task: ProcessorTask, reader: GroupReader) -> Iterator[Any]:
        """Call the processor with initial rows in the form of `task`; it emits nothing."""
        processor, cursor = self._task.processor, self._cursor
        for groups in reader:
            keys = groups.keys(task.keys).rename_columns([*self._key_names, HASH])
            rows, bounds = task.rows.rows(groups.batch), groups.starts.tolist()
            self._begin(keys)
            if task.clock.mode == EVENT_TIME:
                cursor.expires_from = None  # there is no watermark yet to count a TTL from
            for at, key in enumerate(task.rows.keys(keys.select(self._key_names).columns)):
                cursor.at = at
                part = rows[bounds[at] : bounds[at + 1]]
                parts = chain((part,), map(task.rows.rows, groups.rest))
                try:
                    for row in task.rows.group(parts):
                        processor.handleInitialState(key, row, task.clock.values)
                except Exception as error:
                    note_key(error, keys, at)
                    raise
            self._end()
        yield from ()

    def _handle_groups(self, groups: Groups) -> Iterator[Any]:
        task, cursor, style = self._task, self._cursor, self._task.rows
        keys = groups.keys(task.keys).rename_columns([*self._key_names, HASH])
        rows, bounds = style.rows(groups.batch), groups.starts.tolist()
        times = self._largest_times(groups.batch, groups.starts)
        handle, values = task.processor.handleInputRows, task.clock.values
        is_whole = groups.count > 1
        self._begin(keys)
        for at, key in enumerate(style.keys(keys.select(self._key_names).columns)):
            cursor.at = at
            if times is not None:
                cursor.expires_from = times[at]
            part = rows[bounds[at] : bounds[at + 1]]
            parts = iter((part,)) if is_whole else self._parts(part, groups.rest)
            try:
                yield from iterated(handle(key, style.group(parts), values), "handleInputRows")
            except Exception as error:
                note_key(error, keys, at)
                raise
            if not is_whole:
                deque(groups.rest, maxlen=0)  # skip what the processor did not read
        self._end()

    def _parts(self, first: Any, rest: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        """The parts of a group that is too large for one batch."""
        yield first
        for batch in rest:
            times = self._largest_times(batch, np.array([0, batch.num_rows]))
            if times is not None:
                self._cursor.expires_from = max(self._cursor.expires_from or 0, times[0])
            yield self._task.rows.rows(batch)

    def _largest_times(self, batch: pa.RecordBatch, starts: Numbers) -> list[int] | None:
        """The largest event time of each group in ms, if a TTL is counted from it."""
        clock = self._task.clock
        if clock.mode != EVENT_TIME or clock.time_column is None or not self._has_ttl:
            return None
        numbers = index_numbers(batch.column(clock.time_column))
        assert numbers is not None
        # a null time counts as the watermark
        numbers = np.where(numbers == NEVER, (clock.watermark_ms or 0) * 1000, numbers)
        largest: list[int] = (np.maximum.reduceat(numbers, starts[:-1]) // 1000).tolist()
        return largest

    @property
    def _has_ttl(self) -> bool:
        return any(variable.ttl_ms for variable in self._handle.variables.values())

    # -- timers --------------------------------------------------------------------------------

    def _fire(self) -> Iterator[Any]:
        """Call the processor for every due timer, in the order of time within a key."""
        now, timers = self._task.clock.now_ms, self._timers
        if now is None or timers is None:
            return
        timers.lowest = None
        due = timers.due(now)
        if not due.num_rows:
            return
        names = self._key_names
        due = due.combine_chunks()
        codes = codes_of([due.column(name).combine_chunks() for name in names])
        moments = due.column(timers.moment_name).to_numpy()
        order = np.lexsort((moments, codes))
        firsts = Runs.of(codes).firsts
        sizes = np.diff(np.append(firsts, len(order)))
        for start in range(0, len(firsts), _KEYS_AT_A_TIME):
            some = slice(start, start + _KEYS_AT_A_TIME)
            begin = int(firsts[some][0])
            picked = order[begin : begin + int(sizes[some].sum())]
            keys = self._hashed(due.select(names).take(pa.array(order[firsts[some]])))
            owners = np.repeat(np.arange(len(firsts[some])), sizes[some])
            yield from self._fire_some(keys, owners.tolist(), moments[picked].tolist())

    def _hashed(self, keys: pa.Table) -> pa.Table:
        """Grouping keys with their hashes, as in the input."""
        hasher = self._task.stores[TIMERS].shape.prefix_shape.hasher
        columns = [column.combine_chunks() for column in keys.columns]
        return keys.append_column(HASH, pa.array(hasher.hash_columns(columns)))

    def _timer_keys(self, keys: pa.Table) -> list[Any]:
        """The keys of timers as Spark gives them, in the form of state and not of rows."""
        fields = self._task.store.key_schema.fields[: len(self._task.keys)]
        schema = Schema(StructType(fields))
        found = RowCodec(schema).from_arrow([keys.column(name) for name in schema.names])
        return list(map(StateForm(schema, self._task.rows.timer_zone).show_row, found))

    def _fire_some(self, keys: pa.Table, owners: list[int], moments: list[int]) -> Iterator[Any]:
        task, timers = self._task, self._timers
        assert timers is not None
        key_rows, values = self._timer_keys(keys), task.clock.values
        self._begin(keys)
        for at, moment in zip(owners, moments, strict=True):
            self._cursor.at = at
            try:
                given = task.processor.handleExpiredTimer(
                    key=key_rows[at],
                    timerValues=values,
                    expiredTimerInfo=ExpiredTimerInfo(moment),
                )
                yield from iterated(given, "handleExpiredTimer")
            except Exception as error:
                note_key(error, keys, at)
                raise
            timers.delete(moment)
            self._fired += 1
        self._end()

    # -- chunks --------------------------------------------------------------------------------

    @property
    def _key_names(self) -> list[str]:
        return list(self._task.store.key_schema.names[: len(self._task.keys)])

    def _begin(self, keys: pa.Table) -> None:
        self._cursor.keys = keys
        self._cursor.expires_from = self._task.clock.now_ms or 0
        for state in self._states:
            state.begin()

    def _end(self) -> None:
        self._cursor.at = -1
        for state in self._states:
            state.end()


def iterated(given: Any, method: str) -> Iterable[Any]:
    """What a method of a processor returned. Raises TypeError, as Spark does, if it is None."""
    if given is None:
        raise TypeError(
            f"{method} returned None: 'NoneType' object is not iterable. Yield rows, or return "
            "iter([]) where there are none."
        )
    rows: Iterable[Any] = given
    return rows


def note_key(error: BaseException, keys: pa.Table, at: int) -> None:
    """Add the key's hash to an error; the key itself may be confidential."""
    if HASH in keys.column_names:
        number = keys.column(HASH)[at].as_py() & (1 << 64) - 1
        error.add_note(f"While the processor handled the key with the hash {number:016x}.")
