"""The task of applyInPandasWithState: calls the user's function for each key."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.reserved import HASH
from holdfast.streams.clock import PROCESSING_TIME, Clock
from holdfast.streams.outbox import Outbox
from holdfast.streams.processors.groups import GroupReader, Groups
from holdfast.streams.processors.pandas import PandasFrames, key_cells
from holdfast.streams.processors.states import Cursor, ValueState
from holdfast.streams.processors.variables import Variable
from holdfast.streams.tasks.processor import note_key
from holdfast.streams.tasks.task import StoreSpec, TaskResult, millis_since, prepare_result
from holdfast.types import MILLISECONDS, AtomicType, Field, Row, Schema, StructType

STORE = "state"
STATE, TIMEOUT = "state", "timeout_ms"
_KEYS_AT_A_TIME = 50_000
"""How many timed-out keys are handled at a time."""


def held_as(state: Schema) -> Variable:
    """What is stored for each key: the state (null if it has none), and when the key times out."""
    field = Field(STATE, StructType(state.fields), True)
    timeout = Field(TIMEOUT, AtomicType("long")).meaning_that(MILLISECONDS)
    return Variable(STORE, "value", Schema(StructType((field, timeout))))


class KeyState(Protocol):
    """The state of a key that the function gets, and what the function did to it."""

    @property
    def value(self) -> Row | None:
        """The current value."""
        ...

    @property
    def is_changed(self) -> bool:
        """Whether it was updated or removed."""
        ...

    @property
    def timeout_ms(self) -> int | None:
        """When the key times out, if the function set that in this call."""
        ...


Function = Callable[[tuple[Any, ...], Iterable[Any], KeyState], Iterable[Any]]


@dataclass(frozen=True)
class GroupStateTask:
    """Calls a function for one partition's keys: those with rows, then those that timed out.

    `new_state(value, has_timed_out)` makes the state object that the function gets.
    """

    store: StoreSpec
    base_version: int
    function: Function
    new_state: Callable[[Row | None, bool], KeyState]
    variable: Variable
    keys: tuple[str, ...]
    """The names of the key columns in the input."""
    rows: PandasFrames
    clock: Clock
    outbox: Outbox

    def run(self, partition: int, schema: bytes, batches: Iterable[bytes]) -> TaskResult:
        """Call the function and prepare the next version."""
        return _Run(self, partition).run(schema, batches)


class _Run:
    """One run of a task over a partition."""

    def __init__(self, task: GroupStateTask, partition: int) -> None:
        self._task = task
        self._partition = partition
        self._cursor = Cursor(task.base_version + 1)
        self._store = task.store.open(partition, task.base_version)
        self._held = ValueState(task.variable, task.store, self._store, self._cursor)
        self._names = list(task.store.key_schema.names)
        self._timeout_name = task.store.value_schema.names[1]
        self._next_ms: int | None = None
        """The earliest timeout that is still to come."""

    def run(self, schema: bytes, batches: Iterable[bytes]) -> TaskResult:
        task = self._task
        started = time.monotonic()
        reader = GroupReader(
            schema, batches, task.keys, self._partition, task.store.partitions, task.clock.late
        )
        emitted = task.outbox.emit(self._partition, task.rows.tables(self._results(reader)))
        return prepare_result(
            self._store,
            emitted,
            rows=reader.rows,
            updated=self._held.updated,
            removed=self._held.removed,
            late_rows=reader.late_rows,
            update_ms=millis_since(started),
            due_ms=self._due_ms,
        )

    @property
    def _due_ms(self) -> int | None:
        """The next timeout by the clock; a key times out only after its time, so one ms later."""
        is_by_clock = self._task.clock.mode == PROCESSING_TIME
        return self._next_ms + 1 if is_by_clock and self._next_ms is not None else None

    def _results(self, reader: GroupReader) -> Iterator[Any]:
        for groups in reader:
            yield from self._handle(groups)
        yield from self._time_out()

    def _handle(self, groups: Groups) -> Iterator[Any]:
        style, bounds = self._task.rows, groups.starts.tolist()
        keys = groups.keys(self._task.keys).rename_columns([*self._names, HASH])
        rows = style.rows(groups.batch)
        self._begin(keys)
        for at, key in enumerate(self._tuples(keys)):
            parts = chain((rows[bounds[at] : bounds[at + 1]],), map(style.rows, groups.rest))
            yield from self._call(keys, at, key, style.group(parts))
            deque(groups.rest, maxlen=0)  # skip what the function did not read
        self._held.end()

    def _time_out(self) -> Iterator[Any]:
        """Call the function for every key that has timed out."""
        now = self._task.clock.now_ms
        if now is None:
            return
        over = [table for table in self._over(now) if table.num_rows]
        if not over:
            return
        due = pa.concat_tables(over)
        for start in range(0, due.num_rows, _KEYS_AT_A_TIME):
            keys = due.slice(start, _KEYS_AT_A_TIME).combine_chunks()
            self._begin(keys)
            for at, key in enumerate(self._tuples(keys)):
                nothing = [self._task.rows.nothing.copy()]
                yield from self._call(keys, at, key, nothing, has_timed_out=True)
            self._held.end()

    def _over(self, now: int) -> Iterator[pa.Table]:
        """The keys that have timed out; notes the next timeout."""
        for table in self._store.tables():
            moments = table.column(self._timeout_name)
            is_over = pc.less(moments, now)
            self._note_timeout(pc.min(moments.filter(pc.invert(is_over))).as_py())
            yield table.filter(is_over).select(self._names)

    def _note_timeout(self, moment: int | None) -> None:
        if moment is not None:
            self._next_ms = moment if self._next_ms is None else min(self._next_ms, moment)

    def _begin(self, keys: pa.Table) -> None:
        self._cursor.keys = keys
        self._held.begin()

    def _tuples(self, keys: pa.Table) -> Iterator[tuple[Any, ...]]:
        zone = self._task.rows.zone
        columns = [key_cells(keys.column(name), name, zone) for name in self._names]
        return zip(*columns, strict=True)

    def _call(
        self,
        keys: pa.Table,
        at: int,
        key: tuple[Any, ...],
        frames: Iterable[Any],
        *,
        has_timed_out: bool = False,
    ) -> Iterator[Any]:
        """Call the function for a key, and store its changes to the state."""
        self._cursor.at = at
        held = self._held.get()
        try:
            state = self._task.new_state(held[0] if held else None, has_timed_out)
            given = self._task.function(key, frames, state)
            yield from self._task.rows.checked(given)
            self._keep(held, state)
        except Exception as error:
            note_key(error, keys, at)
            raise
        if has_timed_out:
            self._note_timeout(state.timeout_ms)

    def _keep(self, held: Row | None, state: KeyState) -> None:
        value, timeout = state.value, state.timeout_ms
        if value is None and timeout is None:
            if held is not None:
                self._held.clear()
        elif state.is_changed or held is None or timeout != held[1]:
            self._held.update((value, timeout))
