"""A stream of 90,000 rows a second that resumes where it stopped, however its process ended.

    python examples/checkpointing.py CHECKPOINT             rows go to the console
    python examples/checkpointing.py CHECKPOINT FOLDER      rows go to parquet files in FOLDER

It runs until Ctrl-C; without arguments for three batches, in a temporary folder. Run it with the
same CHECKPOINT again, even after `kill -9`: each value comes once, and none is missing.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast import stateful
from holdfast.spark import StatefulQuery

ROWS_PER_SECOND = 90_000


def checkpoint_exercise(
    spark: SparkSession, checkpoint: Path | str, folder: Path | str | None = None
) -> StatefulQuery | StreamingQuery:
    """Start the query. It has no stateful operator, so what runs is a plain query of Spark's."""
    df = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", ROWS_PER_SECOND)
        .option("rampUpTime", 1)
        .load()
    )
    rate_raw_data = stateful(df).selectExpr("CAST(timestamp AS STRING)", "CAST(value AS string)")
    return (
        rate_raw_data.writeStream.format("console" if folder is None else "parquet")
        .options(**({} if folder is None else {"path": str(folder)}))
        .queryName("Default")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )


def run_batches(query: StatefulQuery | StreamingQuery, count: int) -> None:
    """Wait until the query has run `count` batches with rows."""
    while sum(progress["numInputRows"] > 0 for progress in query.recentProgress) < count:
        if query.awaitTermination(1):
            break


def main() -> None:
    spark = (
        SparkSession.builder.master("local")
        .appName("Checkpoint Example")
        # The first batch after a pause has all rows of the pause, and the console takes it whole.
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    if len(sys.argv) > 1:
        places = sys.argv[1:3]
        checkpoint_exercise(spark, *places).awaitTermination()
    else:
        with tempfile.TemporaryDirectory(prefix="holdfast-") as place:
            query = checkpoint_exercise(spark, Path(place, "checkpoint"))
            run_batches(query, 3)
            query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
