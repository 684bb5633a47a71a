"""dropDuplicates and dropDuplicatesWithinWatermark."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from holdfast.engine.chain import StoreShape
from holdfast.engine.hashing import spark_sql_hash
from holdfast.engine.segment import HASH
from holdfast.ids import DEFAULT_STORE_NAME
from holdfast.spark import jvm
from holdfast.spark.operators import (
    DELAY,
    FreeNames,
    Operator,
    Shown,
    TaskSettings,
    described,
    event_time_ordinal,
    is_window,
    keys_of,
    nullable,
    quoted,
)
from holdfast.streams.contract import EXPIRES_AT
from holdfast.streams.deduplicating import SEEN, DeduplicationTask
from holdfast.streams.task import Task
from holdfast.streams.watermark import Watermarks
from holdfast.types import parse_schema


class Deduplication(Operator):
    """Lets the first row of each key through; `names` are the columns rows are equal by."""

    emits = True

    def __init__(self, before: DataFrame, names: list[str], *, within_watermark: bool) -> None:
        self.title = "dedupeWithinWatermark" if within_watermark else "dedupe"
        self._fields: list[StructField] = before.schema.fields
        self._within_watermark = within_watermark
        by_name = {field.name: field for field in self._fields}
        fields = [by_name[name] for name in names]
        parse_schema(StructType(fields)).check_key()
        case_sensitive = jvm.is_case_sensitive(before.sparkSession)
        free = FreeNames(before.columns, case_sensitive=case_sensitive)
        self._keys = keys_of(fields, free)
        self._key_names = [part for key in self._keys for part in key.parts]
        timed = [field for field in self._fields if DELAY in (field.metadata or {})]
        self._timed = timed[0] if timed else None
        self._time = free.give("event_time")
        if not within_watermark:
            self.key_index = event_time_ordinal(self._keys)

    def definition(self) -> dict[str, str]:
        return {
            "operator": self.title,
            "keys": ", ".join(key.field.name for key in self._keys),
            "event time": "none" if self._timed is None else self._timed.name,
        }

    def ticks(self, mode: str) -> bool:
        return self._timed is not None

    def batch_frame(self, batch: DataFrame, partitions: int, marks: Watermarks) -> DataFrame:
        routing = [quoted(key.field.name) for key in self._keys]
        windows = [column for key in self._keys if key.is_window for column in key.columns()]
        columns = [F.col(quoted(field.name)) for field in self._fields]
        if self._timed is not None:
            time = F.col(quoted(self._timed.name))
            time = time.getField("end") if is_window(self._timed) else time
            columns.append(time.alias(self._time))
        rows = batch.repartition(partitions, *routing).select(*columns, *windows)
        return rows.withColumn(HASH, F.expr(spark_sql_hash(self._key_names, len(self._key_names))))

    def stores(self, frame: DataFrame) -> dict[str, StoreShape]:
        kept = {field.name: field for field in frame.schema.fields}
        key = parse_schema(nullable([kept[name] for name in self._key_names]))
        value = f"{EXPIRES_AT} long" if self._within_watermark else f"{SEEN} boolean"
        return {DEFAULT_STORE_NAME: StoreShape.of(key, parse_schema(value), self.key_index, 0)}

    def shown(self, variable: str | None) -> Shown:
        return replace(super().shown(variable), values=())

    def rows_schema(self, frame: DataFrame) -> StructType:
        return nullable(self._fields)

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
            columns=tuple(field.name for field in self._fields),
            time=self._time if timed else None,
            delay_ms=delay,
            late=settings.marks.late_us if timed else None,
            evict=settings.marks.evict_us if timed else None,
        )

    def output(self, rows: DataFrame) -> DataFrame:
        return rows.select(*[described(F.col(quoted(f.name)), f) for f in self._fields])
