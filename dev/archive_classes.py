"""Writes the classes that Spark loads for a small stream to an archive that a JVM can map.

python dev/archive_classes.py FILE

A JVM that is started with -XX:SharedArchiveFile=FILE reads and verifies none of them again, which
takes a third of the time of every test that starts a Spark of its own. An archive that does not
belong to the JVM or to its jars is ignored.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast import stateful
from servers import QUICK_START


def archive(path: Path) -> None:
    """Run a stream in a JVM that writes the archive when it ends."""
    unfinished = path.with_suffix(".part")
    unfinished.unlink(missing_ok=True)
    options = " ".join((*QUICK_START, f"-XX:ArchiveClassesAtExit={unfinished}", "-Xlog:disable"))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-java-options '{options}' pyspark-shell"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.log.level", "ERROR")
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        run_streams(session, Path(folder))
    java = session.sparkContext._gateway.proc
    session.stop()
    java.stdin.close()  # what tells it to end
    java.wait()
    unfinished.rename(path)


def run_streams(session: SparkSession, folder: Path) -> None:
    """A windowed aggregation of two files, by Holdfast and by Spark's own."""
    seconds = session.range(100).select(
        (F.col("id") % 7).alias("k"), F.timestamp_seconds("id").alias("ts")
    )
    seconds.repartition(2).write.parquet(f"{folder}/in")
    for name, wrapped in (("ours", stateful), ("native", lambda frame: frame)):
        source = session.readStream.schema(seconds.schema).parquet(f"{folder}/in")
        counted = (
            wrapped(source)
            .withWatermark("ts", "1 second")
            .groupBy("k", F.window("ts", "10 seconds"))
            .agg(F.count("*"), F.sum("k"))
        )
        query = (
            counted.writeStream.outputMode("append")
            .foreachBatch(lambda frame, _: print(len(frame.collect()), "windows"))
            .option("checkpointLocation", f"{folder}/{name}")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    archive(Path(sys.argv[1]).absolute())
