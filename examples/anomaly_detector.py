"""Finds sensors that report odd values or fall silent; a processor with every kind of state.

    python examples/anomaly_detector.py

Per sensor: a value with what is normal, a list with the last readings, a map with the faults of
the last hour (a TTL), and a timer that fires after five minutes of silence. Time is that of the
readings. The processor is also tested without Spark, in tests/streams/test_use_cases.py.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from click_sessions import arrive
from holdfast import stateful
from holdfast.spark import StatefulDataFrame

SCHEMA = "sensor string, reading double, at timestamp"
ANOMALIES = "sensor string, what string, times int, readings string"
MINUTE_MS = 60_000
SILENCE_MS, HOUR_MS = 5 * MINUTE_MS, 60 * MINUTE_MS
ENOUGH = 4
"""How many readings show what is normal."""
READINGS = (
    # batches of readings: minute, sensor, reading
    ((0, "door", 20.0), (0, "oven", 180.0), (1, "oven", 181.0), (2, "oven", 180.0)),
    ((3, "oven", 181.0), (4, "oven", 180.0), (6, "oven", 260.0)),  # far from normal
    # For the second time within the hour; and the door was silent for five minutes.
    ((7, "oven", 270.0), (8, "oven", 181.0)),
)


class AnomalyDetector(StatefulProcessor):
    """Watches one sensor at a time."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.normal = handle.getValueState("normal", "n long, mean double, spread double")
        self.last = handle.getListState("last", "reading double")
        self.faults = handle.getMapState("faults", "what string", "times int", HOUR_MS)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.at_ms):
            self.last.put([*self.last.get(), (row.reading,)][-3:])
            for moment in list(self.handle.listTimers()):
                self.handle.deleteTimer(moment)
            self.handle.registerTimer(row.at_ms + SILENCE_MS)
            n, mean, spread = self.normal.get() or (0, 0.0, 0.0)
            distance = row.reading - mean
            if n >= ENOUGH and abs(distance) > 5 * max(math.sqrt(spread / n), 0.5):
                yield self.fault(key, "high" if distance > 0 else "low")
            else:  # Welford's mean and sum of squares
                mean += distance / (n + 1)
                self.normal.update((n + 1, mean, spread + distance * (row.reading - mean)))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield self.fault(key, "silent")
        self.last.clear()

    def fault(self, key: Any, what: str) -> Row:
        """Count a fault, and describe it."""
        times = (self.faults.getValue((what,)) or (0,))[0] + 1
        self.faults.updateValue((what,), (times,))
        readings = " ".join(f"{reading:.0f}" for (reading,) in self.last.get())
        return Row(sensor=key[0], what=what, times=times, readings=readings)


def anomalies(readings: DataFrame) -> StatefulDataFrame:
    """What is odd about sensors."""
    timed = readings.withColumn("at_ms", F.unix_millis("at"))
    grouped = stateful(timed).withWatermark("at", "1 minute").groupBy("sensor")
    return grouped.transformWithState(AnomalyDetector(), ANOMALIES, "Append", "EventTime")


def show(batch: DataFrame, batch_id: int) -> None:
    """Print what a batch found."""
    for row in batch.orderBy("sensor", "what").collect():
        print(f"{row.sensor} {row.what}, {row.times} in an hour: {row.readings}")


def run(spark: SparkSession, place: Path) -> None:
    (place / "readings").mkdir()
    for number, batch in enumerate(READINGS):
        rows = [
            {"sensor": sensor, "reading": reading, "at": f"2024-05-01T12:{minute:02d}:00Z"}
            for minute, sensor, reading in batch
        ]
        arrive(place / "readings", number, rows)
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    query = (
        anomalies(source.json(str(place / "readings")))
        .writeStream.foreachBatch(show)
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
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory(prefix="holdfast-") as place:
        run(spark, Path(place))
    spark.stop()


if __name__ == "__main__":
    main()
