"""`holdfast.streams(spark)` manages Spark's own queries and the stateful ones together."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager
from waiting import until

import holdfast
import holdfast.streams.watermark  # which makes `holdfast.streams` a package
from holdfast import stateful
from holdfast.spark import QueryManager, StatefulQuery

pytestmark = pytest.mark.spark


class Heard(StreamingQueryListener):
    """Keeps (kind, id) of every event, and the batch id of every progress."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.batches: list[tuple[str, int]] = []

    def onQueryStarted(self, event: Any) -> None:
        self.events.append(("started", str(event.id)))

    def onQueryProgress(self, event: Any) -> None:
        self.events.append(("progress", str(event.progress.id)))
        self.batches.append((str(event.progress.id), event.progress.batchId))

    def onQueryIdle(self, event: Any) -> None:
        self.events.append(("idle", str(event.id)))

    def onQueryTerminated(self, event: Any) -> None:
        self.events.append(("terminated", str(event.id)))

    def of(self, query: Any) -> list[str]:
        return [kind for kind, known in list(self.events) if known == query.id and kind != "idle"]


@pytest.fixture
def streams(spark: SparkSession) -> Iterator[QueryManager]:
    """The manager of the session, with nothing ended and, after the test, nothing running."""
    manager = holdfast.streams(spark)
    manager.resetTerminated()
    yield manager
    for query in manager.active:
        query.stop()
    manager.resetTerminated()


def source(spark: SparkSession, folder: Path, batches: int = 2) -> DataFrame:
    for number in range(batches):
        rows = spark.range(number * 10, number * 10 + 10, 1, 1).selectExpr("id % 5 AS k")
        rows.write.mode("append").parquet(str(folder))
    reader = spark.readStream.schema("k long").option("maxFilesPerTrigger", "1")
    return reader.parquet(str(folder))


def writer_of(frame: Any) -> Any:
    """A writer of a query of either kind; Spark's own has no state."""
    if isinstance(frame, DataFrame):
        return frame.writeStream.format("noop")
    return frame.groupBy("k").count().writeStream.outputMode("update").format("noop")


def fail(rows: DataFrame, batch_id: int) -> None:
    raise ValueError("the sink is full")


def test_it_has_what_sparks_manager_has_and_lists_each_query_once(
    spark: SparkSession, tmp_path: Path, streams: QueryManager
) -> None:
    public = {name for name in dir(StreamingQueryManager) if not name.startswith("_")}
    assert public == {name for name in dir(QueryManager) if not name.startswith("_")}
    frame = source(spark, tmp_path / "in")
    native = writer_of(frame).start()
    ours = writer_of(stateful(frame)).start()
    assert len(spark.streams.active) == 2
    assert {(type(query), query.id) for query in streams.active} == {
        (StreamingQuery, native.id),
        (StatefulQuery, ours.id),
    }
    assert streams.get(ours.id) is ours
    found = streams.get(native.id)
    assert isinstance(found, StreamingQuery)
    assert found.runId == native.runId
    assert holdfast.streams(spark.newSession()).active == []
    native.stop()
    assert [query.id for query in streams.active] == [ours.id]
    ours.stop()
    assert streams.active == []
    assert streams.get(ours.id) is streams.get(native.id) is None


def test_a_listener_gets_one_event_a_version_of_either_kind_of_query(
    spark: SparkSession, tmp_path: Path, streams: QueryManager
) -> None:
    heard, elsewhere = Heard(), Heard()
    streams.addListener(heard)
    streams.addListener(heard)
    holdfast.streams(spark.newSession()).addListener(elsewhere)
    try:
        frame = source(spark, tmp_path / "in")
        queries = [
            writer_of(each).trigger(availableNow=True).start() for each in (frame, stateful(frame))
        ]
        for query in queries:
            query.awaitTermination()
            until(lambda query=query: "terminated" in heard.of(query))
        # A query of Spark's that ends now is told after all that Spark has told before.
        last = writer_of(frame).trigger(availableNow=True).start()
        last.awaitTermination()
        until(lambda: "terminated" in heard.of(last))
    finally:
        streams.removeListener(heard)
    for query in queries:
        assert heard.of(query) == ["started", "progress", "progress", "terminated"]
        assert [number for known, number in heard.batches if known == query.id] == [0, 1]
    assert elsewhere.events == []
    query = writer_of(frame).trigger(availableNow=True).start()
    query.awaitTermination()
    assert heard.of(query) == []
    with pytest.raises(holdfast.InvalidArgument, match="StreamingQueryListener, not of int"):
        streams.addListener(5)  # type: ignore[arg-type]


