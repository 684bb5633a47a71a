"""What flows through a query: rows of sources and of stateful operators, made into others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from holdfast.spark.interop import seam
from holdfast.spark.interop.model import EventTimeStats
from holdfast.spark.operators.columns import DELAY, is_window, quote_column, with_metadata
from holdfast.spark.operators.operator import FrameStep, Operator
from holdfast.spark.pipeline.tagged_union import tagged_union
from holdfast.streams.tasks.inputs import INPUT
from holdfast.streams.watermark import Watermarks

_SOURCE = "source"
"""The column that says which source of several a row comes from."""


@dataclass(frozen=True)
class EventTime:
    """A withWatermark behind a stateful operator: Spark sees none of its rows, so they tell."""

    column: StructField
    name: str = field(default_factory=lambda: f"holdfast_event_time_{uuid4()}")

    @property
    def delay_ms(self) -> int:
        """How long rows may come late."""
        return int(self.column.metadata[DELAY])

    def observed(self, frame: DataFrame) -> DataFrame:
        """The frame, its event times known as such, and the largest of them told."""
        own = F.col(quote_column(self.column.name))
        column = own.getField("end") if is_window(self.column) else own
        # A frame may go two ways that meet again: Spark wants another name for each of them.
        name = f"{self.name}_{uuid4()}"
        micros = F.unix_micros(column)
        told = frame.observe(
            name,
            F.max(micros).alias("max"),
            F.min(micros).alias("min"),
            F.avg(micros).cast("long").alias("avg"),
            F.count(micros).alias("rows"),
        )
        return told.withColumn(self.column.name, with_metadata(own, self.column))

    def seen(self, frame: DataFrame) -> EventTimeStats | None:
        """What jobs over a frame saw of the event times; None where they saw none.

        Where the frame goes several ways, the average is that of the first.
        """
        found = seam.frames.observed_metrics(frame, self.name)
        if not found:
            return None
        largest, smallest = max(each[0] for each in found), min(each[1] for each in found)
        return EventTimeStats(
            self.delay_ms, found[0][3], largest // 1000, smallest // 1000, found[0][2] // 1000
        )


@dataclass(frozen=True, eq=False)
class Flow:
    """Rows made of those of some origins, each a source of Spark's or the output of a stage."""

    origins: tuple[DataFrame | Stage, ...]
    make: Callable[[Sequence[DataFrame]], DataFrame]
    """What is made of the origins' rows; Spark's own form of it has the same columns."""
    event_times: tuple[EventTime, ...] = ()

    @classmethod
    def of(cls, origin: DataFrame | Stage) -> Flow:
        """The rows of an origin as they are."""
        return cls((origin,), lambda frames: frames[0])

    def then(self, step: FrameStep, native: DataFrame, *event_times: EventTime) -> Flow:
        """The flow after one more step; `native` is Spark's own form of it."""
        make = self.make
        return Flow(
            self.origins,
            lambda frames: seam.frames.identified(step(make(frames)), native),
            (*self.event_times, *event_times),
        )

    def united(
        self, other: Flow, unite: Callable[[DataFrame, DataFrame], DataFrame], native: DataFrame
    ) -> Flow:
        """The rows of both flows, united by one of Spark's ways to do so."""
        count, left, right = len(self.origins), self.make, other.make
        return Flow(
            (*self.origins, *other.origins),
            lambda frames: seam.frames.identified(
                unite(left(frames[:count]), right(frames[count:])), native
            ),
            tuple(dict.fromkeys((*self.event_times, *other.event_times))),
        )

    @property
    def is_source(self) -> bool:
        """Whether these are the rows of a source: what Spark does to those, it does by itself."""
        return len(self.origins) == 1 and not isinstance(self.origins[0], Stage)

    def rows(self, given: Sequence[DataFrame]) -> DataFrame:
        """What is made of rows of the origins: those of sources, or what stages put out."""
        frames = [
            origin.output(rows) if isinstance(origin, Stage) else rows
            for origin, rows in zip(self.origins, given, strict=True)
        ]
        made = self.make(frames)
        # The user may join this with tables that are part of the stream: no column may be both.
        return made.toDF(*made.columns)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages the rows come through, each after those it gets rows from."""
        return tuple(dict.fromkeys(self._walk()))

    def _walk(self) -> Iterator[Stage]:
        for origin in self.origins:
            if isinstance(origin, Stage):
                for each in origin.inputs:
                    yield from each.flow._walk()
                yield origin


@dataclass(frozen=True, eq=False)
class Input:
    """One input of a stage: the flow it gets rows from, and Spark's own form of them."""

    flow: Flow
    native: DataFrame

    def identified(self, rows: DataFrame) -> DataFrame:
        """Rows of the input, their columns taken for those of `native`."""
        return seam.frames.identified(rows, self.native)


