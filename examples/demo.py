"""Everything in a minute: the store, three streams, a crash, and the recovery from it.

    python examples/demo.py

First comes a store without Spark (examples/store_demo.py). Then another process runs two streams
and is killed with SIGKILL in the middle of both. This process resumes from their checkpoints, reads
an old version of the state, and runs a third stream. It needs only PySpark.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.text import Text

import holdfast
import weekly_spending
from checkpointing import checkpoint_exercise, run_batches
from continuous_profit import TRADES, arrive, from_files, profit
from store_demo import code, console, say, title
from store_demo import demo as show_the_store

COMMITTED = "version 3 is committed, but not delivered"


def main() -> None:
    if sys.argv[1:2] == ["--until-killed"]:
        run_until_killed(Path(sys.argv[2]))
        return
    started = time.perf_counter()
    console.print(Text("Holdfast: versioned state that survives a crash", "bold"))
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        place = Path(folder)
        show_the_store(place / "totals")
        title(8, "Two streams in another process: profit, and 90,000 rows a second")
        code(
            'stateful(trades).groupBy(F.window("eventtime", "5 minutes")) \\\n'
            '                .agg(F.sum("profit").alias("profit"))'
        )
        crash(place)
        with session(place / "spark.log") as spark:
            recover(spark, place)
            look_back(place)
            title(11, "A third stream: what each user spends in a week")
            weekly_spending.run(spark, place / "weekly")
    console.print()
    say(f"all of it in {time.perf_counter() - started:.0f} s", "bold")


@contextmanager
def session(log: Path) -> Iterator[SparkSession]:
    """A Spark session on this machine, whose JVM has its say in a file."""
    stderr = os.dup(2)
    with log.open("ab") as said:
        os.dup2(said.fileno(), 2)
    try:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "2")
            .getOrCreate()
        )
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    yield spark
    spark.stop()


def start_profit(spark: SparkSession, place: Path, wait_in: int | None = None) -> Any:
    """The profit stream; it waits for ever before it delivers version `wait_in`."""

    def deliver(batch: DataFrame, batch_id: int) -> None:
        version = batch_id + 1  # batches count from 0, and each of this stream makes a version
        if version == wait_in:
            print(COMMITTED, flush=True)
            threading.Event().wait()
        start = F.date_format("window.start", "HH:mm").alias("start")
        rows = batch.select(start, "profit").orderBy("start").collect()
        profits = ", ".join(f"{row.start} {row.profit:+d}" for row in rows)
        print(f"  profit  version {version}: {profits}", flush=True)

    (place / "trades").mkdir(exist_ok=True)
    return (
        profit(from_files(spark, place / "trades"), F.window("eventtime", "5 minutes"))
        .writeStream.outputMode("complete")
        .foreachBatch(deliver)
        .option("checkpointLocation", str(place / "profit"))
        .start()
    )


def start_rows(spark: SparkSession, place: Path) -> Any:
    return checkpoint_exercise(spark, place / "rate", place / "rows")


def show_progress(query: Any, since: int) -> int:
    """Print what the plain query has done after its batch `since`; the newest batch."""
    for progress in query.recentProgress:
        if progress["batchId"] > since and progress["numInputRows"]:
            rate = progress["processedRowsPerSecond"]
            rows = progress["numInputRows"]
            print(
                f"  rows    batch {progress['batchId']}: {rows:,} rows, {rate:,.0f} a second",
                flush=True,
            )
            since = progress["batchId"]
    return since


def run_until_killed(place: Path) -> None:
    """Run both streams to where it hurts most, and wait there."""
    with session(place / "spark-killed.log") as spark:
        rows, trades = start_rows(spark, place), start_profit(spark, place, wait_in=3)
        for number in (0, 1):
            arrive(place / "trades", number, TRADES[number])
            trades.processAllAvailable()
        run_batches(rows, 1)
        shown = show_progress(rows, since=-1)
        arrive(place / "trades", 2, TRADES[2])
        while True:
            time.sleep(0.2)
            shown = show_progress(rows, shown)


def crash(place: Path) -> None:
    """Let another process run the streams, and kill it and its JVM in the middle."""
    command = [sys.executable, __file__, "--until-killed", str(place)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                if line.startswith(COMMITTED):
                    break
                console.print(Text(line.rstrip()))
        finally:
            os.killpg(child.pid, signal.SIGKILL)
        if child.wait() != -signal.SIGKILL:
            raise SystemExit((place / "spark-killed.log").read_text())
    say(f"killed by SIGKILL: {COMMITTED}", "red")


def recover(spark: SparkSession, place: Path) -> None:
    title(9, "Recovery: this process resumes from their checkpoints")
    rows, trades = start_rows(spark, place), start_profit(spark, place)
    trades.processAllAvailable()
    resumed = trades.version
    arrive(place / "trades", 3, TRADES[3])
    trades.processAllAvailable()
    newest = trades.version
    run_batches(rows, 1)
    show_progress(rows, since=-1)
    for query in (rows, trades):
        query.stop()
    say(f"profit: went on at version {resumed}; the late trade made version {newest}")
    value = F.col("value").cast("long")
    [(count, distinct, highest)] = (
        spark.read.parquet(str(place / "rows"))
        .agg(F.count("*"), F.count_distinct(value), F.max(value))
        .collect()
    )
    missing, repeated = highest + 1 - distinct, count - distinct
    say(f"rows: values 0 to {highest:,}, {missing} missing, {repeated} repeated")


def look_back(place: Path) -> None:
    title(10, "Look back: each version of the stream's state, without Spark")
    code('state = holdfast.open(checkpoint / "holdfast").at(2).scan()')
    with holdfast.open(place / "profit" / "holdfast") as state:
        for version in range(1, state.version + 1):
            found = sorted(
                (row["window_start"], row["profit"]) for row in state.at(version).scan().to_pylist()
            )
            profits = ", ".join(f"{start:%H:%M} {amount:+d}" for start, amount in found)
            say(f"version {version}: {profits}")


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main()
