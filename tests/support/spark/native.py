"""The same pipeline through Spark's own streaming and through Holdfast, batch by batch."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession

from holdfast import stateful

if TYPE_CHECKING:
    from native_recordings import NativeRuns

SCHEMA = "id string, v long, x double, d decimal(12,2), ts timestamp"
_START_S = 1_700_000_000


def write_batches(folder: Path, seed: int, batches: int = 3, spread_s: int = 900) -> None:
    """Random rows, one file a batch; event times move on and are late by up to `spread_s`."""
    rnd = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(batches):
        size = rnd.randrange(1, 40)
        now = _START_S + number * 400

        def cells(make: Callable[[], Any], n: int = size) -> list[Any]:
            return [None if rnd.random() < 0.15 else make() for _ in range(n)]

        table = pa.table(
            {
                "id": pa.array(cells(lambda: rnd.choice("abc")), pa.string()),
                "v": pa.array(cells(lambda: rnd.randrange(-50, 50)), pa.int64()),
                "x": pa.array(
                    cells(lambda: rnd.choice([math.nan, -0.0, rnd.random()])),
                    pa.float64(),
                    from_pandas=False,
                ),
                "d": pa.array(
                    cells(lambda: rnd.randrange(-(10**9), 10**9)), pa.int64()
                ).cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2)),
                "ts": pa.array(
                    [(now + rnd.randrange(-spread_s, 400)) * 1_000_000 for _ in range(size)],
                    pa.timestamp("us", tz="UTC"),
                ),
            }
        )  # fmt: skip
        write_batch(folder, number, table)


def write_batch(folder: Path, number: int, table: pa.Table) -> None:
    """One file of a stream; Spark takes them in the order of their numbers."""
    path = folder / f"{number:03d}.parquet"
    pq.write_table(table, path)
    os.utime(path, (number + 1000, number + 1000))


def run(
    spark: SparkSession,
    folder: Path,
    checkpoint: Path,
    pipeline: Callable[[Any], Any],
    mode: str,
    *,
    native: bool,
) -> list[list[tuple[Any, ...]]]:
    """The output of every batch that had one, each as sorted rows."""
    return in_order(collect(spark, folder, checkpoint, pipeline, mode, native=native))


def in_order(outputs: list[list[Row]]) -> list[list[tuple[Any, ...]]]:
    """The rows of each batch in an order and a form that two runs can be compared by."""
    return [sorted((tuple(map(normal, row)) for row in rows), key=repr) for rows in outputs]


def check_like_spark(
    native_runs: NativeRuns, folder: Path, name: str, pipeline: Callable[[Any], Any], mode: str
) -> None:
    """Hold every batch of a pipeline to what Spark's own streaming gives; `name` is the seed."""
    seed = sum(map(ord, name))
    print(f"seed {seed}")
    write_batches(folder / "in", seed, batches=3 if mode == "append" else 2)
    check_input_like_spark(native_runs, folder, pipeline, mode)


def check_input_like_spark(
    native_runs: NativeRuns, folder: Path, pipeline: Callable[[Any], Any], mode: str
) -> None:
    """Do the same with the input that is in the folder already."""
    native = native_runs.run(folder / "in", folder / "native", pipeline, mode)
    ours = run(native_runs.spark, folder / "in", folder / "ours", pipeline, mode, native=False)
    assert ours == native
    assert native


def collect(
    spark: SparkSession,
    folder: Path,
    checkpoint: Path,
    pipeline: Callable[[Any], Any],
    mode: str,
    *,
    native: bool,
    schema: str = SCHEMA,
) -> list[list[Row]]:
    """The output of every batch that had one, from one start of the query to its end."""
    source = source_of(spark, folder, schema)
    return outputs_of(pipeline(source if native else stateful(source)), checkpoint, mode)


def source_of(spark: SparkSession, folder: Path, schema: str = SCHEMA) -> DataFrame:
    """The files of a folder as a stream, one a batch."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").parquet(str(folder))


def outputs_of(frame: Any, checkpoint: Path, mode: str) -> list[list[Row]]:
    """The output of every batch that had one, from one start of a query of either to its end."""
    outputs: dict[int, list[Row]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        if rows := batch.collect():
            outputs[number] = rows

    query = (
        frame.writeStream.outputMode(mode)
        .foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [outputs[number] for number in sorted(outputs)]


def normal(cell: Any) -> Any:
    """A cell in a form two runs can be compared by: doubles to nine digits, lists as multisets."""
    if isinstance(cell, float):
        return "NaN" if math.isnan(cell) else float(f"{cell:.9g}")
    if isinstance(cell, list):
        return sorted(map(normal, cell), key=repr)
    return cell
