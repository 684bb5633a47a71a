"""A stateful operator with two inputs, as small as one can be: deposits and debits of accounts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from holdfast.engine.hashing.spark_hash import spark_sql_hash
from holdfast.engine.partition.shape import StoreShape
from holdfast.ids import DEFAULT_STORE_NAME
from holdfast.reserved import HASH
from holdfast.spark.frame import StatefulDataFrame
from holdfast.spark.operators.columns import nullable, with_metadata
from holdfast.spark.operators.operator import Operator, TaskSettings
from holdfast.spark.pipeline.flow import Flow, Input, Stage
from holdfast.streams.outbox import Outbox
from holdfast.streams.tasks.inputs import INPUT, split_inputs
from holdfast.streams.tasks.task import StoreSpec, Task, TaskResult, prepare_result, read_input
from holdfast.streams.watermark import Watermarks
from holdfast.types import parse_schema

# Workers cannot import the modules of tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
HOLD_S = 180
"""How much older than its input what comes out is."""
OUTPUT = pa.schema(
    [("k", pa.string()), ("moved", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))]
)


@dataclass(frozen=True)
class LedgerTask:
    """Adds up deposits and debits of each account, and emits a row for each of them."""

    store: StoreSpec
    base_version: int
    outbox: Outbox

    def run(self, partition: int, schema: bytes, batches: Iterable[bytes]) -> TaskResult:
        table = read_input(self.store, partition, schema, batches)
        columns = [[HASH, "k", "ts", "amount"], [HASH, "k", "ts", "fee"]]
        deposits, debits = split_inputs(table, columns)
        store = self.store.open(partition, self.base_version)
        moved: list[dict[str, Any]] = []
        totals: dict[str, list[int]] = {}
        for place, (rows, name) in enumerate(((deposits, "amount"), (debits, "fee"))):
            for row in rows.select(["k", "ts", name]).to_pylist():
                key, cell = row["k"], row[name]
                known = totals.setdefault(key, [*(store.get((key,)) or (0, 0))])
                known[place] += cell
                moved.append({"k": key, "moved": -cell if place else cell, "ts": row["ts"]})
        for key, (credit, debit) in totals.items():
            store.put((key,), (credit, debit))
        out = pa.Table.from_pylist(moved, schema=OUTPUT)
        ages = pa.array(np.full(out.num_rows, HOLD_S * 1_000_000), pa.duration("us"))
        older = pa.compute.subtract(out.column("ts"), ages)
        emitted = self.outbox.emit(partition, [out.set_column(2, OUTPUT.field("ts"), older)])
        return prepare_result(store, emitted, rows=table.num_rows, updated=len(totals))


class Ledger(Operator):
    """The operator of the task."""

    title = "ledger"
    emits = True
    common = ("k", "ts")

    def __init__(self, after: DataFrame) -> None:
        self._output: Sequence[StructField] = after.schema.fields

    def definition(self) -> dict[str, str]:
        return {"operator": self.title}

    def columns(self, before: Sequence[DataFrame], after: DataFrame) -> dict[str, str]:
        return {"inputs": "; ".join(", ".join(each.columns) for each in before)}

    def ticks(self, mode: str) -> bool:
        return False

    def input_rows(self, number: int, rows: DataFrame) -> DataFrame:
        return rows.select("k", "ts", "fee" if number else "amount")

    def output_watermark(self, input_ms: int) -> int:
        return input_ms - HOLD_S * 1000

    def batch_frame(self, batch: DataFrame, partitions: int, marks: Watermarks) -> DataFrame:
        rows = batch.select(INPUT, "k", "ts", "amount", "fee").repartition(partitions, "k")
        return rows.withColumn(HASH, F.expr(spark_sql_hash(["k"], 1)))

    def stores(self, frame: DataFrame) -> dict[str, StoreShape]:
        value = parse_schema("credit long, debit long")
        return {DEFAULT_STORE_NAME: StoreShape.of(parse_schema("k string"), value, None, 0)}

    def rows_schema(self, frame: DataFrame) -> StructType:
        return nullable(list(self._output))

    def task(self, settings: TaskSettings) -> Task:
        assert settings.outbox is not None
        assert len(settings.input_marks) == 2
        return LedgerTask(settings.store, settings.base_version, settings.outbox)

    def output(self, rows: DataFrame) -> DataFrame:
        return rows.select(*[with_metadata(F.col(field.name), field) for field in self._output])


def ledger(deposits: StatefulDataFrame, debits: StatefulDataFrame) -> StatefulDataFrame:
    """What moves on accounts, of deposits with an `amount` and debits with a `fee`."""
    both = deposits._native, debits._native
    sides = (both[0].select("k", "amount", "ts"), both[1].select("k", -F.col("fee"), "ts"))
    after = sides[0].union(sides[1]).toDF("k", "moved", "ts")
    flows = (deposits._flow, debits._flow)
    inputs = tuple(Input(flow, native) for flow, native in zip(flows, both, strict=True))
    return StatefulDataFrame(after, Flow.of(Stage(Ledger(after), inputs, after)))
