"""A stage of a query as it runs: what Spark computes for it, its stores, and its output rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.engine.chain import StoreShape
from holdfast.spark import jvm
from holdfast.spark.located_rdd import StateStoreRDD
from holdfast.spark.operators import Operator, Stage
from holdfast.spark.templates import Template
from holdfast.streams import worker
from holdfast.streams.outbox import Emitted, OutboxReader
from holdfast.streams.reading import Output, read_output
from holdfast.streams.task import StoreSpec
from holdfast.streams.watermark import Watermarks


@dataclass(frozen=True)
class StageFrames:
    """What Spark computes for a stage: the tasks' input of a batch, and the output of its rows."""

    stage: Stage
    before: DataFrame
    batch: Template
    rows_schema: StructType
    output: Template

    @classmethod
    def of(
        cls, stage: Stage, before: DataFrame, partitions: int, output_session: SparkSession
    ) -> StageFrames:
        """Those of a stage that comes after `before`, a frame without rows."""
        operator = stage.operator
        batch = Template(
            before.sparkSession,
            before.schema,
            lambda rows: stage.batch_frame(rows, partitions, Watermarks()),
        )
        rows_schema = operator.rows_schema(batch.made)
        output = Template(output_session, rows_schema, stage.output)
        return cls(stage, before, batch, rows_schema, output)

    @cached_property
    def stores(self) -> dict[str, StoreShape]:
        """The stores the operator wants."""
        return self.stage.operator.stores(self.batch.made)

    def of_batch(self, batch: DataFrame, partitions: int, marks: Watermarks) -> DataFrame:
        """What the tasks get of a batch."""
        if self.stage.operator.reads_marks:
            batch = jvm.moved(batch, self.before.sparkSession)
            return self.stage.batch_frame(batch, partitions, marks)
        return self.batch.fill(batch)


@dataclass(frozen=True)
class StageRun:
    """A stage once its state is open; `schema` is that of the Arrow rows its tasks get."""

    frames: StageFrames
    stores: Mapping[str, StoreSpec]
    schema: bytes
    rdd: StateStoreRDD

    @property
    def operator(self) -> Operator:
        """The stage's operator."""
        return self.frames.stage.operator

    @property
    def store(self) -> StoreSpec:
        """The operator's store, or one of them: what they share can be asked of each."""
        return next(iter(self.stores.values()))

    @property
    def emits(self) -> bool:
        """Whether its output comes from the tasks' outbox instead of from state."""
        return self.operator.emits or self.store.is_foreign

    def reader(self, parts: Sequence[Emitted]) -> OutboxReader:
        """Reads what tasks emitted."""
        return OutboxReader(self.store.root, self.store.options, tuple(parts), self.store.conf)

    def at_hand(self, session: SparkSession, reader: OutboxReader) -> DataFrame:
        """Rows that came with the tasks' results: Spark has no job to run for them."""
        table = reader.table()
        return session.createDataFrame([] if table is None else table, self.frames.rows_schema)

    def by_tasks(self, session: SparkSession, reader: OutboxReader | Output) -> DataFrame:
        """Rows read by tasks, one for each partition."""

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            worker.acknowledge()
            for batch in batches:
                for partition in batch.column(0).to_pylist():
                    if isinstance(reader, OutboxReader):
                        yield from reader.read(partition)
                    else:
                        for table in read_output(reader, partition):
                            yield from table.to_batches()
            worker.acknowledge()

        return self.rdd.numbers(session).mapInArrow(read, self.frames.rows_schema)
