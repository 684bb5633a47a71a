"""What each user has spent so far, computed by custom state logic, without a time limit.

    python examples/shopping_totals.py [VIEW]

The processor is a StatefulProcessor of PySpark. Its state is a table that anyone can read after
each transaction, without Spark. VIEW is a table in Cassandra or DynamoDB that shows the state to
other services, such as cassandra://host:port/keyspace/table.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import holdfast
from holdfast import stateful
from holdfast.spark import StatefulDataFrame

SCHEMA = "user string, shopping long"
TOTALS = "user string, total long"
TRANSACTIONS = (
    {"user": "Sankar", "shopping": 200},
    {"user": "Jade", "shopping": 800},
    {"user": "Sankar", "shopping": 300},
    {"user": "Kun", "shopping": 100},
)


class ShoppingTotal(StatefulProcessor):
    """Adds what comes in to the user's total."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before = self.total.get()
        total = (before[0] if before else 0) + sum(row.shopping for row in rows)
        self.total.update((total,))
        yield Row(user=key[0], total=total)


def totals(transactions: DataFrame) -> StatefulDataFrame:
    """The total of each user."""
    grouped = stateful(transactions).groupBy("user")
    return grouped.transformWithState(ShoppingTotal(), TOTALS, "Update", "None")


def stored(checkpoint: Path) -> str:
    """What the state holds, read without Spark."""
    rows = holdfast.read(checkpoint, store="total").to_arrow().sort_by("user").to_pylist()
    return ", ".join(f"{row['user']} {row['total']}" for row in rows)


def run(spark: SparkSession, place: Path, view: str | None = None) -> None:
    incoming, checkpoint = place / "transactions", place / "checkpoint"
    incoming.mkdir(parents=True)
    writer = (
        totals(spark.readStream.schema(SCHEMA).json(str(incoming)))
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(checkpoint))
    )
    if view is not None:
        writer = writer.option("view", view)
    query = writer.start()
    for number, transaction in enumerate(TRANSACTIONS):
        print(f"{transaction['user']} spends {transaction['shopping']}")
        unfinished = incoming / f".{number}"
        unfinished.write_text(json.dumps(transaction) + "\n")
        unfinished.rename(incoming / f"{number}.json")
        query.processAllAvailable()
        print(f"  state: {stored(checkpoint)}")
    query.stop()


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory(prefix="holdfast-") as place:
        run(spark, Path(place), *sys.argv[1:2])
    spark.stop()


if __name__ == "__main__":
    main()
