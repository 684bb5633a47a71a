"""A stage of a query as it runs: what Spark computes for it, its stores, and its output rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.conf import StateStoreConf
from holdfast.engine.partition.shape import StoreShape
from holdfast.errors import InvalidArgument
from holdfast.spark.interop import seam
from holdfast.spark.interop.model import EventTimeStats
from holdfast.spark.operators.frame_limits import frame_limits
from holdfast.spark.operators.operator import LATE, Operator
from holdfast.spark.pipeline.flow import EventTime, Flow, Stage
from holdfast.spark.pipeline.templates import Template
from holdfast.spark.state.locality import Locality, StateStoreRDD, collected
from holdfast.streams import process
from holdfast.streams.outbox import Emission, Outbox, OutboxReader
from holdfast.streams.output import StoredOutput, read_output
from holdfast.streams.tasks.task import StoreSpec, TaskResult, emit_batches
from holdfast.streams.version import VersionStep
from holdfast.streams.watermark import Watermarks


@dataclass(frozen=True)
class StageFrames:
    """What Spark computes for a stage: the rows that reach it, and the tasks' input made of them.

    Two templates, since columns may keep their identity through an operator: a user's Column of
    them would find two in one plan.
    """

    stage: Stage
    reached: tuple[Template | None, ...]
    """Makes what reaches each input, of rows of its flow's origins; None where it is a source."""
    batch: Template
    rows_schema: StructType

    @classmethod
    def of(
        cls, stage: Stage, session: SparkSession, partitions: int, before: EarlierStages
    ) -> StageFrames:
        """Those of a stage; `before` are those of the stages before it."""
        reached: list[Template | None] = []
        schemas: list[StructType] = []
        for flow in (each.flow for each in stage.inputs):
            given = schemas_of(flow.origins, before)
            template = None if flow.is_source else Template(session, given, flow.rows)
            reached.append(template)
            schemas.append(given[0] if template is None else template.made.schema)
        batch = Template(
            session, schemas, lambda rows: stage.batch_frame(rows, partitions, Watermarks())
        )
        return cls(stage, tuple(reached), batch, stage.operator.rows_schema(batch.made))

    @cached_property
    def before(self) -> DataFrame:
        """Rows the operator gets, none of them."""
        return self.stage.batch(self.batch.stand_ins)

    @cached_property
    def stores(self) -> dict[str, StoreShape]:
        """The stores the operator wants."""
        return self.stage.operator.stores(self.batch.made)

    def of_rows(
        self, rows: Sequence[DataFrame | None], partitions: int, marks: Watermarks
    ) -> DataFrame:
        """What the tasks get in a version, of rows of each origin of the stage."""
        given = iter(rows)
        reached = []
        for each, template in zip(self.stage.inputs, self.reached, strict=True):
            own = list(islice(given, len(each.flow.origins)))
            reached.append(own[0] if template is None else template.fill(*own))
        if self.stage.operator.reads_marks:
            return self.stage.batch_frame(self.batch.moved(reached), partitions, marks)
        return self.batch.fill(*reached)


EarlierStages = Mapping[Stage, StageFrames]


def schemas_of(origins: Sequence[DataFrame | Stage], before: EarlierStages) -> list[StructType]:
    """The schemas of the rows of some origins."""
    return [
        before[origin].rows_schema if isinstance(origin, Stage) else origin.schema
        for origin in origins
    ]


@dataclass(frozen=True)
class OutputFrames:
    """How rows that tasks emitted, or that are read from state, come into a frame."""

    root: str
    options: Mapping[str, str] = field(repr=False)
    conf: StateStoreConf
    schema: StructType
    numbers: Callable[[SparkSession, int], DataFrame]
    """Gives a frame that has each partition's number in the partition, at least so many."""

    def reader(self, parts: Sequence[Emission]) -> OutboxReader:
        """Reads what tasks emitted."""
        return OutboxReader(self.root, self.options, tuple(parts), self.conf)

    def at_hand(self, session: SparkSession, reader: OutboxReader) -> DataFrame:
        """Rows that came with the tasks' results: Spark has no job to run for them."""
        table = reader.table()
        try:
            return session.createDataFrame([] if table is None else table, self.schema)
        except ValueError:
            if frame_limits(session).rows > 0:
                raise
            # PySpark fails to cut a table into batches of any size, which such a setting means.
            return self.by_tasks(session, reader)

    def by_tasks(self, session: SparkSession, reader: OutboxReader | StoredOutput) -> DataFrame:
        """Rows read by tasks, one for each partition."""

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            process.acknowledge()
            for batch in batches:
                for partition in batch.column(0).to_pylist():
                    if isinstance(reader, OutboxReader):
                        yield from reader.read(partition)
                    else:
                        for table in read_output(reader, partition):
                            yield from table.to_batches()
            process.acknowledge()

        parts = reader.parts if isinstance(reader, OutboxReader) else ()
        count = 1 + max((part.partition for part in parts), default=0)
        return self.numbers(session, count).mapInArrow(read, self.schema)

    def rows(self, session: SparkSession, emitted: Sequence[Emission]) -> DataFrame | None:
        """What tasks emitted; None where that is nothing."""
        if not any(part.rows for part in emitted):
            return None
        reader = self.reader(emitted)
        return (self.at_hand if reader.is_at_hand else self.by_tasks)(session, reader)


