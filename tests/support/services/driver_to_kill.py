"""A driver that says on its output where it is, and dawdles there, to be killed by a test.

    python driver_to_kill.py FOLDER SINK [TRIGGER]

Reads FOLDER/in one file a batch, counts windows, delivers to FOLDER/out by SINK (parquet or
function) under TRIGGER (availableNow, or default). Ends when all files are read. From one line
`phase …` to the next it is in that phase.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

sys.path.append(str(Path(__file__).parents[1]))

from quiet_spark import builder

from holdfast import stateful
from holdfast.engine.versions.committer import Committer
from holdfast.engine.versions.log import VersionLog
from holdfast.spark.versions.computation import Computation
from holdfast.spark.versions.loop import VersionLoop

SCHEMA = "id string, v long, ts timestamp"
SHORTEST_S = 0.1
"""No phase is over sooner: whoever kills in it has so long from its line on."""


def announce(
    owner: type, name: str, phase: str, *, before: bool = True, after: bool = False, then: str = ""
) -> None:
    """Have a method say that a phase begins, and take its time `before` its work, or `after` it
    and say so again, or both; and say which phase `then` begins.

    Where the work itself takes long, a dawdle before it would keep the killer from hitting it.
    """
    method: Callable[..., Any] = getattr(owner, name)

    def slowly(*args: Any, **kwargs: Any) -> Any:
        say(phase)
        if before:
            dawdle()
        result = method(*args, **kwargs)
        if after:
            say(phase)
            dawdle()
        if then:
            say(then)
        return result

    setattr(owner, name, slowly)


def say(phase: str) -> None:
    print(f"phase {phase}", flush=True)


def dawdle() -> None:
    time.sleep(random.uniform(SHORTEST_S, SHORTEST_S + 0.05))


def windows(frame: Any) -> Any:
    """What the query computes; the test runs it natively, too."""
    return (
        frame.withWatermark("ts", "5 minutes")
        .groupBy("id", F.window("ts", "5 minutes"))
        .agg(F.sum("v").alias("total"), F.count("*").alias("n"))
        .select("id", F.col("window.start").cast("string").alias("start"), "total", "n")
    )


def session(name: str) -> SparkSession:
    return builder(name, master="local[2,4]").getOrCreate()


def to_files(folder: Path) -> Callable[[DataFrame, int], None]:
    """A function for foreachBatch that is idempotent: one file for each version, put in whole."""
    folder.mkdir(exist_ok=True)

    def write(rows: DataFrame, version: int) -> None:
        text = "".join(json.dumps(row.asDict()) + "\n" for row in rows.collect())
        aside = folder / f".{version}"
        aside.write_text(text)
        os.replace(aside, folder / f"{version}.json")

    return write


def main() -> None:
    folder, sink = Path(sys.argv[1]), sys.argv[2]
    is_bounded = (sys.argv[3:] or ["availableNow"]) == ["availableNow"]
    announce(VersionLoop, "run", "read", then="between")
    announce(Computation, "_run_stage", "compute", before=False, after=True)
    announce(Committer, "_pack", "write", after=True)
    announce(VersionLog, "publish", "commit", after=True)
    announce(VersionLoop, "_deliver", "deliver", before=False, after=True)
    spark = session("driver to kill")
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
    frame = windows(stateful(source.parquet(str(folder / "in"))))
    writer = frame.writeStream.outputMode("append")
    if is_bounded:
        writer = writer.trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(folder / "cp"))
    if sink == "parquet":
        query = writer.format("parquet").start(str(folder / "out"))
    else:
        query = writer.foreachBatch(to_files(folder / "out")).start()
    if not is_bounded:
        query.processAllAvailable()
        query.stop()
    query.awaitTermination()
    print(f"done {query.version}", flush=True)


if __name__ == "__main__":
    main()
