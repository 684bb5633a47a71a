"""A restart loses nothing and moves no watermark before Spark would, under every trigger."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from native import write_batch
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming.query import StreamingQuery
from waiting import until

import holdfast
from holdfast import stateful
from holdfast.spark.running.ending import Ending
from holdfast.spark.running.query import StatefulQuery
from holdfast.spark.running.ticks import Ticks, is_idle

cloudpickle.register_pickle_by_value(sys.modules[__name__])
PATIENCE_S = 240
SCHEMA = "id string, ts timestamp"
START_S = 1_700_000_100
"""The start of a window of five minutes."""


class Sink:
    """Keeps what it was given by number; fails once where a test says so."""

    def __init__(self) -> None:
        self.given: dict[int, list[tuple[Any, ...]]] = {}
        self.fails = False

    def deliver(self, frame: DataFrame, number: int) -> None:
        rows = sorted((row.id, str(row.window.start), row["count"]) for row in frame.collect())
        if self.fails:
            raise OSError("the sink is full")
        assert self.given.setdefault(number, rows) == rows

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(row for rows in self.given.values() for row in rows)


def write(folder: Path, number: int, *minutes: float) -> None:
    """A file of rows so many minutes after the start."""
    folder.mkdir(parents=True, exist_ok=True)
    moments = [int((START_S + 60 * minute) * 1_000_000) for minute in minutes]
    times = pa.array(moments, pa.timestamp("us", tz="UTC"))
    write_batch(folder, number, pa.table({"id": ["a"] * len(moments), "ts": times}))


def start(
    spark: SparkSession, folder: Path, sink: Sink, source: Any = None, **trigger: Any
) -> StatefulQuery:
    if source is None:
        source = stateful(spark.readStream.schema(SCHEMA).parquet(str(folder / "in")))
    writer = (
        source.withWatermark("ts", "1 minute")
        .groupBy("id", F.window("ts", "5 minutes"))
        .count()
        .writeStream.outputMode("append")
        .foreachBatch(sink.deliver)
        .option("checkpointLocation", str(folder / "cp"))
    )
    query = (writer.trigger(**trigger) if trigger else writer).start()
    assert isinstance(query, StatefulQuery) or isinstance(source, DataFrame)
    return query


class SlowReader(SimpleDataSourceStreamReader):
    """One batch of rows; a reader takes a while to begin, as those of busy brokers do."""

    def __init__(self, delay_s: float) -> None:
        time.sleep(delay_s)

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        return self.readBetweenOffsets(start, {"at": 1}), {"at": 1}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:
        from datetime import UTC, datetime, timedelta

        first = datetime.fromtimestamp(1_700_000_100, UTC)
        rows = [("a", first), ("a", first + timedelta(minutes=20))]
        return iter(rows if start["at"] < end["at"] else [])


class SlowSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "slow"

    def schema(self) -> str:
        return SCHEMA

    def simpleStreamReader(self, schema: Any) -> SlowReader:
        return SlowReader(2)


@pytest.mark.spark
def test_what_a_failed_sink_lacks_comes_first_although_the_source_is_slow_to_begin(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(SlowSource)
    sink = Sink()
    sink.fails = True

    def go() -> StatefulQuery:
        rows = stateful(spark.readStream.format("slow").load())
        return start(spark, tmp_path, sink, rows)

    query = go()
    with pytest.raises(Exception, match="the sink is full"):
        query.awaitTermination(PATIENCE_S)
    assert query.version == 1
    sink.fails = False
    query = go()
    # The window that the batch of the first run leaves behind closes once that is delivered.
    until(lambda: sink.rows or not query.isActive)
    query.stop()
    first, *ticks = sorted(sink.given)
    assert sink.given[first] == []
    assert [sink.given[number] for number in ticks] == [[("a", "2023-11-14 22:15:00", 1)]]


@pytest.mark.spark
def test_a_restart_moves_no_watermark_before_its_first_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    for side in ("ours", "native"):
        write(tmp_path / side / "in", 0, 0, 20)
    sinks = {"ours": Sink(), "native": Sink()}

    def run(side: str, **trigger: Any) -> None:
        rows = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / side / "in"))
        source = rows if side == "native" else stateful(rows)
        query = start(spark, tmp_path / side, sinks[side], source, **trigger)
        if not trigger:
            query.processAllAvailable()
            query.stop()
        query.awaitTermination()

    for side in sinks:
        run(side, once=True)  # the watermark is known now, and no batch without data has used it
        run(side)
        run(side, availableNow=True)
        # Rows that are late only if a tick came before them.
        write(tmp_path / side / "in", 1, 1, 2, 40)
        run(side, once=True)
        run(side, availableNow=True)
        write(tmp_path / side / "in", 2, 60)
        run(side)
    assert sinks["ours"].rows == sinks["native"].rows
    assert ("a", "2023-11-14 22:15:00", 3) in sinks["ours"].rows


@pytest.mark.spark
def test_a_query_whose_batch_failed_commits_no_more_and_starts_again_at_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "in", 0, 0, 20)
    sink = Sink()
    query = start(spark, tmp_path, sink)
    query.processAllAvailable()
    version = query.version
    sink.fails = True
    write(tmp_path / "in", 1, 40)
    with pytest.raises((StreamingQueryException, OSError, holdfast.HoldfastError)):
        query.awaitTermination(PATIENCE_S)
    assert not query.isActive
    assert query.version == version + 1
    sink.fails = False
    again = start(spark, tmp_path, sink)
    again.processAllAvailable()
    again.stop()
    assert [row[1:] for row in sink.rows] == [
        ("2023-11-14 22:15:00", 1), ("2023-11-14 22:35:00", 1),
    ]  # fmt: skip


@pytest.mark.spark
def test_a_second_start_on_a_checkpoint_stops_the_first_or_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "in", 0, 0, 20)
    sink = Sink()
    first = start(spark, tmp_path, sink)
    first.processAllAvailable()
    rule = "spark.sql.streaming.stopActiveRunOnRestart"
    spark.conf.set(rule, "false")
    try:
        with pytest.raises(holdfast.Conflict, match="already runs on the checkpoint"):
            start(spark, tmp_path, sink)
    finally:
        spark.conf.unset(rule)
    assert first.isActive
    second = start(spark, tmp_path, sink)
    assert not first.isActive
    assert first.exception() is None
    first.processAllAvailable()  # has nothing to do any more
    write(tmp_path / "in", 1, 40)
    second.processAllAvailable()
    second.stop()
    assert [row[1:] for row in sink.rows] == [
        ("2023-11-14 22:15:00", 1), ("2023-11-14 22:35:00", 1),
    ]  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("ticks_on", ["a thread of its own", "the thread that waits for it"])
def test_a_function_that_a_tick_calls_may_stop_the_query_while_a_batch_waits(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ticks_on: str
) -> None:
    waits = ticks_on == "the thread that waits for it"
    if waits:
        monkeypatch.setattr("holdfast.spark.running.run._IDLE_POLL_MS", 3_600_000)
    ends = threading.Event()
    stop, finish = StreamingQuery.stop, Ending._finish

    def stopped(self: StreamingQuery) -> None:
        time.sleep(0.5)  # the batch has seen by now that somebody stops the query
        stop(self)
        assert ends.wait(PATIENCE_S)  # another thread has seen that Spark's query is over

    def finished(self: Ending) -> None:
        ends.set()
        finish(self)

    class Stops(Sink):
        def deliver(self, frame: DataFrame, number: int) -> None:
            super().deliver(frame, number)
            if len(self.rows) == 1 and query.isActive:
                write(tmp_path / "in", 1, 40)
                until(query._run.turns.batch_waits.is_set)
                query.stop()

    write(tmp_path / "in", 0, 0, 20)
    sink = Stops()
    with monkeypatch.context() as patch:
        patch.setattr(StreamingQuery, "stop", stopped)
        patch.setattr(Ending, "_finish", finished)
        query = start(spark, tmp_path, sink)
        if waits:
            query.processAllAvailable()
        until(lambda: not query.isActive)
    assert query.exception() is None
    assert [row[1:] for row in sink.rows] == [("2023-11-14 22:15:00", 1)]
    again = start(spark, tmp_path, sink)
    again.processAllAvailable()
    again.stop()
    assert [row[1:] for row in sink.rows] == [
        ("2023-11-14 22:15:00", 1), ("2023-11-14 22:35:00", 1),
    ]  # fmt: skip


@pytest.mark.spark
def test_rows_that_pass_no_watermark_and_plans_that_spark_finds_empty_are_no_errors(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "marked", 0, 0, 20)
    write(tmp_path / "bare", 0, 1)
    marked, bare = (
        spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").parquet(str(folder))
        for folder in (tmp_path / "marked", tmp_path / "bare")
    )
    with_watermark = marked.withWatermark("ts", "1 minute")
    plans = {
        "bare": with_watermark.union(bare),
        "empty": with_watermark.filter(F.lit(False)),
    }
    counts: dict[str, list[int]] = {name: [] for name in plans}
    for again in range(2):
        for name, plan in plans.items():
            seen = counts[name]
            query = (
                stateful(plan)
                .groupBy()
                .count()
                .writeStream.outputMode("complete")
                .foreachBatch(lambda frame, _, seen=seen: seen.append(frame.first()[0]))
                .option("checkpointLocation", str(tmp_path / f"cp-{name}"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        if not again:
            write(tmp_path / "bare", 1, 2, 3)  # no row of the next batch has a watermark
    assert {name: seen[-1] for name, seen in counts.items()} == {"bare": 5, "empty": 0}


class Loop:
    """A loop that always has a tick due."""

    root = "memory://loop"

    def is_tick_due(self, until_ms: int) -> bool:
        return True


IDLE = {"message": "Waiting for data to arrive", "isDataAvailable": False, "isTriggerActive": False}


@pytest.mark.parametrize(
    "status",
    [
        {**IDLE, "message": "Initializing StreamExecution"},
        {**IDLE, "message": "Initializing sources"},
        {**IDLE, "message": "Stopped"},
        {**IDLE, "isDataAvailable": True},
        {**IDLE, "isTriggerActive": True},
    ],
    ids=["initializing", "without-sources", "stopped", "has-data", "in-a-trigger"],
)
def test_a_query_that_is_not_waiting_for_data_runs_no_tick(status: dict[str, Any]) -> None:
    ran: list[int] = []
    ticks = Ticks(Loop(), threading.RLock(), lambda: ran.append(1), lambda: status, lambda: False)
    ticks.run_one_if_idle()
    assert not is_idle(status)
    assert not ran


def test_a_query_that_fails_between_two_looks_runs_no_tick() -> None:
    ran: list[int] = []
    looks = iter([False, True, True])
    ticks = Ticks(
        Loop(), threading.RLock(), lambda: ran.append(1), lambda: IDLE, lambda: next(looks)
    )
    ticks.run_one_if_idle()
    assert not ran


def test_an_idle_query_runs_one_tick_at_a_time() -> None:
    ran: list[int] = []
    ticks = Ticks(Loop(), threading.RLock(), lambda: ran.append(1), lambda: IDLE, lambda: False)
    ticks.run_one_if_idle()
    assert ran == [1]
