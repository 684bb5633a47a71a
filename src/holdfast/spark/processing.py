"""transformWithState: the user's own processor, run where the state is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import Row, StructField, StructType

from holdfast.engine.chain import StoreShape
from holdfast.engine.hashing import spark_sql_hash
from holdfast.engine.segment import HASH
from holdfast.errors import InvalidArgument
from holdfast.spark import jvm
from holdfast.spark.operators import (
    DELAY,
    Operator,
    TaskSettings,
    described,
    is_window,
    nullable,
    quoted,
)
from holdfast.streams.handle import EVENT_TIME, NO_TIME, PROCESSING_TIME, TIME_MODES, variables_of
from holdfast.streams.processing import Clock, ProcessorTask, RowStyle
from holdfast.streams.rowwise import Rowwise
from holdfast.streams.task import Task
from holdfast.streams.variables import TIMER_VARIABLE, TIMERS
from holdfast.streams.watermark import Watermarks
from holdfast.types import Schema, parse_schema

_TIME = "event_time"


@dataclass(frozen=True)
class Asked:
    """What transformWithState was called with."""

    processor: Any
    output: StructType
    output_mode: str
    time_mode: str
    event_time: str = ""


def asked(
    frame: DataFrame, processor: Any, output: Any, output_mode: str, time_mode: str, event_time: str
) -> Asked:
    """The arguments of transformWithState, checked."""
    mode = time_mode.lower()
    if mode not in TIME_MODES:
        raise InvalidArgument(
            f"The time mode is one of None, ProcessingTime, EventTime, not {time_mode!r}."
        )
    schema = jvm.parsed_schema(frame.sparkSession, output)
    return Asked(processor, schema, output_mode, mode, event_time)


class Processing(Operator):
    """Gives the rows of each key to a processor; what that gives comes out."""

    title = "transformWithStateInPySparkExec"
    emits = True

    def __init__(
        self, before: DataFrame, groupings: tuple[Column, ...], given: Asked, after: DataFrame
    ) -> None:
        if not groupings:
            raise InvalidArgument("transformWithState needs a grouping column: groupBy(…) first.")
        self._given = given
        self._groupings = groupings
        self._fields: list[StructField] = before.schema.fields
        self._output: list[StructField] = after.schema.fields
        keys = before.groupBy(*groupings).count().schema.fields[: len(groupings)]
        self._keys = parse_schema(nullable(keys))
        self._keys.check_key()
        self._data_names = [f"c{number}" for number in range(len(self._fields))]
        self._key_names = [self._key_name(*pair) for pair in enumerate(keys)]
        timed = [number for number, f in enumerate(self._fields) if DELAY in (f.metadata or {})]
        self._timed = timed[0] if timed else None
        self._handle = variables_of(given.processor, given.time_mode)
        self.by_clock = given.time_mode == PROCESSING_TIME

    def _key_name(self, number: int, field: StructField) -> str:
        """The input column of a key: the stream's own where it is one of those."""
        sql = jvm.sql_of(self._groupings[number])
        names = [own.name for own in self._fields]
        is_plain = sql in (field.name, quoted(field.name)) and names.count(field.name) == 1
        return self._data_names[names.index(field.name)] if is_plain else f"k{number}"

    def definition(self) -> dict[str, str]:
        return {
            "operator": self.title,
            "keys": ", ".join(jvm.sql_of(grouping) for grouping in self._groupings),
            "time mode": self._given.time_mode,
            "output mode": self._given.output_mode.lower(),
        }

    def ticks(self, mode: str) -> bool:
        return self._given.time_mode == EVENT_TIME

    def batch_frame(self, batch: DataFrame, partitions: int, marks: Watermarks) -> DataFrame:
        more = [
            grouping.alias(name)
            for grouping, name in zip(self._groupings, self._key_names, strict=True)
            if name not in self._data_names
        ]
        names = [*self._data_names, *(n for n in self._key_names if n not in self._data_names)]
        if self._timed is not None:
            field = self._fields[self._timed]
            time = F.col(quoted(field.name))
            more.append((time.getField("end") if is_window(field) else time).alias(_TIME))
            names.append(_TIME)
        rows = batch.select("*", *more).toDF(*names)
        routed = rows.repartition(partitions, *self._key_names)
        hashed = spark_sql_hash(self._key_names, len(self._key_names))
        return routed.withColumn(HASH, F.expr(hashed)).sortWithinPartitions(HASH, *self._key_names)

    def stores(self, frame: DataFrame) -> dict[str, StoreShape]:
        variables = dict(self._handle.variables)
        if self._given.time_mode != NO_TIME or not variables:
            variables[TIMERS] = TIMER_VARIABLE
        return {name: variable.shape(self._keys) for name, variable in variables.items()}

    def rows_schema(self, frame: DataFrame) -> StructType:
        return nullable(self._output)

    def task(self, settings: TaskSettings) -> Task:
        assert settings.outbox is not None
        marks = settings.marks
        clock = Clock(
            mode=self._given.time_mode,
            processing_ms=marks.clock_ms,
            watermark_ms=None if self._timed is None else marks.evict_ms,
            late_ms=marks.late_ms,
            time_column=None if self._timed is None else _TIME,
        )
        return ProcessorTask(
            stores=settings.stores,
            base_version=settings.base_version,
            processor=self._given.processor,
            keys=tuple(self._key_names),
            rows=self._style(settings),
            clock=clock,
            outbox=settings.outbox,
            query=settings.query,
        )

    def _style(self, settings: TaskSettings) -> RowStyle:
        columns = zip(self._data_names, (field.name for field in self._fields), strict=True)
        return Rowwise(tuple(columns), self._output_schema, settings.zone, row_maker)

    @property
    def _output_schema(self) -> Schema:
        return parse_schema(nullable(self._output))

    def output(self, rows: DataFrame) -> DataFrame:
        return rows.select(*[described(F.col(quoted(f.name)), f) for f in self._output])


def row_maker(names: list[str]) -> Any:
    """A function of cells that makes a Row with these names, quicker than Row itself does."""
    new = tuple.__new__

    def make(*cells: Any) -> Row:
        row = new(Row, cells)
        row.__fields__ = names
        return row

    return make
