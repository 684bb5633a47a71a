"""Clicks grouped into sessions per user, each written to parquet once, across a restart.

    python examples/click_sessions.py

A session ends after five minutes without a click. It is written when the watermark, ten minutes
behind the newest click, has passed its end. The query is stopped while sessions are open, and the
next run resumes with them. The files are read with pyarrow, and so is the state.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import stateful
from holdfast.spark import StatefulDataFrame

SCHEMA = "user string, page string, at timestamp"
DAY = "2024-05-01T"
RUNS = (
    # runs of files of clicks: user, page, time
    (
        (("Sankar", "/", "12:00:00Z"), ("Sankar", "/shoes", "12:04:00Z")),
        (("Jade", "/", "12:05:00Z"), ("Jade", "/cart", "12:09:00Z")),
    ),
    (
        # Out of order: it extends Sankar's session, which the first run left open.
        (("Sankar", "/cart", "12:08:00Z"), ("Kun", "/", "12:30:00Z")),
        (("Kun", "/shoes", "12:31:00Z"),),
        # Late: Jade's session is written.
        (("Jade", "/pay", "12:01:00Z"),),
    ),
)


def sessions(clicks: DataFrame) -> StatefulDataFrame:
    """One row for each session of a user."""
    return (
        stateful(clicks)
        .withWatermark("at", "10 minutes")
        .groupBy("user", F.session_window("at", "5 minutes").alias("session"))
        .agg(F.count("*").alias("clicks"))
        .select("user", "session.start", "session.end", "clicks")
    )


def arrive(folder: Path, number: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put a file into the folder whole; its number is its time, by which a source takes files."""
    unfinished = folder / f".{number}"
    unfinished.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(unfinished, (number + 1, number + 1))
    unfinished.rename(folder / f"{number}.json")


def run(spark: SparkSession, place: Path) -> None:
    """Read what has arrived, then stop."""
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    query = (
        sessions(source.json(str(place / "clicks")))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(place / "sessions"))
    )
    query.awaitTermination()


def show(place: Path) -> None:
    """Print the sessions that were written, and those that are still open."""
    files = sorted((place / "sessions").glob("*.parquet"))
    written = [row for file in files for row in pq.read_table(file).to_pylist()]
    for row in sorted(written, key=lambda row: (row["user"], row["start"])):
        print(f"  {row['user']} {row['start']:%H:%M} to {row['end']:%H:%M}, {row['clicks']} clicks")
    print(f"  open: {holdfast.read(place / 'checkpoint').to_arrow().num_rows}")


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        place = Path(folder)
        clicks = place / "clicks"
        clicks.mkdir()
        for number, files in enumerate(RUNS):
            for which, some in enumerate(files):
                rows = [{"user": user, "page": page, "at": DAY + at} for user, page, at in some]
                arrive(clicks, 10 * number + which, rows)
            run(spark, place)
            print(f"after run {number + 1}")
            show(place)
    spark.stop()


if __name__ == "__main__":
    main()
