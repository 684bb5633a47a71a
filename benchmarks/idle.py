"""What a query costs while nothing arrives: CPU of the driver's Python and of its JVM.

python benchmarks/idle.py
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from harness import Report
from holdfast import stateful

SECONDS = 30
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> int:
    report = Report("An idle query")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        session = started_session()
        try:
            alone = idle_share(session)
            native = measured(session, folder, "native", lambda frame: frame)
            ours = measured(session, folder, "holdfast", stateful)
        finally:
            session.stop()
    report.add("Python of the driver, without a query", alone[0], "% of a core")
    report.add("Python of the driver, native query", native[0], "% of a core")
    report.add("Python of the driver, stateful query", ours[0], "% of a core", at_most=0.5)
    report.add("JVM of the driver, without a query", alone[1], "% of a core")
    report.add("JVM of the driver, native query", native[1], "% of a core")
    report.add("JVM of the driver, stateful query", ours[1], "% of a core")
    report.add("both over those of a native query", sum(ours) - sum(native), "% of a core")
    report.write("idle")
    return 0 if report.all_hold else 1


def started_session() -> SparkSession:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    settings = {"spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR"}
    return builder.config(map=settings).getOrCreate()


def measured(session: SparkSession, folder: Path, name: str, wrap: Any) -> tuple[float, float]:
    """CPU of Python and of the JVM beside an idle query with a watermark, in % of a core."""
    source = folder / name
    rows = session.range(1000).selectExpr("id % 10 AS k", "timestamp_seconds(1700000000) AS ts")
    rows.coalesce(1).write.parquet(str(source))
    stream = session.readStream.schema("k long, ts timestamp").parquet(str(source))
    counts = wrap(stream).withWatermark("ts", "1 minute").groupBy(F.window("ts", "1 minute"), "k")
    writer = counts.count().writeStream.outputMode("append").format("noop")
    query = writer.option("checkpointLocation", str(folder / f"{name}-cp")).start()
    try:
        query.processAllAvailable()
        return idle_share(session)
    finally:
        query.stop()


def idle_share(session: SparkSession) -> tuple[float, float]:
    """The share of a core that Python and the JVM take from now on."""
    java: Any = session.sparkContext._jvm
    jvm = int(java.ProcessHandle.current().pid())
    time.sleep(5)  # what has just ended is over
    before, started = (cpu_s(os.getpid()), cpu_s(jvm)), time.monotonic()
    time.sleep(SECONDS)
    spent_s = time.monotonic() - started
    return (
        100 * (cpu_s(os.getpid()) - before[0]) / spent_s,
        100 * (cpu_s(jvm) - before[1]) / spent_s,
    )


def cpu_s(pid: int) -> float:
    """CPU seconds a process has used, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


if __name__ == "__main__":
    sys.exit(main())
