"""State of a stream is repaired from outside, and the stream goes on from the repair."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aggregate_calls import CALLS
from native import write_batch
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import holdfast
from holdfast import admin, stateful
from holdfast.admin.columns import store_columns
from holdfast.errors import Conflict, IllegalState, InvalidArgument
from holdfast.ids import TIMERS

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])
SCHEMA = "id string, v long, ts timestamp"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Pipeline = Callable[[Any], Any]


def minutes(count: float) -> datetime:
    return NOON + timedelta(minutes=count)


class Stream:
    """One query with its input, checkpoint and sink."""

    def __init__(
        self, spark: SparkSession, folder: Path, pipeline: Pipeline, mode: str = "update"
    ) -> None:
        self.spark, self.folder, self.pipeline, self.mode = spark, folder, pipeline, mode
        self.checkpoint = folder / "cp"
        self.given: dict[int, list[Row]] = {}
        self._files = 0
        (folder / "in").mkdir(parents=True)

    def write(self, *rows: tuple[str, int, float]) -> None:
        """A file of rows: id, v and how many minutes after noon."""
        table = pa.table(
            {
                "id": [name for name, _, _ in rows],
                "v": pa.array([v for _, v, _ in rows], pa.int64()),
                "ts": pa.array([minutes(at) for _, _, at in rows], pa.timestamp("us", "UTC")),
            }
        )
        write_batch(self.folder / "in", self._files, table)
        self._files += 1

    def start(self, **trigger: Any) -> Any:
        rows = self.spark.readStream.schema(SCHEMA).parquet(str(self.folder / "in"))
        writer = (
            self.pipeline(stateful(rows))
            .writeStream.outputMode(self.mode)
            .foreachBatch(self._deliver)
            .option("checkpointLocation", str(self.checkpoint))
        )
        return (writer.trigger(**trigger) if trigger else writer).start()

    def run(self, *rows: tuple[str, int, float]) -> list[tuple[Any, ...]]:
        """Run the stream over new rows, if any, and return what it delivered, in order."""
        if rows:
            self.write(*rows)
        known = set(self.given)
        query = self.start(availableNow=True)
        query.awaitTermination()
        assert query.exception() is None
        new = sorted(set(self.given) - known)
        return [tuple(row) for number in new for row in sorted(self.given[number])]

    def _deliver(self, frame: DataFrame, number: int) -> None:
        rows = frame.collect()
        assert number not in self.given, "no batch came twice in these tests"
        self.given[number] = rows

    def repair(self, **given: Any) -> None:
        admin.repair(self.checkpoint, **given).run()

    def state(self, store: str | None = None) -> dict[Any, Any]:
        read = holdfast.read(self.checkpoint, store=store)
        return {tuple(key): tuple(value) for key, value in read}


def totals(rows: Any) -> Any:
    return rows.groupBy("id").agg(F.sum("v").alias("total"), F.count("*").alias("n"))


def test_a_repaired_total_is_what_the_stream_goes_on_from(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path / "a stream, 50 % ö", totals)
    assert stream.run(("a", 1, 0), ("b", 2, 0)) == [("a", 1, 1), ("b", 2, 1)]
    stream.repair(set={"key": "a", "value": {"total": 100}}, delete="b")
    assert stream.state() == {("a",): (100, 1)}
    assert stream.run() == []
    assert stream.run(("a", 1, 1), ("b", 2, 1)) == [("a", 101, 2), ("b", 2, 1)]
    assert sorted(stream.given) == [0, 1]
    assert stream.state() == {("a",): (101, 2), ("b",): (2, 1)}


def test_a_repair_is_delivered_with_a_number_of_its_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, totals)
    stream.run(("a", 1, 0), ("b", 2, 0))
    stream.repair(set={"key": "a", "value": {"total": 100}}, delete="b", deliver=True)
    with pytest.raises(IllegalState, match=r"trigger\(availableNow=True\)"):
        stream.repair(set={"key": "a", "value": {"total": 200}})
    assert stream.run() == [("a", 100, 1)]
    assert sorted(stream.given) == [0, 1]
    stream.repair(set={"key": "a", "value": {"total": 300}}, deliver=True)
    assert stream.run(("a", 1, 1)) == [("a", 300, 1), ("a", 301, 2)]
    assert sorted(stream.given) == [0, 1, 2, 3]


def test_in_complete_mode_a_delivered_repair_is_the_whole_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, totals, "complete")
    stream.run(("a", 1, 0), ("b", 2, 0))
    stream.repair(set={"key": "a", "value": {"total": 100}}, deliver=True)
    assert stream.run() == [("a", 100, 1), ("b", 2, 1)]


def windows(rows: Any) -> Any:
    grouped = rows.withWatermark("ts", "0 minutes").groupBy("id", F.window("ts", "5 minutes"))
    return grouped.agg(F.sum("v").alias("total"))


@pytest.mark.parametrize("deliver", [True, False])
def test_in_append_mode_a_repaired_window_comes_when_it_closes_and_once(
    spark: SparkSession, tmp_path: Path, deliver: bool
) -> None:
    stream = Stream(spark, tmp_path, windows, "append")
    assert stream.run(("a", 1, 1), ("a", 1, 6)) == [("a", Row(_at(0), _at(5)), 1)]
    key = ("a", minutes(5), minutes(10))
    stream.repair(set={"key": key, "value": {"total": 50}}, deliver=deliver)
    assert stream.run() == []
    assert stream.run(("a", 2, 7)) == []
    assert stream.run(("a", 1, 11)) == [("a", Row(_at(5), _at(10)), 52)]
    with pytest.raises(InvalidArgument, match="'window_end' is not after 2026-01-01T12:1"):
        stream.repair(set={"key": key, "value": {"total": 50}})
    with pytest.raises(InvalidArgument, match="There is no such key"):
        stream.repair(delete=key)


def _at(count: float) -> datetime:
    """As PySpark gives a time: without a zone."""
    return minutes(count).astimezone().replace(tzinfo=None)


def test_an_average_is_repaired_by_what_it_is_kept_in(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, lambda rows: rows.groupBy("id").agg(F.avg("v").alias("mean")))
    assert stream.run(("a", 1, 0), ("a", 3, 0)) == [("a", 2.0)]
    with pytest.raises(InvalidArgument, match=r"avg\(v\).*--partials .*: mean_sum, mean_count"):
        stream.repair(set={"key": "a", "value": {"mean": 9.0}})
    with pytest.raises(InvalidArgument, match="'mean_count' is not given"):
        stream.repair(set={"key": "a", "value": {"mean_sum": 9.0}}, partials=True)
    value = {"mean_sum": 10.0, "mean_count": 4}
    stream.repair(set={"key": "a", "value": value}, partials=True, deliver=True)
    assert stream.run(("a", 5, 1)) == [("a", 2.5), ("a", 3.0)]


def test_every_aggregate_is_known_by_the_definition_of_its_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    calls = [call for calls in CALLS.values() for call in calls]
    names = {
        "n": "v",
        "i": "cast(v as int)",
        "x": "cast(v as double)",
        "s": "id",
        "u": "v",
        "d": "cast(v as decimal(12,2))",
        "flag": "v > 0",
    }

    def pipeline(rows: Any) -> Any:
        given = rows.select("id", *[F.expr(text).alias(name) for name, text in names.items()])
        columns = [F.expr(call).alias(f"c{at}") for at, call in enumerate(calls)]
        return given.groupBy("id").agg(*columns, (F.sum("n") * 2).alias("made"))

    stream = Stream(spark, tmp_path, pipeline)
    stream.run(("a", 1, 0))
    manifest = holdfast.reading.open_root(stream.checkpoint).newest_readable()
    [store] = store_columns(manifest)
    values = [column for column in store.columns if column.place == "value"]
    assert [column.name for column in values if column.aggregate is None] == []
    found = {column.name: column.aggregate for column in values}
    assert found["c0"] == "sum(n)"
    assert len(set(found.values())) >= len(calls)


class Everything(StatefulProcessor):
    """A total, a map of counts, a list of what came, and a timer that tells the total."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "total long")
        self.counts = handle.getMapState("counts", "v long", "n long")
        self.seen = handle.getListState("seen", "v long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            total = self.total.get()[0] if self.total.exists() else 0
            self.total.update((total + row.v,))
            n = self.counts.getValue((row.v,))[0] if self.counts.containsKey((row.v,)) else 0
            self.counts.updateValue((row.v,), (n + 1,))
            self.seen.appendValue((row.v,))
        yield self.told(key, "rows")

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield self.told(key, "timer")

    def told(self, key: Any, what: str) -> Row:
        counts = ",".join(f"{k[0]}:{n[0]}" for k, n in sorted(self.counts.iterator()))
        seen = ",".join(str(value[0]) for value in self.seen.get())
        total = self.total.get()[0] if self.total.exists() else None
        return Row(id=key[0], what=what, total=total, counts=counts, seen=seen)


def everything(rows: Any) -> Any:
    output = "id string, what string, total long, counts string, seen string"
    keyed = rows.withWatermark("ts", "0 minutes").groupBy("id")
    return keyed.transformWithState(Everything(), output, "Update", "EventTime")


def test_values_maps_lists_and_timers_of_a_processor_are_repaired(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, everything)
    assert stream.run(("a", 1, 0), ("a", 2, 0)) == [("a", "rows", 3, "1:1,2:1", "1,2")]
    stream.repair(store="total", set={"key": "a", "value": {"total": 100}})
    wanted = [{"key": ("a", 1), "value": 40}, {"key": ("a", 7), "value": 70}]
    stream.repair(store="counts", set=wanted, delete=("a", 2))
    wanted = [{"key": ("a", 0), "value": 8}, {"key": ("a", 2), "value": 9}]
    stream.repair(store="seen", set=wanted)
    assert stream.run(("a", 1, 1)) == [("a", "rows", 101, "1:41,7:70", "8,2,9,1")]
    with pytest.raises(InvalidArgument, match="only an aggregation's rows"):
        stream.repair(store="total", set={"key": "a", "value": 5}, deliver=True)
    due = {"key": ("a", int(minutes(5).timestamp() * 1000))}
    later = {"key": ("a", int(minutes(99).timestamp() * 1000))}
    stream.repair(store=TIMERS, set=[due, later])
    stream.repair(store=TIMERS, delete=later["key"])
    assert stream.run(("b", 1, 6)) == [
        ("b", "rows", 1, "1:1", "1"),
        ("a", "timer", 101, "1:41,7:70", "8,2,9,1"),
    ]
    assert stream.run(("b", 1, 120))[1:] == []
    assert stream.state(TIMERS) == {}


class Brief(StatefulProcessor):
    """A total that lasts ten minutes of event time."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total long", 600_000)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        held = self.total.get()[0] if self.total.exists() else 0
        total = held + sum(row.v for row in rows)
        if key[0] != "clock":
            self.total.update((total,))
        yield Row(id=key[0], total=total)


def brief(rows: Any) -> Any:
    keyed = rows.withWatermark("ts", "0 minutes").groupBy("id")
    return keyed.transformWithState(Brief(), "id string, total long", "Update", "EventTime")


def test_a_value_with_a_time_to_live_keeps_it_and_a_new_one_needs_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, brief)
    stream.run(("a", 1, 0))
    with pytest.raises(InvalidArgument, match=r'Say when it does, as "expires": '):
        stream.repair(set={"key": "b", "value": 20}, store="total")
    wanted = [{"key": "a", "value": 10}, {"key": "b", "value": 20, "expires": minutes(20)}]
    stream.repair(set=wanted, store="total")
    for minute, kept in ((9, {"a": 10, "b": 20}), (11, {"b": 20}), (19, {"b": 20}), (21, {})):
        stream.run(("clock", 0, minute))
        assert stream.state("total") == {(name,): (total,) for name, total in kept.items()}


def test_a_group_state_is_repaired(spark: SparkSession, tmp_path: Path) -> None:
    import pandas as pd

    def count(key: Any, frames: Any, state: Any) -> Any:
        n = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
        state.update((n,))
        yield pd.DataFrame({"id": [key[0]], "n": [n]})

    def pipeline(rows: Any) -> Any:
        return rows.groupBy("id").applyInPandasWithState(
            count, "id string, n long", "n long", "update", "NoTimeout"
        )

    stream = Stream(spark, tmp_path, pipeline)
    assert stream.run(("a", 1, 0)) == [("a", 1)]
    stream.repair(set='{"key": ["a"], "value": {"state": {"n": 41}}}')
    assert stream.run(("a", 1, 1)) == [("a", 42)]


@pytest.mark.parametrize("within", [False, True])
def test_keys_of_a_deduplication_are_forgotten_and_remembered(
    spark: SparkSession, tmp_path: Path, within: bool
) -> None:
    def pipeline(rows: Any) -> Any:
        if not within:
            return rows.dropDuplicates(["id"])
        return rows.withWatermark("ts", "10 minutes").dropDuplicatesWithinWatermark(["id"])

    stream = Stream(spark, tmp_path, pipeline, "append")
    stream.run(("a", 1, 0))
    assert stream.run(("a", 1, 1)) == []
    until = int(minutes(30).timestamp() * 1_000_000)
    if within:
        with pytest.raises(InvalidArgument, match="as its column 'expires_at_us' says"):
            stream.repair(set={"key": "b"})
    wanted = {"key": "b", "value": {"expires_at_us": until}} if within else {"key": "b"}
    stream.repair(set=wanted, delete="a")
    assert stream.run(("a", 2, 2), ("b", 2, 2)) == [("a", 2, _at(2))]
    if within:
        stream.run(("c", 1, 50))
        assert set(stream.state()) == {("c",)}


def test_a_session_is_repaired_and_none_is_added(spark: SparkSession, tmp_path: Path) -> None:
    def pipeline(rows: Any) -> Any:
        grouped = rows.withWatermark("ts", "0 minutes").groupBy(
            "id", F.session_window("ts", "5 minutes")
        )
        return grouped.agg(F.sum("v").alias("total"))

    stream = Stream(spark, tmp_path, pipeline, "append")
    stream.run(("a", 1, 0))
    key = ("a", minutes(0), minutes(5))
    stream.repair(set={"key": key, "value": {"total": 50}})
    with pytest.raises(InvalidArgument, match="There is no such session, and one cannot be added"):
        stream.repair(set={"key": ("a", minutes(1), minutes(6)), "value": {"total": 50}})
    stream.run(("a", 2, 1))
    assert stream.run(("b", 1, 20)) == [("a", Row(_at(0), _at(6)), 52)]


def test_a_driver_that_runs_stops_and_its_restart_goes_on_from_the_repair(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, totals)
    stream.write(("a", 1, 0))
    query = stream.start()
    query.processAllAvailable()
    wanted = {"key": "a", "value": {"total": 100}}
    for _ in range(100):  # Spark notes a batch as done a moment after it was delivered
        try:
            stream.repair(set=wanted)
            break
        except IllegalState:
            query.processAllAvailable()
    assert query.isActive
    stream.write(("a", 1, 1))
    with pytest.raises((Conflict, StreamingQueryException)):
        query.awaitTermination()
    assert "holdfast repair" in str(query.exception())
    assert stream.state() == {("a",): (100, 1)}
    assert stream.run() == [("a", 101, 2)]
    assert sorted(stream.given) == [0, 1]


def test_a_changed_query_waits_for_a_repair_to_be_delivered(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, totals)
    stream.run(("a", 1, 0))
    stream.repair(set={"key": "a", "value": {"total": 100}}, deliver=True)
    stream.pipeline = lambda rows: rows.groupBy("id").agg(F.max("v").alias("most"))
    with pytest.raises(InvalidArgument, match="was made by another query"):
        stream.start(availableNow=True)
    stream.pipeline = totals
    assert stream.run() == [("a", 100, 1)]