def test_an_end_is_waited_for_until_it_is_forgotten(
    spark: SparkSession, tmp_path: Path, streams: QueryManager
) -> None:
    frame = source(spark, tmp_path / "in")
    assert streams.awaitAnyTermination(0.2) is False
    waits = writer_of(frame).start()
    for each in (frame, stateful(frame)):
        ends = writer_of(each).trigger(availableNow=True).start()
        assert streams.awaitAnyTermination() is None
        assert (ends.isActive, waits.isActive) == (False, True)
        assert streams.awaitAnyTermination(240) is True
        streams.resetTerminated()
        assert streams.awaitAnyTermination(0.2) is False
    wrong: Any
    for wrong in (0, "soon"):
        with pytest.raises(holdfast.InvalidArgument, match=f"number of seconds, not {wrong!r}"):
            streams.awaitAnyTermination(wrong)


def test_a_failure_of_either_is_raised_to_who_waits_for_any(
    spark: SparkSession, tmp_path: Path, streams: QueryManager
) -> None:
    frame = source(spark, tmp_path / "in")
    waits = writer_of(frame).start()
    for each in (frame, stateful(frame)):
        query = writer_of(each).foreachBatch(fail).start()
        for _ in range(2):
            with pytest.raises(StreamingQueryException, match="the sink is full"):
                streams.awaitAnyTermination(240)
        assert not query.isActive
        streams.resetTerminated()
        assert streams.awaitAnyTermination(0.2) is False
    assert waits.isActive


def test_a_query_that_did_not_come_to_start_has_not_ended(
    spark: SparkSession, tmp_path: Path, streams: QueryManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise OSError("no thread left")

    monkeypatch.setattr("holdfast.spark.running.start.QueryRun", failing)
    with pytest.raises(OSError, match="no thread left"):
        writer_of(stateful(source(spark, tmp_path / "in"))).start()
    assert streams.active == []


def test_spark_stops_a_stateful_query_as_a_whole(
    spark: SparkSession, tmp_path: Path, streams: QueryManager
) -> None:
    def slow(rows: DataFrame, batch_id: int) -> None:
        began.set()
        spark.sparkContext.parallelize(range(2), 2).foreach(lambda _: time.sleep(20))

    def add_rows() -> None:
        rows = spark.range(10).selectExpr("id AS k")
        rows.write.mode("append").parquet(str(tmp_path / "in"))

    def stop_by_spark(query: StatefulQuery) -> None:
        found = spark.streams.get(query.id)
        assert found is not None
        stopping = threading.Thread(target=found.stop, daemon=True)
        stopping.start()
        until(lambda: not stopping.is_alive())

    def check_over(query: StatefulQuery, version: int) -> None:
        assert query.awaitTermination(240) is True
        assert query.exception() is None
        assert not query.isActive
        query.processAllAvailable()
        assert query.version == version

    frame = stateful(source(spark, tmp_path / "in", batches=1))
    writer = writer_of(frame).option("checkpointLocation", str(tmp_path / "cp"))
    began = threading.Event()
    query = writer.start()
    query.processAllAvailable()
    with query._run.turns.lock:  # as while a version without data is made
        add_rows()
        until(query._run.turns.batch_waits.is_set)
        stop_by_spark(query)
    check_over(query, version=1)
    query = writer.foreachBatch(slow).start()
    assert began.wait(240)
    time.sleep(0.5)  # its job has begun
    stop_by_spark(query)
    check_over(query, version=2)
    assert streams.active == []


def test_the_package_can_be_called_and_is_a_package_still(spark: SparkSession) -> None:
    assert isinstance(holdfast.streams(spark), QueryManager)
    assert holdfast.streams.watermark.Watermarks().next_ms == 0
    assert pickle.loads(pickle.dumps(holdfast.streams)) is holdfast.streams
    with pytest.raises(holdfast.InvalidArgument, match="classic SparkSession, not int"):
        holdfast.streams(5)  # type: ignore[arg-type]
