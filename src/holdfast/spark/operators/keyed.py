"""Operators that pass the rows of each key to the user's code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from holdfast.engine.hashing.spark_hash import spark_sql_hash
from holdfast.engine.versions.rewrite import can_become
from holdfast.errors import InvalidArgument
from holdfast.reserved import HASH
from holdfast.spark.interop import seam
from holdfast.spark.operators.columns import (
    DELAY,
    is_window,
    made_of,
    nullable,
    quote_column,
    with_metadata,
)
from holdfast.spark.operators.operator import Operator, TaskSettings
from holdfast.streams.clock import EVENT_TIME, PROCESSING_TIME, Clock
from holdfast.streams.watermark import Watermarks
from holdfast.types import Schema, parse_schema

_TIME = "event_time"


class KeyedRows:
    """Lays rows out for tasks: each key in its partition, its rows side by side.

    Columns are renamed, because a stream may have any names, also the reserved ones.
    """

    def __init__(self, before: DataFrame, groupings: tuple[Column, ...]) -> None:
        if not groupings:
            raise InvalidArgument("There is no grouping column. Call groupBy(…) with at least one.")
        self.groupings = groupings
        self._fields: list[StructField] = before.schema.fields
        keys = before.groupBy(*groupings).count().schema.fields[: len(groupings)]
        self.keys: Schema = parse_schema(nullable(keys))
        self.keys.check_key()
        self._data_names = [f"c{number}" for number in range(len(self._fields))]
        self.key_names = tuple(self._key_name(*pair) for pair in enumerate(keys))
        timed = [field for field in self._fields if DELAY in (field.metadata or {})]
        self._timed = timed[0] if timed else None

    def _key_name(self, number: int, field: StructField) -> str:
        """The input column of a key: the stream's own if the key is one of its columns."""
        sql = seam.columns.sql_of(self.groupings[number])
        names = [own.name for own in self._fields]
        is_plain = sql in (field.name, quote_column(field.name)) and names.count(field.name) == 1
        return self._data_names[names.index(field.name)] if is_plain else f"k{number}"

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """The stream's columns: their names in the tasks' input, and the user's names."""
        names = (field.name for field in self._fields)
        return tuple(zip(self._data_names, names, strict=True))

    @property
    def sql(self) -> str:
        """The grouping columns as SQL text."""
        return ", ".join(seam.columns.sql_of(grouping) for grouping in self.groupings)

    @property
    def time_name(self) -> str | None:
        """The stream's event-time column, if it has one."""
        return None if self._timed is None else self._timed.name

    def frame(self, rows: DataFrame, partitions: int) -> DataFrame:
        """Plan the tasks' input from some rows."""
        pairs = zip(self.groupings, self.key_names, strict=True)
        more = [key.alias(name) for key, name in pairs if name not in self._data_names]
        names = [*self._data_names, *(n for n in self.key_names if n not in self._data_names)]
        if self._timed is not None:
            time = F.col(quote_column(self._timed.name))
            more.append((time.getField("end") if is_window(self._timed) else time).alias(_TIME))
            names.append(_TIME)
        routed = rows.select("*", *more).toDF(*names).repartition(partitions, *self.key_names)
        hashed = spark_sql_hash(list(self.key_names), len(self.key_names))
        return routed.withColumn(HASH, F.expr(hashed)).sortWithinPartitions(HASH, *self.key_names)

    def clock(self, time_mode: str, marks: Watermarks) -> Clock:
        """The time of a version, for tasks that read these rows."""
        return Clock(
            mode=time_mode,
            processing_ms=marks.clock_ms,
            watermark_ms=None if self._timed is None else marks.evict_ms,
            late_ms=marks.late_ms,
            time_column=None if self._timed is None else _TIME,
        )


@dataclass(frozen=True)
class KeyedPlan:
    """What was asked of an operator that calls the user's code for each key."""

    before: DataFrame
    groupings: tuple[Column, ...]
    after: DataFrame
    """Spark's own plan with the operator; it has the columns of the output."""
    output_mode: str
    time_mode: str


class KeyedOperator(Operator):
    """Calls the user's code with the rows of each key, and emits what it returns."""

    emits = True

    def __init__(self, plan: KeyedPlan) -> None:
        self._rows = KeyedRows(plan.before, plan.groupings)
        self._output: list[StructField] = plan.after.schema.fields
        self._output_mode = plan.output_mode.lower()
        self._time_mode = plan.time_mode
        self.by_clock = plan.time_mode == PROCESSING_TIME

    @property
    def key_names(self) -> tuple[str, ...]:
        """The columns of the grouping key, as `batch_frame` has them."""
        return self._rows.key_names

    def definition(self) -> dict[str, str]:
        return {
            "operator": self.title,
            "keys": self._rows.sql,
            "time mode": self._time_mode,
            "output mode": self._output_mode,
        }

    def columns(self, before: Sequence[DataFrame], after: DataFrame) -> dict[str, str]:
        found = made_of(seam.lineage.columns_grouped_by(before[0], self._rows.groupings))
        if self._time_mode == EVENT_TIME and (name := self._rows.time_name) is not None:
            found["event time"] = seam.lineage.describe_columns(before[0], [name])[name]
        return found

    def ticks(self, mode: str) -> bool:
        return self._time_mode == EVENT_TIME

    def takes_over(self, stored: Schema, wanted: Schema, *, may_add: bool) -> bool:
        return can_become(stored, wanted)

    def batch_frame(self, batch: DataFrame, partitions: int, marks: Watermarks) -> DataFrame:
        return self._rows.frame(batch, partitions)

    def rows_schema(self, frame: DataFrame) -> StructType:
        return nullable(self._output)

    @property
    def _output_schema(self) -> Schema:
        return parse_schema(nullable(self._output))

    @property
    def _output_time(self) -> str | None:
        """The output's event-time column, if it has one."""
        timed = (field.name for field in self._output if DELAY in (field.metadata or {}))
        return next(timed, None)

    def _clock(self, settings: TaskSettings) -> Clock:
        return self._rows.clock(self._time_mode, settings.marks)

    def output(self, rows: DataFrame) -> DataFrame:
        return rows.select(*[with_metadata(F.col(quote_column(f.name)), f) for f in self._output])
