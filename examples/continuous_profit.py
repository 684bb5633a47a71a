"""Profit of trades in windows of five minutes, batch by batch, stopped and continued half way.

    python examples/continuous_profit.py

Buying counts positive, selling negative. The trades come as files, one for each batch; the last
one is late and still finds its window. Afterwards the state is read back at an old version,
without Spark.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import stateful

TRADES = (
    "{ 'id': 'apple', 'amount': 10, 'type': 'buy', 'time': '20-04-2020-10-10' }",
    "{ 'id': 'shell', 'amount': 18, 'type': 'buy', 'time': '20-04-2020-10-12' }",
    "{ 'id': 'apple', 'amount': 5, 'type': 'sell', 'time': '20-04-2020-10-22' }",
    "{ 'id': 'asus', 'amount': 5, 'type': 'buy', 'time': '20-04-2020-10-14' }",
)
SCHEMA = "id string, type string, amount int, time string"


def trades(spark: SparkSession, folder: Path) -> DataFrame:
    """The stream of trades, with their time and their share of the profit."""
    parsed = F.from_json("value", SCHEMA, {"allowSingleQuotes": "true"})
    signed = F.when(F.col("type") == "sell", -F.col("amount")).otherwise(F.col("amount"))
    return (
        spark.readStream.text(str(folder))
        .select(parsed.alias("trade"))
        .select("trade.*")
        .withColumn("eventtime", F.to_timestamp("time", "dd-MM-yyyy-HH-mm"))
        .withColumn("profit", signed)
    )


def arrive(folder: Path, number: int, line: str) -> None:
    """Put a file into the folder whole, as a stream's source needs it."""
    unfinished = folder / f".{number}"
    unfinished.write_text(line + "\n")
    unfinished.rename(folder / f"{number}.json")


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory(prefix="holdfast-") as place:
        incoming, checkpoint = Path(place, "trades"), Path(place, "checkpoint")
        incoming.mkdir()
        for half in (0, 2):
            query = (
                stateful(trades(spark, incoming))
                .groupBy(F.window("eventtime", "5 minutes"))
                .agg(F.sum("profit").alias("profit"))
                .orderBy("window")
                .writeStream.outputMode("complete")
                .format("console")
                .option("truncate", "false")
                .option("checkpointLocation", str(checkpoint))
                .start()
            )
            for number in (half, half + 1):
                arrive(incoming, number, TRADES[number])
                query.processAllAvailable()
            query.stop()
        with holdfast.open(checkpoint / "holdfast") as state:
            print("Version 2 of the state, read without Spark:")
            for row in state.at(2).scan().to_pylist():
                print(
                    f"  {row['window_start']:%H:%M} to {row['window_end']:%H:%M}: {row['profit']}"
                )
    spark.stop()


if __name__ == "__main__":
    main()