@dataclass(frozen=True, eq=False)
class Stage:
    """A stateful operator and the inputs it gets its rows from, most often one.

    The inputs' `native` and `after` are Spark's own form of the pipeline around the operator.
    Columns that the user took from one of them, or from what it was made of, are found in our
    frames as well.
    """

    operator: Operator
    inputs: tuple[Input, ...]
    after: DataFrame

    @property
    def before(self) -> list[DataFrame]:
        """Spark's own form of the rows of each input."""
        return [each.native for each in self.inputs]

    @property
    def origins(self) -> tuple[DataFrame | Stage, ...]:
        """The origins of all inputs, one input after the other."""
        return tuple(origin for each in self.inputs for origin in each.flow.origins)

    @property
    def event_times(self) -> tuple[EventTime, ...]:
        """The event times that the flows of the inputs tell."""
        return tuple(dict.fromkeys(time for each in self.inputs for time in each.flow.event_times))

    def batch(self, rows: Sequence[DataFrame]) -> DataFrame:
        """The operator's batch of rows that reach its inputs."""
        known = [each.identified(own) for each, own in zip(self.inputs, rows, strict=True)]
        if len(known) == 1:
            return known[0]
        parts = [self.operator.input_rows(number, own) for number, own in enumerate(known)]
        return tagged_union(parts, INPUT, self.operator.common)

    def batch_frame(
        self, rows: Sequence[DataFrame], partitions: int, marks: Watermarks
    ) -> DataFrame:
        """What the operator's tasks get, made of rows that reach the stage's inputs."""
        return self.operator.batch_frame(self.batch(rows), partitions, marks)

    def output(self, rows: DataFrame) -> DataFrame:
        """The operator's output, made of rows of its `rows_schema`."""
        return seam.frames.identified(self.operator.output(rows), self.after)


def order_in_spark(flow: Flow) -> list[int]:
    """The numbers of a query's operators in the order in which Spark lists them: the last first.

    Spark walks its plan from the output to the sources, into one input after the other.
    """
    numbers = {stage: number for number, stage in enumerate(flow.stages)}
    found: dict[int, None] = {}

    def walk(origins: Sequence[DataFrame | Stage]) -> None:
        for origin in origins:
            if isinstance(origin, Stage):
                found.setdefault(numbers[origin])
                walk(origin.origins)

    walk(flow.origins)
    return list(found)


class Sources:
    """The sources of a query as one stream, and a batch of it taken apart again.

    Spark runs one query, whose batches are in one frame: where there are several sources, the
    columns of all stand side by side in it, and a row has nulls in those of the others.
    """

    def __init__(self, flow: Flow) -> None:
        ends: list[Stage | Flow] = [*flow.stages, flow]
        used = [origin for end in ends for origin in end.origins if isinstance(origin, DataFrame)]
        self.frames = list({id(frame): frame for frame in used}.values())
        self.is_read_once = len(used) == 1

    def number(self, frame: DataFrame) -> int:
        """Which source a frame is."""
        return next(number for number, each in enumerate(self.frames) if each is frame)

    @property
    def stream(self) -> DataFrame:
        """All of them as one."""
        if len(self.frames) == 1:
            return self.frames[0]
        named = [frame.toDF(*self._names(number)) for number, frame in enumerate(self.frames)]
        return tagged_union(named, _SOURCE)

    def _names(self, number: int) -> list[str]:
        return [f"c{number}_{place}" for place in range(len(self.frames[number].columns))]

    @contextmanager
    def held(self, batch: DataFrame | None) -> Iterator[tuple[list[DataFrame | None], int | None]]:
        """The rows of each source in a batch, and how many all have, where they are read twice.

        Such a batch is computed once, and kept until the end.
        """
        if batch is None or self.is_read_once:
            yield [batch] * len(self.frames), None
            return
        batch.persist()
        try:
            yield self._apart(batch), batch.count()
        finally:
            batch.unpersist()

    def _apart(self, batch: DataFrame) -> list[DataFrame | None]:
        if len(self.frames) == 1:
            return [batch]
        return [
            batch.filter(F.col(_SOURCE) == number).select(*self._names(number)).toDF(*frame.columns)
            for number, frame in enumerate(self.frames)
        ]
