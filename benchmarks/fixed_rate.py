"""A stream at a fixed rate whose keys become more and more: does anything grow that should not?

    python benchmarks/fixed_rate.py [--minutes 30]

Totals by user from Spark's rate source, a batch every second, some of the rows by new users. The
last third of the time is compared with the third before it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from charts import lines
from harness import RESULTS, Report
from holdfast import stateful
from processes import MiB, files_below, python_mib, size_of

ROWS_A_SECOND = 1000
ROWS_A_USER = 10
LOOK_EVERY_S = 10
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.streaming.stateStore.maintenanceInterval": "15s",
    "spark.holdfast.gracePeriod": "30s",
    "spark.holdfast.progress": "false",
}


@dataclass(frozen=True)
class Look:
    """What was seen at one moment."""

    minute: float
    batch_s: float
    """The median of the batches since the moment before."""
    python_mib: float
    """Private memory of the driver's Python and of the workers."""
    heap_mib: float
    """What lives in the JVM."""
    files: int
    state_mib: float
    keys: int


def heap_mib(spark: SparkSession) -> float:
    """What is left in the JVM after a collection."""
    jvm: Any = spark._jvm
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return float(runtime.totalMemory() - runtime.freeMemory()) / MiB


def start(spark: SparkSession, folder: Path) -> Any:
    rows = spark.readStream.format("rate").option("rowsPerSecond", ROWS_A_SECOND)
    source = rows.option("numPartitions", 2).load()
    # Every tenth row is a new user's; the others are by somebody who was there before.
    earlier = F.abs(F.hash("value")) % (F.col("value") + 1)
    someone = F.when(F.col("value") % ROWS_A_USER == 0, F.col("value")).otherwise(earlier)
    return (
        stateful(source.select(F.floor(someone / ROWS_A_USER).alias("user"), "value"))
        .groupBy("user")
        .agg(F.sum("value").alias("total"), F.count("*").alias("n"), F.max("value").alias("last"))
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(folder / "cp"))
        .trigger(processingTime="1 second")
        .start()
    )


def watched(spark: SparkSession, query: Any, folder: Path, minutes: float) -> list[Look]:
    started, looks, seen = time.monotonic(), [], 0
    while (passed := time.monotonic() - started) < minutes * 60:
        time.sleep(LOOK_EVERY_S)
        told = [each for each in query.recentProgress if each.batchId >= seen]
        if not told:
            continue
        seen = told[-1].batchId + 1
        state = files_below(folder / "cp" / "holdfast")
        looks.append(
            Look(
                passed / 60,
                statistics.median(each.batchDuration for each in told) / 1000,
                python_mib(),
                heap_mib(spark),
                len(state),
                sum(size_of(path) for path in state) / MiB,
                told[-1].stateOperators[0].numRowsTotal,
            )
        )
        if len(looks) % 6 == 0:
            print(looks[-1], flush=True)
    return looks


def told(report: Report, looks: list[Look], minutes: float) -> None:
    before = [look for look in looks if minutes / 3 <= look.minute < 2 * minutes / 3]
    last = [look for look in looks if look.minute >= 2 * minutes / 3]

    def compare(
        name: str,
        unit: str,
        figure: Callable[[Look], float],
        at_most: float,
        whole: Callable[[list[float]], float] = statistics.median,
    ) -> None:
        was, now = (whole([figure(look) for look in part]) for part in (before, last))
        report.add(name, now, unit, note="last third")
        report.add(f"{name}: last third to the one before", now / was, "ratio", at_most=at_most)

    report.add("minutes", looks[-1].minute, "min", note=f"{ROWS_A_SECOND} rows a second")
    report.add("users in the end", looks[-1].keys, "keys")
    report.add("state in the end", looks[-1].state_mib, "MiB", note="20 versions retained")
    compare("a batch", "s", lambda look: look.batch_s, 1.3)
    compare("private memory of Python processes", "MiB", lambda look: look.python_mib, 1.2)
    compare("heap of the JVM after a collection", "MiB", lambda look: look.heap_mib, 1.2)
    compare("files of the state at most", "files", lambda look: float(look.files), 1.2, max)


def chart(looks: list[Look]) -> str:
    figures: dict[str, Callable[[Look], float]] = {
        "seconds of a batch": lambda look: look.batch_s,
        "users": lambda look: look.keys,
        "MiB of Python processes": lambda look: look.python_mib,
        "MiB of heap": lambda look: look.heap_mib,
        "files of the state": lambda look: look.files,
        "MiB of the state": lambda look: look.state_mib,
    }
    series = {
        name: [(look.minute, float(figure(look))) for look in looks]
        for name, figure in figures.items()
    }
    return lines(f"{ROWS_A_SECOND:,} rows a second, a tenth by new users", "minutes", series)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    minutes = parser.parse_args().minutes
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("fixed rate")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    report = Report("A fixed rate and more and more keys")
    with tempfile.TemporaryDirectory(prefix="holdfast-rate-") as folder:
        query = start(spark, Path(folder))
        looks = watched(spark, query, Path(folder), minutes)
        query.stop()
        total = query.state().scan(columns=["n"]).column("n").to_numpy().sum()
    spark.stop()
    report.add("rows counted, none lost", float(total), "rows")
    told(report, looks, minutes)
    report.write("soak-rate")
    (RESULTS / "soak-rate.svg").write_text(chart(looks))
    sys.exit(0 if report.all_hold else 1)


if __name__ == "__main__":
    main()
