"""What test drivers of processors and functions share: rows by key, time, and state by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from holdfast.engine.hashing.spark_hash import KeyHasher
from holdfast.engine.partition.shape import StoreShape
from holdfast.errors import InvalidArgument
from holdfast.reserved import HASH
from holdfast.streams.clock import EVENT_TIME, NO_TIME, PROCESSING_TIME, Clock
from holdfast.streams.processors.variables import TIMER_VARIABLE, TIMERS, Variable, shapes_of
from holdfast.streams.tasks.task import Task
from holdfast.streams.watermark import Watermarks
from holdfast.testing._work import BatchInput, WorkSettings, cells_of
from holdfast.types import AtomicType, Row, Schema, StructType, one_array

_TIMES = (AtomicType("timestamp"), AtomicType("timestamp_ntz"))


@dataclass(frozen=True)
class KeyedSettings:
    """What every operator is made with that calls the user's code for keys.

    `mode` is a time mode in lower case, `watermark` a column and a delay in ms.
    """

    keys: Sequence[str]
    schema: Schema
    output: Schema
    mode: str
    watermark: tuple[str, int] | None
    partitions: int
    zone: str

    def check(self) -> None:
        """Raise InvalidArgument for unknown columns, and for event time without a watermark."""
        columns = {field.name: field for field in self.schema}
        for name in self.keys:
            if name not in columns:
                raise InvalidArgument(f"The key {name!r} is not a column of {self.schema.ddl()}.")
        if self.watermark is None:
            if self.mode == EVENT_TIME:
                raise InvalidArgument(
                    "Event time needs a watermark, as it does in Spark. Give the driver the "
                    "column and the delay: watermark=('time', '10 minutes')."
                )
            return
        column = self.watermark[0]
        if column not in columns or columns[column].type not in _TIMES:
            raise InvalidArgument(
                f"The watermark's column {column!r} is not a timestamp among {self.schema.ddl()}."
            )


class KeyedWork:
    """An operator that calls the user's code for keys: all of `Work` but its tasks and its form."""

    def __init__(self, settings: KeyedSettings, variables: Mapping[str, Variable]) -> None:
        settings.check()
        self._settings = settings
        self.variables = variables
        self.schema = settings.schema
        self.watermark = settings.watermark
        self.partitions = settings.partitions
        self.mode = settings.mode

    has_timers = True
    """Whether there is a store of timers, as processors have it."""

    @cached_property
    def shapes(self) -> Mapping[str, StoreShape]:
        """The shapes of the stores: one for each variable, and one for timers with a time mode."""
        if not self.has_timers:
            return {name: held.shape(self.grouping) for name, held in self.variables.items()}
        return shapes_of(self.variables, self.grouping, has_time=self.mode != NO_TIME)

    @property
    def follows_watermark(self) -> bool:
        """Whether a version without data can change something when the watermark has grown."""
        return self.mode == EVENT_TIME

    @property
    def by_clock(self) -> bool:
        """Whether a version without data can change something as time passes by the clock."""
        return self.mode == PROCESSING_TIME

    @cached_property
    def grouping(self) -> Schema:
        """The columns of the grouping key."""
        by_name = {field.name: field for field in self.schema}
        return Schema(StructType(tuple(by_name[name] for name in self._settings.keys)))

    def given(self, rows: pa.Table, marks: Watermarks) -> BatchInput:
        """The tasks' input for a batch."""
        keys = [one_array(rows.column(name)) for name in self._settings.keys]
        hashes = KeyHasher(self.grouping, len(keys)).hash_columns(keys)
        numbered = rows.rename_columns(list(_numbered(rows.column_names).values()))
        return BatchInput.dealt(numbered.append_column(HASH, pa.array(hashes)), self.partitions)

    def clock(self, marks: Watermarks, columns: Schema) -> Clock:
        """The time of a version for rows with some columns."""
        names = _numbered(columns.names)
        timed = None if self.watermark is None else names.get(self.watermark[0])
        return Clock(
            self.mode,
            marks.clock_ms,
            None if timed is None else marks.evict_ms,
            marks.late_ms,
            timed,
        )

    def initial(self, setting: WorkSettings, columns: Schema) -> Task:
        """Functions have no state to start with."""
        raise InvalidArgument(
            "A function has no handleInitialState. Set its state with set_state before the first "
            "push."
        )

    def store_of(self, name: str) -> str:
        """The store that something is asked about by a name."""
        return name

    def held(self, name: str, table: pa.Table) -> dict[Row, Any]:
        """The rows of a store, by key."""
        store = self.store_of(name)
        kind = TIMER_VARIABLE if store == TIMERS else self.variables[store]
        width = len(self.shapes[store].key_schema)
        return _held(cells_of(table), kind, len(self._settings.keys), width)

    # -- for the tasks -------------------------------------------------------------------------

    def _columns(self, schema: Schema) -> tuple[tuple[str, str], ...]:
        """Columns: their names in the tasks' input, and the user's names."""
        return tuple((number, name) for name, number in _numbered(schema.names).items())

    def _key_names(self, schema: Schema) -> tuple[str, ...]:
        names = _numbered(schema.names)
        return tuple(names[name] for name in self._settings.keys)


def _numbered(names: Sequence[str]) -> dict[str, str]:
    """The names of columns in the tasks' input."""
    return {name: f"c{number}" for number, name in enumerate(names)}


def _held(rows: list[Row], variable: Variable, prefix: int, width: int) -> dict[Row, Any]:
    """A store's rows by grouping key, as the variable shows them; a key has `width` cells."""
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
