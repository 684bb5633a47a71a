"""Processors over DataFrames that are no streams: one run, and the state is gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.conf import StateStoreConf
from holdfast.engine.storage import Runtime
from holdfast.errors import InvalidArgument
from holdfast.spark.keyed import KeyedOperator
from holdfast.spark.operators import TaskSettings
from holdfast.streams.embedded import Embedded
from holdfast.streams.handle import QueryInfo
from holdfast.streams.outbox import Outbox
from holdfast.streams.task import StoreSpec
from holdfast.streams.watermark import Watermarks

_NOWHERE = "memory://embedded"


def processed(operator: KeyedOperator, rows: DataFrame) -> DataFrame:
    """What an operator makes of the rows of a DataFrame, all of them at once."""
    session = rows.sparkSession
    if operator.has_initial:
        raise InvalidArgument(
            "Initial state is for streams. For a DataFrame that is none, union its rows to it."
        )
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
    )
    embedded = Embedded(operator.task(settings))

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return embedded.run(batches)

    return operator.output(frame.mapInArrow(run, operator.rows_schema(frame)))
