"""A user's processor in the form that a test driver runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from holdfast.engine.hashing.spark_hash import KeyHasher
from holdfast.engine.partition.shape import StoreShape
from holdfast.errors import InvalidArgument
from holdfast.reserved import HASH
from holdfast.streams.clock import EVENT_TIME, NO_TIME, PROCESSING_TIME, Clock, checked_time_mode
from holdfast.streams.processors.handle import fresh, variables_of
from holdfast.streams.processors.rows import RowObjects
from holdfast.streams.processors.variables import TIMER_VARIABLE, TIMERS, Variable, shapes_of
from holdfast.streams.tasks.processor import InitialTask, ProcessorTask
from holdfast.streams.tasks.task import Task
from holdfast.streams.watermark import Watermarks
from holdfast.testing._work import BatchInput, WorkSettings, cells_of, pyspark_row_maker
from holdfast.types import Row, Schema, StructType, one_array


class ProcessorWork:
    """Calls a processor for each key, and for each timer."""

    def __init__(
        self,
        processor: Any,
        keys: Sequence[str],
        schema: Schema,
        output: Schema,
        *,
        time_mode: str,
        watermark: tuple[str, int] | None,
        partitions: int,
        zone: str,
    ) -> None:
        self.schema = schema
        self.watermark = watermark
        self.partitions = partitions
        self._processor = processor
        self._keys = keys
        self._output = output
        self._mode = checked_time_mode(time_mode)
        self._zone = zone
        self._variables = variables_of(processor, self._mode).variables

    @cached_property
    def shapes(self) -> Mapping[str, StoreShape]:
        return shapes_of(self._variables, self._grouping, has_time=self._mode != NO_TIME)

    @property
    def follows_watermark(self) -> bool:
        return self._mode == EVENT_TIME

    @property
    def by_clock(self) -> bool:
        return self._mode == PROCESSING_TIME

    @property
    def _grouping(self) -> Schema:
        by_name = {field.name: field for field in self.schema}
        missing = [name for name in self._keys if name not in by_name]
        if missing:
            raise InvalidArgument(f"The key {missing[0]!r} is not a column of {self.schema.ddl()}.")
        return Schema(StructType(tuple(by_name[name] for name in self._keys)))

    def given(self, rows: pa.Table, marks: Watermarks) -> BatchInput:
        keys = [one_array(rows.column(name)) for name in self._keys]
        hashes = KeyHasher(self._grouping, len(keys)).hash_columns(keys)
        numbered = rows.rename_columns(list(_numbered(rows.column_names).values()))
        return BatchInput.dealt(numbered.append_column(HASH, pa.array(hashes)), self.partitions)

    def task(self, setting: WorkSettings) -> ProcessorTask:
        return self._task(setting, self.schema)

    def initial(self, setting: WorkSettings, columns: Schema) -> Task:
        return InitialTask(self._task(setting, columns))

    def _task(self, setting: WorkSettings, columns: Schema) -> ProcessorTask:
        names = _numbered(columns.names)
        marks = setting.marks
        timed = None if self.watermark is None else names.get(self.watermark[0])
        clock = Clock(
            self._mode,
            marks.clock_ms,
            None if timed is None else marks.evict_ms,
            marks.late_ms,
            timed,
        )
        shown = tuple((number, name) for name, number in names.items())
        return ProcessorTask(
            stores=setting.stores,
            base_version=setting.base_version,
            processor=fresh(self._processor),
            keys=tuple(names[name] for name in self._keys),
            rows=RowObjects(shown, self._output, self._zone, pyspark_row_maker),
            clock=clock,
            outbox=setting.outbox,
            query=setting.query,
        )

    def rows(self, table: pa.Table) -> list[Any]:
        return list(map(pyspark_row_maker(self._output.names), cells_of(table)))

    def held(self, name: str, table: pa.Table) -> dict[Row, Any]:
        kind = TIMER_VARIABLE if name == TIMERS else self._variables[name]
        return _held(cells_of(table), kind, len(self._keys), len(self.shapes[name].key_schema))


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
