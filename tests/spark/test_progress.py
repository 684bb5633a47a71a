"""Progress says what Spark's own says of the same query, batch by batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from waiting import until

from holdfast import stateful
from holdfast.spark.sinks.sink import ConsoleSink, OutputBatch

pytestmark = pytest.mark.spark
INTERVAL = "spark.sql.streaming.noDataProgressEventInterval"
IDLE_DURATIONS = {"latestOffset", "triggerExecution"}


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of ten rows of five keys, a second apart."""
    found = tmp_path_factory.mktemp("in")
    for first in (0, 10):
        write(spark, found, first)
    return found


def write(spark: SparkSession, folder: Path, first: int) -> None:
    rows = spark.range(first, first + 10, 1, 1).selectExpr(
        "concat('k', id % 5) AS k", "timestamp_seconds(1700000000 + id) AS ts", "id AS v"
    )
    rows.write.mode("append").parquet(str(folder))


def source(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema("k string, ts timestamp, v long")
    return reader.option("maxFilesPerTrigger", "1").parquet(str(folder))


def marked(frame: Any) -> Any:
    return frame.withWatermark("ts", "1 second")


def observed(frame: DataFrame) -> Any:
    return marked(frame).observe("seen", F.count(F.lit(1)).alias("n"), F.max("v").alias("m"))


def windows(frame: Any) -> Any:
    return frame.groupBy("k", F.window("ts", "5 seconds")).count()


QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], Callable[[Any], Any], str, str]] = {
    "one operator behind another": (
        observed, lambda f: windows(f.dropDuplicates(["k", "ts"])), "append", "noop",
    ),
    "two operators side by side": (
        marked, lambda f: windows(f).select("k").union(f.dropDuplicates(["k", "ts"]).select("k")),
        "append", "foreach",
    ),
    "a watermark behind the operator": (
        lambda f: f, lambda f: windows(marked(f.dropDuplicates(["k", "ts"]))),
        "append", "noop",
    ),
    "no watermark": (lambda f: f, lambda f: f.groupBy("k").count(), "complete", "memory"),
}  # fmt: skip
"""What comes before stateful(), what comes after it, the output mode and the sink."""


def told(frame: Any, mode: str, sink: str) -> list[Any]:
    writer = frame.writeStream.outputMode(mode).trigger(availableNow=True)
    if sink == "foreach":
        writer = writer.foreach(lambda row: None)
    else:
        writer = writer.format(sink).queryName("progress_of_" + type(frame).__name__)
    query = writer.start()
    query.awaitTermination()
    found: list[Any] = query.recentProgress
    return found


@pytest.mark.parametrize("name", QUERIES)
def test_fields_are_those_of_sparks_own_query(spark: SparkSession, folder: Path, name: str) -> None:
    before, after, mode, sink = QUERIES[name]
    native = told(after(before(source(spark, folder))), mode, sink)
    ours = told(after(stateful(before(source(spark, folder)))), mode, sink)
    for one, other in zip(native, ours, strict=True):
        theirs, own = json.loads(one.json), json.loads(other.json)
        assert own["batchId"] == theirs["batchId"]
        assert own.get("eventTime") == theirs.get("eventTime")
        assert own["sink"]["numOutputRows"] == theirs["sink"]["numOutputRows"]
        assert own["durationMs"].keys() >= theirs["durationMs"].keys()
        listed = [operator["operatorName"] for operator in theirs["stateOperators"]]
        assert [operator["operatorName"] for operator in own["stateOperators"]] == listed
        if theirs["numInputRows"]:
            assert own["observedMetrics"] == theirs.get("observedMetrics", {})
            assert other.observedMetrics == one.observedMetrics
            ends = [each["endOffset"] for each in theirs["sources"]]
            assert [each["endOffset"] for each in own["sources"]] == ends
    numbers = [operator["operatorId"] for operator in ours[0]["stateOperators"]]
    assert sorted(numbers) == list(range(len(numbers)))


@pytest.fixture
def often_idle(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(INTERVAL, "100ms")
    yield
    spark.conf.unset(INTERVAL)


@pytest.mark.usefixtures("often_idle")
def test_idle_triggers_are_told_and_do_not_hide_what_a_batch_has_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    frame = marked(source(spark, tmp_path / "in"))
    queries = [
        windows(each).writeStream.format("noop").start() for each in (frame, stateful(frame))
    ]
    try:
        inner = spark.streams.get(queries[1].id)
        assert inner is not None
        until(lambda: len(inner.recentProgress) >= 2)  # idle before the first batch
        write(spark, tmp_path / "in", 0)
        ends, idle = [], []
        for query in queries:
            query.processAllAvailable()
            first = next(each for each in query.recentProgress if each["numInputRows"])
            ends.append([each.endOffset for each in first.sources])
            until(lambda query=query: query.lastProgress.durationMs.keys() == IDLE_DURATIONS)
            idle.append(json.loads(query.lastProgress.json))
        assert ends == [['{"logOffset": 0}']] * 2
        native, ours = idle
        for field in ("batchId", "numInputRows", "eventTime", "inputRowsPerSecond"):
            assert ours[field] == native[field]
        assert ours["sink"]["numOutputRows"] == native["sink"]["numOutputRows"]
        for field in ("operatorName", "numRowsTotal", "numRowsUpdated", "numRowsRemoved"):
            assert ours["stateOperators"][0][field] == native["stateOperators"][0][field]
        assert (ours["isTick"], ours["version"]) == (False, queries[1].version)
    finally:
        for query in queries:
            query.stop()


def test_the_console_counts_its_rows(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = ConsoleSink({"numrows": "2"})
    sink.deliver(spark.range(5), OutputBatch(1, 0, "", 0))
    assert "only showing top 2 rows" in capsys.readouterr().out
    assert sink.delivered_rows == 5
