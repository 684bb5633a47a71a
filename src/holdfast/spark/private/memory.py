"""Spark's own sink of the format "memory", which keeps rows in the driver's JVM."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from holdfast.spark.private import jvm


class MemoryTable:
    """Rows of one schema as a temporary view, which shows what was added so far."""

    def __init__(self, name: str, native: DataFrame) -> None:
        session = native.sparkSession
        sources = jvm.gateway(session).org.apache.spark.sql.execution.streaming.sources
        self._sink: Any = sources.MemorySink()
        columns = jvm.empty_frame(session, native.schema)._jdf.queryExecution().analyzed().output()
        plan = sources.MemoryPlan(self._sink, columns)
        jvm.frame_of(session, plan).createOrReplaceTempView(name)

    def add(self, number: int, frame: DataFrame, *, instead: bool) -> None:
        """Add rows, in place of all others if `instead`. Not those of a number that it has had.

        Requires: numbers rise. The rows stay in the JVM.
        """
        self._sink.write(number, instead, frame._jdf.toDF().collect())
