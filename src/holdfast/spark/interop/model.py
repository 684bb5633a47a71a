"""What the seam to Spark gives in words of Holdfast's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType, TimestampNTZType

from holdfast.streams.aggregates.functions import BY_NODE, AggregateFunction
from holdfast.streams.tasks.sliding import SlidingWindows

EXECUTOR_PROPERTY = "holdfast.executor"
"""Where a task finds its executor's id and host, divided by a space."""

Fill = Callable[[Sequence[DataFrame | None]], DataFrame]
"""Gives a frame over other rows, None for no rows."""


@dataclass(frozen=True)
class EventTimeStats:
    """What one withWatermark of the running query saw of a batch: its delay, rows and times."""

    delay_ms: int
    rows: int
    max_ms: int
    min_ms: int = 0
    avg_ms: int = 0


Observe = Callable[[], list[EventTimeStats]]


@dataclass(frozen=True)
class AggregateCall:
    """One aggregate function of a query: what it is called and what it is called with.

    `column` makes a column of SQL text over `x1`, `x2` and so on, which are the inputs, null where
    the call's FILTER leaves a row out, and `kept`, which says whether it does not.
    """

    node: str
    sql: str
    input_types: tuple[DataType, ...]
    column: Callable[[str], Column]
    distinct: bool
    mode: str = ""
    """How it takes an overflow, ANSI, LEGACY or TRY; nothing for most functions."""
    flag: Any = None

    @property
    def function(self) -> AggregateFunction | None:
        """Its row in the table of functions, if it has one."""
        return BY_NODE.get(self.node)

    @property
    def flag_in_words(self) -> str:
        """What the text in SQL leaves out; nothing for most functions."""
        known = self.function
        return known.flag.words(self.flag) if known and known.flag else ""


@dataclass(frozen=True)
class AnalyzedAggregation:
    """An aggregation taken apart: its calls, and how each output column is made of them.

    `finish` takes the names of columns that hold the keys and the calls' values, and gives the
    output columns after the keys.
    """

    calls: tuple[AggregateCall, ...]
    finish: Callable[[list[str], list[str]], list[Column]]


@dataclass(frozen=True)
class TimeWindow:
    """A window of a fixed length that a frame is grouped by, and the times it is over."""

    time: Column
    window: Column
    shape: SlidingWindows

    def is_last_of(self, rows: DataFrame) -> Column:
        """Whether a window is the last one that its row is in, where Spark deals rows out to all.

        To be aggregated together with the window.
        """
        kind = rows.select(self.time).schema[0].dataType
        time, start = self.time, self.window.getField("start")
        if isinstance(kind, StructType):  # a window of windows goes by their last moment
            kind = kind["end"].dataType
            time = time.getField("end") - F.expr("INTERVAL '0.000001' SECOND")
        if isinstance(kind, TimestampNTZType):
            return time < start + F.lit(timedelta(microseconds=self.shape.slide_us))
        # Spark adds days by the calendar of the session's time zone, but windows do not.
        return F.unix_micros(time) < F.unix_micros(start) + F.lit(self.shape.slide_us)


@dataclass(frozen=True)
class FileTable:
    """A table whose rows are files of a format below a location."""

    name: str
    location: str
    provider: str
    options: Mapping[str, str]
    columns: list[str]
    partition_by: list[str]
    tracks_partitions: bool
    """Whether the catalog has to be told of new partitions."""
