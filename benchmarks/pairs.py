"""Two states of the code in turn: does a change cost processor time?

    git worktree add ../before REVISION
    python benchmarks/pairs.py ../before/src src [--pairs 9] [--only managed,custom]

A run is a driver of its own that feeds one query batch after batch. What counts is the CPU time of
the driver, its JVM and its workers, of all batches but the first ones; it says little of the other
work on the machine. The bar is the median of the ratios within pairs, whose order changes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness import Report
from processes import cpu_s

WARM, MEASURED = 2, 6
"""Batches before the measured ones, and these."""
AT_MOST = 1.05


def managed(frame: Any) -> Any:
    """A total per user, of 200,000 users a batch."""
    from pyspark.sql import functions as F

    return frame.groupBy("user").agg(F.sum("v").alias("total"), F.count("*").alias("n"))


def custom(frame: Any) -> Any:
    """The same by a processor of rows."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Totals(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("state", "total long, n long")

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            total, n = self.state.get() or (0, 0)
            for row in rows:
                total, n = total + row.v, n + 1
            self.state.update((total, n))
            yield Row(user=key[0], total=total, n=n)

        def close(self) -> None: ...

    return frame.groupBy("user").transformWithState(
        Totals(), "user long, total long, n long", "Update", "None"
    )


WORKLOADS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "managed": (managed, 200_000),
    "custom": (custom, 40_000),
}


def one_run(workload: str) -> float:
    """The CPU seconds of the measured batches of one workload, in this process."""
    from pyspark.sql import SparkSession

    from holdfast import stateful

    pipeline, users = WORKLOADS[workload]
    spark = (
        SparkSession.builder.master("local[2]").appName(workload)
        .config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "3g").config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )  # fmt: skip
    rng = np.random.default_rng(7)
    with tempfile.TemporaryDirectory(prefix="holdfast-pairs-") as name:
        folder = Path(name)
        (folder / "in").mkdir()
        rows = spark.readStream.schema("user long, v long").parquet(str(folder / "in"))
        query = (
            pipeline(stateful(rows)).writeStream.outputMode("update").format("noop")
            .option("checkpointLocation", str(folder / "cp")).start()
        )  # fmt: skip
        for number in range(WARM + MEASURED):
            if number == WARM:
                before = cpu_s()
            table = pa.table({"user": rng.permutation(users), "v": rng.integers(0, 100, users)})
            pq.write_table(table, folder / "next")
            os.rename(folder / "next", folder / "in" / f"{number}.parquet")
            query.processAllAvailable()
        used = cpu_s() - before
        query.stop()
    spark.stop()
    return used


def run_of(source: Path, workload: str) -> float:
    """The CPU seconds of a run with the code of a folder."""
    done = subprocess.run(
        [sys.executable, __file__, "--run", workload],
        env={**os.environ, "PYTHONPATH": str(source.resolve()), "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
    )  # fmt: skip
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="*", type=Path, help="the code before, and after")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--run", choices=WORKLOADS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        print(one_run(given.run))
        return
    before, after = given.sources
    report = Report("Processor time before and after a change, in pairs")
    holds = True
    for workload in given.only.split(","):
        ratios = []
        for number in range(given.pairs):
            order = [before, after] if number % 2 else [after, before]
            used = {source: run_of(source, workload) for source in order}
            ratios.append(used[after] / used[before])
            note = f"before {used[before]:.2f} s, after {used[after]:.2f} s"
            report.add(f"{workload}, pair {number + 1}", ratios[-1], "ratio", note=note)
        report.add(f"{workload}, median", statistics.median(ratios), "ratio", at_most=AT_MOST)
        holds = holds and report.all_hold
    report.write("pairs")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
