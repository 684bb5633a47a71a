"""dropDuplicates and dropDuplicatesWithinWatermark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from holdfast.engine.hashing.spark_hash import spark_sql_hash
from holdfast.engine.partition.shape import StoreShape
from holdfast.ids import DEFAULT_STORE_NAME
from holdfast.reserved import HASH, FreeNames
from holdfast.spark.interop import seam
from holdfast.spark.operators.columns import (
    DELAY,
    event_time_ordinal,
    is_window,
    keys_of,
    made_of,
    nullable,
    quote_column,
    with_metadata,
)
from holdfast.spark.operators.operator import Operator, TaskSettings, ViewSource
from holdfast.streams.stores.contract import EXPIRES_AT
from holdfast.streams.tasks.deduplication import SEEN, DeduplicationTask
from holdfast.streams.tasks.task import Task
from holdfast.streams.watermark import Watermarks
from holdfast.types import parse_schema


class Deduplication(Operator):
    """Passes the first row of each key; `names` are the columns of the key."""

    emits = True

    def __init__(self, before: DataFrame, names: list[str], *, within_watermark: bool) -> None:
        self.title = "dedupeWithinWatermark" if within_watermark else "dedupe"
        self._fields: list[StructField] = before.schema.fields
        self._within_watermark = within_watermark
        self._names = names
        self._value = EXPIRES_AT if within_watermark else SEEN
        case_sensitive = seam.sessions.is_case_sensitive(before.sparkSession)
        free = FreeNames([self._value], case_sensitive=case_sensitive)
        # a batch's columns get names that no column of the store has: both are in one table
        self._own = [
            StructField(free.give(f.name), f.dataType, f.nullable, f.metadata) for f in self._fields
        ]
        by_name = dict(zip(before.columns, self._own, strict=True))
        fields = [by_name[name] for name in names]
        parse_schema(StructType(fields)).check_key()
        self._keys = keys_of(fields, free)
        self._key_names = [part for key in self._keys for part in key.parts]
        timed = [name for name, field in by_name.items() if DELAY in (field.metadata or {})]
        self._event_time = timed[0] if timed else None
        self._timed = by_name[timed[0]] if timed else None
        self._time = free.give("event_time")
        if not within_watermark:
            self.key_index = event_time_ordinal(self._keys)

    def definition(self) -> dict[str, str]:
        return {
            "operator": self.title,
            "keys": ", ".join(self._names),
            "event time": self._event_time or "none",
        }

    def columns(self, before: Sequence[DataFrame], after: DataFrame) -> dict[str, str]:
        names = {*self._names, *filter(None, [self._event_time])}
        return made_of(seam.lineage.describe_columns(before[0], names))

    def ticks(self, mode: str) -> bool:
        return self._timed is not None

    def batch_frame(self, batch: DataFrame, partitions: int, marks: Watermarks) -> DataFrame:
        routing = [quote_column(key.field.name) for key in self._keys]
        windows = [column for key in self._keys if key.is_window for column in key.columns()]
        pairs = zip(self._fields, self._own, strict=True)
        batch = batch.select(*[F.col(quote_column(f.name)).alias(own.name) for f, own in pairs])
        columns = [F.col(quote_column(own.name)) for own in self._own]
        if self._timed is not None:
            time = F.col(quote_column(self._timed.name))
            time = time.getField("end") if is_window(self._timed) else time
            columns.append(time.alias(self._time))
        rows = batch.repartition(partitions, *routing).select(*columns, *windows)
        return rows.withColumn(HASH, F.expr(spark_sql_hash(self._key_names, len(self._key_names))))

    def stores(self, frame: DataFrame) -> dict[str, StoreShape]:
        kept = {field.name: field for field in frame.schema.fields}
        key = parse_schema(nullable([kept[name] for name in self._key_names]))
        value = f"{self._value} {'long' if self._within_watermark else 'boolean'}"
        return {DEFAULT_STORE_NAME: StoreShape.of(key, parse_schema(value), self.key_index, 0)}

    def shown(self, variable: str | None) -> ViewSource:
        return replace(super().shown(variable), values=())

    def rows_schema(self, frame: DataFrame) -> StructType:
        return nullable(self._own)

    def task(self, settings: TaskSettings) -> Task:
        assert settings.outbox is not None
        delay = None
        if self._within_watermark and self._timed is not None:
            delay = int((self._timed.metadata or {})[DELAY])
        timed = self._timed is not None
        return DeduplicationTask(
            store=settings.store,
            base_version=settings.base_version,
            outbox=settings.outbox,
            columns=tuple(own.name for own in self._own),
            time=self._time if timed else None,
            delay_ms=delay,
            late=settings.marks.late_us if timed else None,
            evict=settings.marks.evict_us if timed else None,
        )

    def output(self, rows: DataFrame) -> DataFrame:
        pairs = zip(self._fields, self._own, strict=True)
        return rows.select(*[with_metadata(F.col(quote_column(own.name)), f) for f, own in pairs])
