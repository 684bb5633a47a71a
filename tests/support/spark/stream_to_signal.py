"""A driver to be sent signals: counts rows by key, file by file, until it is told to stop."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from holdfast import stateful


def main(source: str, checkpoint: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    rows = spark.readStream.schema("k string").option("maxFilesPerTrigger", "1").json(source)
    query = (
        stateful(rows)
        .groupBy("k")
        .count()
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
        print(f"stopped at version {query.version}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