@dataclass(frozen=True)
class StageRun:
    """A stage once its state is open; `schema` is that of the Arrow rows its tasks get."""

    frames: StageFrames
    stores: Mapping[str, StoreSpec]
    schema: bytes
    rdd: StateStoreRDD

    @property
    def stage(self) -> Stage:
        """What it is a run of."""
        return self.frames.stage

    @property
    def operator(self) -> Operator:
        """The stage's operator."""
        return self.stage.operator

    @property
    def store(self) -> StoreSpec:
        """The operator's store, or one of them: what they share can be asked of each."""
        return next(iter(self.stores.values()))

    @property
    def emits(self) -> bool:
        """Whether its output comes from the tasks' outbox instead of from state."""
        return self.operator.emits or self.store.is_foreign

    @property
    def output_frames(self) -> OutputFrames:
        """How its rows come into a frame."""
        store, rdd = self.store, self.rdd
        return OutputFrames(
            store.root,
            store.options,
            store.conf,
            self.frames.rows_schema,
            lambda session, _: rdd.numbers(session),
        )


@dataclass(frozen=True)
class QueryOutput:
    """Where a query's rows come out, with what the user does to them at the end.

    They come out of the last stage, or else of several at once, or of one beside a source: then
    `union` makes one frame of them, whose rows tasks emit before they are committed.
    """

    output_frames: OutputFrames
    output: Template
    last: StageRun | None
    """The stage they come out of, if that is one."""
    union: Template | None

    @property
    def is_deterministic(self) -> bool:
        """Whether the same rows come out of the same rows, however these are partitioned."""
        return seam.frames.is_deterministic(self.output.made)

    @classmethod
    def of(
        cls, flow: Flow, runs: Mapping[Stage, StageRun], own: SparkSession, user: SparkSession
    ) -> QueryOutput:
        """The output of a flow at its end: `own` is the session that tasks' rows are made in."""
        only = flow.origins[0]
        if len(flow.origins) == 1 and isinstance(only, Stage):
            last = runs[only]
            output = Template(user, [last.frames.rows_schema], flow.rows)
            return cls(last.output_frames, output, last, None)
        frames = {stage: run.frames for stage, run in runs.items()}
        union = Template(own, schemas_of(flow.origins, frames), flow.rows)
        some, schema = next(iter(runs.values())).store, union.made.schema
        if odd := seam.tasks.not_in_arrow(schema):
            raise InvalidArgument(
                f"The column {odd.name!r} of the union is {odd.dataType.simpleString()}, which "
                "cannot be kept until it is delivered. Cast it to another type, or give the fields "
                "of a struct different names."
            )
        output_frames = OutputFrames(
            some.root,
            some.options,
            some.conf,
            schema,
            lambda session, count: session.range(0, count, 1, count),
        )
        return cls(output_frames, Template(user, [schema], lambda rows: rows[0]), None, union)

    def emit(
        self,
        rows: Sequence[DataFrame | None],
        version: int,
        locality: Locality,
        inline_bytes: int,
    ) -> tuple[list[Emission], DataFrame | None]:
        """Have tasks emit what a version delivers: that, and the frame of it, if there was one.

        Requires: there is a union.
        """
        assert self.union is not None
        if all(each is None for each in rows):
            return [Emission(0)], None
        frame = self.union.fill(*rows)
        schema, parts = (
            seam.tasks.arrow_schema(frame).serialize().to_pybytes(),
            seam.tasks.arrow_rdd(frame),
        )
        place = self.output_frames
        outbox = Outbox(
            place.root,
            version,
            max(parts.getNumPartitions(), 1),
            place.options,
            place.conf,
            inline_bytes,
        )
        emitted = collected(
            locality, parts, lambda number, raw: emit_batches(outbox, number, schema, raw)
        )
        return emitted or [Emission(0)], frame


@dataclass
class ComputedVersion:
    """What the tasks of a version made, before it is committed."""

    step: VersionStep
    """The version's, in the end with the watermarks that follow from its rows."""
    results: dict[int, list[TaskResult]] = field(default_factory=dict)
    emitted: list[Emission] = field(default_factory=list)
    """What is delivered, as far as tasks emitted it."""
    late_rows: int = 0
    """The late rows that Spark itself filtered out."""
    event_times: dict[EventTime, EventTimeStats | None] = field(default_factory=dict)
    """Those behind operators."""
    event_time: EventTimeStats | None = None
    """The event times of the first withWatermark that saw any."""
    input_rows: int | None = None
    """How many rows the batch had, where the first operator does not get them all."""

    @property
    def every_result(self) -> list[TaskResult]:
        """The results of all operators' tasks."""
        return [result for found in self.results.values() for result in found]

    def look_at(self, end: Flow | Stage, frame: DataFrame | None) -> None:
        """Take note of what was observed of the rows of a stage, or of a query's end, if any."""
        if frame is None:
            return
        self.late_rows += sum(each[0] for each in seam.frames.observed_metrics(frame, LATE))
        for event_time in end.event_times:
            self.event_times[event_time] = event_time.seen(frame)
