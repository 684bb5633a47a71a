"""A row with a time after the year 9999 harms neither its query nor what reports about it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQueryListener
from waiting import until

from holdfast import stateful
from holdfast.spark.running import run as run_module

pytestmark = pytest.mark.spark
FAR_US = 316_516_204_800_000_000
"""The first of January of the year 12000."""


class Heard(StreamingQueryListener):
    """Keeps the watermark of each progress."""

    def __init__(self) -> None:
        self.watermarks: list[str] = []

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        self.watermarks.append(event.progress.eventTime["watermark"])

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


def write(spark: SparkSession, folder: Path, us: int) -> None:
    rows = spark.range(1).select(F.timestamp_micros(F.lit(us)).alias("ts"))
    rows.write.mode("append").parquet(str(folder))


def stream(spark: SparkSession, folder: Path) -> Any:
    """Counts of windows, over a file a batch."""
    source = spark.readStream.schema("ts timestamp").option("maxFilesPerTrigger", "1")
    frame = stateful(source.parquet(str(folder))).withWatermark("ts", "0 seconds")
    return frame.groupBy(F.window("ts", "1 minute")).count()


def test_batches_after_a_time_of_the_year_12000_are_delivered_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    seen: list[tuple[int, list[Any]]] = []
    heard = Heard()

    def keep(rows: Any, number: int) -> None:
        texts = rows.select(F.col("window.start").cast("string"), "count").collect()
        seen.append((number, [tuple(row) for row in texts]))

    folder = tmp_path / "in"
    write(spark, folder, 1_700_000_000_000_000)
    frame = stream(spark, folder)
    query = frame.writeStream.outputMode("update").foreachBatch(keep).start()
    query.addListener(heard)
    for us in (FAR_US, FAR_US + 60_000_000):
        query.processAllAvailable()
        write(spark, folder, us)
    query.processAllAvailable()
    state = query.state()
    assert state.watermark == np.datetime64(FAR_US + 60_000_000, "us")
    assert "12000-01-01T00:01:00" in state._repr_html_()
    assert len(state.to_pandas()) == state.num_keys
    query.stop()
    numbers = [number for number, _ in seen]
    assert len(numbers) == len(set(numbers))
    assert sorted(row for _, rows in seen for row in rows) == [
        ("+12000-01-01 00:00:00", 1),
        ("+12000-01-01 00:01:00", 1),
        ("2023-11-14 22:13:00", 1),
    ]
    last = query.lastProgress
    assert last is not None
    assert last.eventTime["watermark"] == "+12000-01-01T00:01:00.000Z"
    until(lambda: heard.watermarks and heard.watermarks[-1] == last.eventTime["watermark"])
    assert "holdfast_watermark_seconds" in query.metrics_text()


def test_a_version_whose_report_fails_is_delivered_once(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("no such figure")

    seen: list[int] = []
    monkeypatch.setattr(run_module, "progress", broken)
    write(spark, tmp_path / "in", 1_700_000_000_000_000)
    frame = stream(spark, tmp_path / "in")
    with caplog.at_level(logging.WARNING, "holdfast"):
        writer = frame.writeStream.outputMode("update")
        query = writer.foreachBatch(lambda rows, number: seen.append(number)).start()
        query.processAllAvailable()
        query.stop()
    assert query.exception() is None
    assert seen
    assert len(seen) == len(set(seen))
    assert "could not be reported" in caplog.text
