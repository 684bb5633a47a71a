"""Processors over DataFrames that are not streams: they run once, and the state is dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holdfast.conf import StateStoreConf
from holdfast.engine.storage import Runtime
from holdfast.reserved import HASH
from holdfast.spark.operators.frame_limits import frame_limits
from holdfast.spark.operators.keyed import KeyedOperator
from holdfast.spark.operators.operator import TaskSettings
from holdfast.spark.pipeline.tagged_union import tagged_union
from holdfast.streams.outbox import Outbox
from holdfast.streams.processors.handle import QueryInfo
from holdfast.streams.stores.embedded import BATCH_ROWS, START, EmbeddedTask
from holdfast.streams.tasks.inputs import INPUT
from holdfast.streams.tasks.processor import InitialTask
from holdfast.streams.tasks.task import StoreSpec
from holdfast.streams.watermark import Watermarks

_NOWHERE = "memory://embedded"


def processed(operator: KeyedOperator, rows: DataFrame) -> DataFrame:
    """The output of an operator for all rows of a DataFrame at once."""
    session = rows.sparkSession
    partitions = int(str(session.conf.get("spark.sql.shuffle.partitions")))
    frame = operator.batch_frame(rows, partitions, Watermarks())
    conf = StateStoreConf.empty
    stores = {
        name: StoreSpec.of(
            shape,
            root=_NOWHERE,
            operator=0,
            partitions=1,
            conf=conf,
            run_id="",
            name=name,
        )
        for name, shape in operator.stores(frame).items()
    }
    settings = TaskSettings(
        stores=stores,
        base_version=0,
        mode="append",
        ansi=True,
        marks=Watermarks(clock_ms=Runtime.system().clock_ms()),
        outbox=Outbox(_NOWHERE, 1, 1, {}),
        query=QueryInfo("", "", 0),
        zone=str(session.conf.get("spark.sql.session.timeZone")),
        frame_limits=frame_limits(session),
    )
    initial = operator.initial(settings, partitions)
    start = None
    if initial is not None:
        assert isinstance(initial.task, InitialTask)
        start = initial.task.task
        frame = _side_by_side(initial.rows, start.keys, frame, operator.key_names, partitions)
    embedded = EmbeddedTask(operator.task(settings), start)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return embedded.run(batches)

    return operator.output(frame.mapInArrow(run, operator.rows_schema(frame)))


def _side_by_side(
    start: DataFrame,
    start_keys: Sequence[str],
    rows: DataFrame,
    row_keys: Sequence[str],
    partitions: int,
) -> DataFrame:
    """Both in one DataFrame: in each partition first the initial state, then the other rows."""

    def held(frame: DataFrame, name: str) -> DataFrame:
        return frame.select(HASH, F.struct(*frame.columns).alias(name))

    both = tagged_union([held(start, START), held(rows, BATCH_ROWS)], INPUT, [HASH])
    keys = [*(f"{START}.{key}" for key in start_keys), *(f"{BATCH_ROWS}.{key}" for key in row_keys)]
    return both.repartition(partitions, HASH).sortWithinPartitions(INPUT, HASH, *keys)
