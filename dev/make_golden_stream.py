"""Write a golden checkpoint: that of a small stream, as the code at hand leaves it.

    python dev/make_golden_stream.py FOLDER

FOLDER gets the checkpoint, and `expected.json` with what the sink was given by batch id. The
tests resume such checkpoints; those of code that was released are never written again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast import stateful

SCHEMA = "id string, v long, ts timestamp"
START_S = 1_700_000_100
INPUT = "file:///input"
"""Where files were read from, as the checkpoint has it: no path of the machine that made it."""


def write(folder: Path, number: int) -> None:
    """The file of a batch."""
    folder.mkdir(parents=True, exist_ok=True)
    moments = [START_S + 600 * number + 60 * minute for minute in (0, 4, 8)]
    times = pa.array([moment * 1_000_000 for moment in moments], pa.timestamp("us", tz="UTC"))
    path = folder / f"{number}.parquet"
    pq.write_table(pa.table({"id": ["a", "b", "a"], "v": [1, 2, number], "ts": times}), path)
    os.utime(path, (number + 1000, number + 1000))


def start(
    session: SparkSession, folder: Path, checkpoint: Path, given: dict[int, list[Any]]
) -> Any:
    """The query, all at hand in one run."""

    def keep(frame: DataFrame, number: int) -> None:
        given[number] = sorted(map(list, frame.collect()))

    rows = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
    return (
        stateful(rows.parquet(str(folder)))
        .withWatermark("ts", "1 minute")
        .groupBy("id", F.window("ts", "5 minutes"))
        .agg(F.sum("v").alias("total"))
        .select("id", F.unix_seconds(F.col("window.end")).alias("until"), "total")
        .writeStream.outputMode("update")
        .foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def write_golden(
    folder: Path,
    write: Callable[[Path, int], None],
    start: Callable[[SparkSession, Path, Path, dict[int, list[Any]]], Any],
) -> None:
    """Run two batches of a stream, and write its checkpoint and what its sink was given."""
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    given: dict[int, list[Any]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary)
        for number in range(2):
            write(made / "in", number)
        start(session, made / "in", made / "cp", given).awaitTermination()
        for checksum in (made / "cp").rglob(".*.crc"):
            checksum.unlink()
        for log in (made / "cp" / "sources").rglob("*"):
            if log.is_file():
                log.write_text(log.read_text().replace(f"file://{made}/in", INPUT))
        for claim in (made / "cp" / "holdfast" / "claims").iterdir():
            body = {**json.loads(claim.read_text()), "process": "process 1 on a host"}
            claim.write_text(json.dumps(body))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made / "cp", folder / "cp")
    expected = {"given": {str(number): rows for number, rows in sorted(given.items())}}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    write_golden(Path(sys.argv[1]), write, start)
