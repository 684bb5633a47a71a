"""What each user spends in a week: late purchases count, finished weeks leave the state.

    python examples/weekly_spending.py

Weeks run from Thursday to Thursday, because 1970-01-01 was a Thursday. The stream waits two days
for late purchases. Then a week is closed: its totals are written, and its state is evicted.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import stateful
from holdfast.spark import StatefulDataFrame

SCHEMA = "user string, shopping long, date string"
TRANSACTIONS = (
    {"user": "Sankar", "shopping": 200, "date": "20-04-2020"},
    {"user": "Jade", "shopping": 800, "date": "18-04-2020"},
    {"user": "Sankar", "shopping": 300, "date": "25-04-2020"},
    {"user": "Kun", "shopping": 100, "date": "28-04-2020"},
)


def weekly(transactions: DataFrame) -> StatefulDataFrame:
    """The total of each user and week."""
    dated = transactions.withColumn("eventtime", F.to_timestamp("date", "dd-MM-yyyy"))
    return (
        stateful(dated)
        .withWatermark("eventtime", "2 days")
        .groupBy(F.window("eventtime", "7 days"), "user")
        .agg(F.sum("shopping").alias("total"))
    )


def arrive(folder: Path, number: int, transaction: dict[str, Any]) -> None:
    """Put a file into the folder whole, as a stream's source needs it."""
    unfinished = folder / f".{number}"
    unfinished.write_text(json.dumps(transaction) + "\n")
    unfinished.rename(folder / f"{number}.json")


def stored(checkpoint: Path) -> list[str]:
    """What the state holds, read without Spark."""
    with holdfast.open(checkpoint / "holdfast") as state:
        rows = state.scan().to_pylist()
    return sorted(
        f"{row['window_start']:%d-%m}..{row['window_end']:%d-%m} {row['user']} {row['total']}"
        for row in rows
    )


def closed(batch: DataFrame, batch_id: int) -> None:
    """Print the totals of weeks that are over; called by the stream for each batch."""
    start, end = (F.date_format(f"window.{side}", "dd-MM") for side in ("start", "end"))
    week = F.concat_ws("..", start, end)
    for row in batch.orderBy("window", "user").withColumn("window", week).collect():
        print(f"  closed: {row.window} {row.user} {row.total}")


def run(spark: SparkSession, place: Path) -> None:
    incoming, checkpoint = place / "transactions", place / "checkpoint"
    incoming.mkdir(parents=True)
    query = (
        weekly(spark.readStream.schema(SCHEMA).json(str(incoming)))
        .writeStream.outputMode("append")
        .foreachBatch(closed)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    for number, transaction in enumerate(TRANSACTIONS):
        print(f"{transaction['user']} spends {transaction['shopping']} on {transaction['date']}")
        arrive(incoming, number, transaction)
        query.processAllAvailable()
        print(f"  state:  {', '.join(stored(checkpoint))}")
    query.stop()


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory(prefix="holdfast-") as place:
        run(spark, Path(place))
    spark.stop()


if __name__ == "__main__":
    main()
