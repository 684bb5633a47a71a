"""Finds cards used like stolen ones: a small purchase to try them, and a large one soon after.

    python examples/fraud_detection.py

Each card has a state machine. A purchase below 1 makes the card suspect, one above 500 within a
minute raises an alert, and a timer ends the suspicion. The number of alerts is kept for a day (a
TTL); the third one blocks the card. Time is the event time of the purchases, not the clock.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from holdfast import stateful
from holdfast.spark import StatefulDataFrame

SCHEMA = "card string, amount double, ts timestamp"
ALERTS = "card string, what string, amount double"
SMALL, LARGE = 1, 500
SUSPICION_MS, DAY_MS = 60_000, 86_400_000
START = datetime(2024, 5, 1, 12)
PURCHASES = (
    # seconds after the start, card, amount
    (0, "4000", 0.5), (0, "5100", 20.0),
    (30, "4000", 900.0),  # within the minute: an alert
    (40, "5100", 0.2),
    (200, "5100", 800.0),  # too late for the small one
    (210, "4000", 0.1), (220, "4000", 700.0),  # the second alert
    (300, "4000", 0.3), (310, "4000", 650.0),  # the third: blocked
)  # fmt: skip


class FraudDetector(StatefulProcessor):
    """Watches one card at a time."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.suspect = handle.getValueState("suspect", "since_ms long")
        self.alerts = handle.getValueState("alerts", "n int", ttlDurationMs=DAY_MS)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.ts):
            at_ms = int(row.ts.timestamp() * 1000)
            since = self.suspect.get()
            if row.amount < SMALL:
                self.suspect.update((at_ms,))
                self.handle.registerTimer(at_ms + SUSPICION_MS)
            elif row.amount > LARGE and since and at_ms - since[0] < SUSPICION_MS:
                alerts = (self.alerts.get() or (0,))[0] + 1
                self.alerts.update((alerts,))
                self.suspect.clear()
                what = "alert" if alerts < 3 else "blocked"
                yield Row(card=key[0], what=what, amount=row.amount)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        since = self.suspect.get()
        if since and since[0] + SUSPICION_MS <= expiredTimerInfo.getExpiryTimeInMs():
            self.suspect.clear()
        return iter([])


def alerts(purchases: DataFrame) -> StatefulDataFrame:
    """What is wrong with cards."""
    grouped = stateful(purchases).withWatermark("ts", "10 seconds").groupBy("card")
    return grouped.transformWithState(FraudDetector(), ALERTS, "Append", "EventTime")


def show(batch: DataFrame, batch_id: int) -> None:
    """Print what a batch found."""
    for row in batch.collect():
        print(f"{row.card} {row.what}: {row.amount:.2f}")


def run(spark: SparkSession, place: Path) -> None:
    incoming = place / "purchases"
    for number, (second, card, amount) in enumerate(PURCHASES):
        row = (card, amount, START + timedelta(seconds=second))
        one = spark.createDataFrame([row], SCHEMA).coalesce(1)
        one.write.parquet(str(incoming / f"{number:02d}"))
    source = spark.readStream.schema(SCHEMA).option("recursiveFileLookup", "true")
    query = (
        alerts(source.option("maxFilesPerTrigger", "1").parquet(str(incoming)))
        .writeStream.outputMode("append")
        .foreachBatch(show)
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory(prefix="holdfast-") as place:
        run(spark, Path(place))
    spark.stop()


if __name__ == "__main__":
    main()
