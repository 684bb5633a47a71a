"""What each user spent in the last seven days, and when, computed by custom state logic.

    python examples/weekly_purchases.py

Purchases are kept in a list and leave it one by one: a timer for each fires once the watermark,
which is three days behind the newest date, is four days past the purchase. The state machine is
also tested without Spark, in tests/streams/test_use_cases.py.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import holdfast
from holdfast import stateful
from holdfast.spark import StatefulDataFrame
from weekly_spending import SCHEMA, TRANSACTIONS, arrive

SPENDING = "user string, total long, last timestamp"
DAY_MS = 24 * 60 * 60 * 1000
STAYS_MS = 4 * DAY_MS


class WeeklyPurchases(StatefulProcessor):
    """Keeps a user's purchases of a week, their total and the date of the last."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.purchases = handle.getListState("purchases", "shopping long, at_ms long")
        self.spending = handle.getValueState("spending", "total long, last timestamp")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        total, last = self.held()
        for row in rows:
            at_ms = int(row.eventtime.timestamp() * 1000)
            self.purchases.appendValue((row.shopping, at_ms))
            self.handle.registerTimer(at_ms + STAYS_MS)
            total += row.shopping
            last = row.eventtime if last is None else max(last, row.eventtime)
        self.spending.update((total, last))
        yield Row(user=key[0], total=total, last=last)

    def held(self) -> tuple[int, datetime | None]:
        """What is held. As in Spark, timestamps of rows have a zone, and those of state do not."""
        total, last = self.spending.get() or (0, None)
        return total, last and last.astimezone()

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        moment = expiredTimerInfo.getExpiryTimeInMs()
        left = [item for item in self.purchases.get() if item[1] + STAYS_MS > moment]
        _, last = self.held()
        if not left:
            self.purchases.clear()
            self.spending.clear()
            return
        self.purchases.put(left)
        total = sum(shopping for shopping, _ in left)
        self.spending.update((total, last))
        yield Row(user=key[0], total=total, last=last)


def spending(transactions: DataFrame) -> StatefulDataFrame:
    """The last seven days of each user."""
    dated = transactions.withColumn("eventtime", F.to_timestamp("date", "dd-MM-yyyy"))
    grouped = stateful(dated).withWatermark("eventtime", "3 days").groupBy("user")
    return grouped.transformWithState(WeeklyPurchases(), SPENDING, "Update", "EventTime")


def stored(checkpoint: Path) -> str:
    """What the state holds, read without Spark."""
    rows = holdfast.read(checkpoint, store="spending").to_arrow().sort_by("user").to_pylist()
    return ", ".join(f"{row['user']} {row['total']} until {row['last']:%d-%m}" for row in rows)


def run(spark: SparkSession, place: Path) -> None:
    incoming, checkpoint = place / "transactions", place / "checkpoint"
    incoming.mkdir(parents=True)
    query = (
        spending(spark.readStream.schema(SCHEMA).json(str(incoming)))
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    for number, transaction in enumerate(TRANSACTIONS):
        print(f"{transaction['user']} spends {transaction['shopping']} on {transaction['date']}")
        arrive(incoming, number, transaction)
        query.processAllAvailable()
        print(f"  state: {stored(checkpoint)}")
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
