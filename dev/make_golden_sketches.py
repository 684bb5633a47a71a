"""Write the golden checkpoint of a stream that counts distinct values, as the code at hand does.

    python dev/make_golden_sketches.py FOLDER

FOLDER gets the checkpoint and `expected.json`, as make_golden_stream.py writes them. The one among
the tests was written by code that kept sketches; it is never written again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast import stateful
from make_golden_stream import INPUT as INPUT
from make_golden_stream import write_golden

SCHEMA = "id string, v long"
_COUNTS = {"few": 12, "many": 1500, "none": 1}


def write(folder: Path, number: int) -> None:
    """The file of a batch; half of its values are those of the batch before."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = [name for name, count in _COUNTS.items() for _ in range(count)]
    values = [
        None if name == "none" else at + number * count // 2
        for name, count in _COUNTS.items()
        for at in range(count)
    ]
    path = folder / f"{number}.parquet"
    pq.write_table(pa.table({"id": ids, "v": pa.array(values, pa.int64())}), path)
    os.utime(path, (number + 1000, number + 1000))


def counted(rows: Any) -> Any:
    """The aggregation, of a stream or of a table; two columns want the same name in state."""
    return rows.groupBy("id").agg(
        F.approx_count_distinct("v").alias("n"),
        F.count("v").alias("n_sketch_"),
        F.approx_count_distinct("v", 0.2).alias("rough"),
    )


def start(
    session: SparkSession, folder: Path, checkpoint: Path, given: dict[int, list[Any]]
) -> Any:
    """The query, all at hand in one run."""

    def keep(frame: DataFrame, number: int) -> None:
        given[number] = sorted(map(list, frame.collect()))

    rows = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
    return (
        counted(stateful(rows.parquet(str(folder))))
        .writeStream.outputMode("complete")
        .foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    write_golden(Path(sys.argv[1]), write, start)
