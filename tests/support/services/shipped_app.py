"""An application for spark-submit that tells where its tasks have the package from.

    spark-submit shipped_app.py FOLDER

Reads FOLDER/in one file a batch and keeps totals in FOLDER/cp. FOLDER/report.json gets the last
update of each user, the state as Spark's tasks read it, and the Python and the files of two tasks.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pyspark_holdfast
from holdfast import stateful


def whereabouts(_: int) -> dict[str, str]:
    """The Python of a task, and the files it has the two packages from."""
    names = ("holdfast", "pyspark_holdfast")
    files = {name: str(importlib.import_module(name).__file__) for name in names}
    return {"python": sys.executable, **files}


def main() -> None:
    folder = Path(sys.argv[1])
    spark = SparkSession.builder.appName("shipped").getOrCreate()
    updates: dict[int, int] = {}

    def keep(batch: DataFrame, version: int) -> None:
        updates.update((row.user, row.total) for row in batch.collect())

    source = spark.readStream.schema("user long, v long").option("maxFilesPerTrigger", "1")
    query = (
        stateful(source.parquet(str(folder / "in")))
        .groupBy("user")
        .agg(F.sum("v").alias("total"))
        .writeStream.outputMode("update")
        .foreachBatch(keep)
        .option("checkpointLocation", str(folder / "cp"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    if ".zip" in str(pyspark_holdfast.__file__):
        # Spark looks for sources among what is installed.
        spark.dataSource.register(pyspark_holdfast.DefaultSource)
    state = spark.read.format("holdfast").load(str(folder / "cp")).collect()
    report = {
        "updates": sorted(updates.items()),
        "state": sorted((row.key.user, row.value.total) for row in state),
        "tasks": spark.sparkContext.parallelize(range(2), 2).map(whereabouts).collect(),
    }
    (folder / "report.json").write_text(json.dumps(report))
    spark.stop()


if __name__ == "__main__":
    main()
