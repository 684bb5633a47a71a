"""Spark's own sink of the format "memory", which keeps rows in the driver's JVM."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from holdfast.spark.interop import frames
from holdfast.spark.interop.classes import java_class

_SOURCES = "org.apache.spark.sql.execution.streaming.sources"


class MemoryTable:
    """Rows of one schema as a temporary view, which shows what was added so far."""

    def __init__(self, name: str, native: DataFrame) -> None:
        session = native.sparkSession
        self._sink: Any = java_class(session, f"{_SOURCES}.MemorySink")()
        columns = (
            frames.empty_frame(session, native.schema)._jdf.queryExecution().analyzed().output()
        )
        plan = java_class(session, f"{_SOURCES}.MemoryPlan")(self._sink, columns)
        frames.frame_of(session, plan).createOrReplaceTempView(name)

    def add(self, number: int, frame: DataFrame, *, instead: bool) -> int:
        """Add rows, in place of all others if `instead`. Not those of a number that it has had.

        Returns how many rows the frame has. Requires: numbers rise. The rows stay in the JVM.
        """
        rows = frame._jdf.toDF().collect()
        self._sink.write(number, instead, rows)
        return len(rows)
