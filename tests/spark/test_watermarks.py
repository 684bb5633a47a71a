"""Watermarks of several inputs, late rows, and ticks."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from native import in_order, normal, outputs_of, source_of, write_batches
from native_recordings import NativeRuns
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import stateful

pytestmark = pytest.mark.spark
Rows = list[tuple[Any, ...]]


def _windows(frame: Any) -> Any:
    return frame.groupBy("id", F.window("ts", "5 minutes")).count()


def _collector(outputs: list[Rows]) -> Callable[[DataFrame, int], None]:
    def keep(batch: DataFrame, number: int) -> None:
        if rows := sorted((tuple(map(normal, row)) for row in batch.collect()), key=repr):
            outputs.append(rows)

    return keep


@pytest.fixture
def policy(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    name = "spark.sql.streaming.multipleWatermarkPolicy"
    spark.conf.set(name, request.param)
    yield request.param
    spark.conf.unset(name)


@pytest.mark.parametrize("policy", ["min", "max", "MIN"], indirect=True)
def test_several_inputs_make_one_watermark_as_in_spark(
    spark: SparkSession, native_runs: NativeRuns, tmp_path: Path, policy: str
) -> None:
    folders = tmp_path / "left", tmp_path / "right"
    for seed, folder in enumerate(folders, start=1):
        write_batches(folder, seed)

    def both(wrap: Callable[[DataFrame], Any]) -> Any:
        left, right = (wrap(source_of(spark, folder)) for folder in folders)
        return _windows(
            left.withWatermark("ts", "1 minute").union(right.withWatermark("ts", "5 minutes"))
        )

    native = native_runs.outputs(both(lambda frame: frame), tmp_path / "a", "append", *folders)
    ours = outputs_of(both(stateful), tmp_path / "b", "append")
    assert in_order(ours) == in_order(native)
    assert native


@pytest.mark.parametrize("policy", ["min", "max"], indirect=True)
def test_after_a_restart_inputs_begin_anew_below_one_watermark_as_in_spark(
    spark: SparkSession, native_runs: NativeRuns, tmp_path: Path, policy: str
) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    write_batches(right, seed=8, batches=4, spread_s=60)

    def both(wrap: Callable[[DataFrame], Any]) -> Any:
        first, second = (
            wrap(source_of(spark, folder)).withWatermark("ts", "1 minute")
            for folder in (left, right)
        )
        return _windows(first.union(second))

    native, ours = [], []
    for batches in (1, 4):  # the second run has rows of the left input alone
        write_batches(left, seed=7, batches=batches, spread_s=60)
        sparks = both(lambda frame: frame)
        native.append(in_order(native_runs.outputs(sparks, tmp_path / "a", "append", left, right)))
        ours.append(in_order(outputs_of(both(stateful), tmp_path / "b", "append")))
    assert ours == native
    assert native[0]
    assert not native[1]


def test_a_watermark_already_on_the_dataframe_is_honoured(
    spark: SparkSession, native_runs: NativeRuns, tmp_path: Path
) -> None:
    write_batches(tmp_path / "in", seed=3)
    marked = source_of(spark, tmp_path / "in").withWatermark("ts", "2 minutes")
    native = native_runs.outputs(_windows(marked), tmp_path / "a", "append", tmp_path / "in")
    ours = outputs_of(_windows(stateful(marked)), tmp_path / "b", "append")
    assert in_order(ours) == in_order(native)
    assert native


def test_windows_that_complete_mode_kept_come_out_in_append_mode(
    spark: SparkSession, native_runs: NativeRuns, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    for mode, batches in (("complete", 3), ("append", 5)):
        write_batches(folder, seed=4, batches=batches)
        sparks, own = (
            _windows(wrap(source_of(spark, folder)).withWatermark("ts", "1 minute"))
            for wrap in (lambda frame: frame, stateful)
        )
        native = native_runs.outputs(sparks, tmp_path / "a", mode, folder)
        ours = outputs_of(own, tmp_path / "b", mode)
    assert _all(ours) == _all(native)
    assert native


def _all(outputs: list[list[Row]]) -> Rows:
    return sorted((row for rows in in_order(outputs) for row in rows), key=repr)


@pytest.mark.parametrize("window", ["window", "session_window", "sliding"])
def test_late_rows_are_counted_as_rows(spark: SparkSession, tmp_path: Path, window: str) -> None:
    windows: dict[str, Callable[[], Any]] = {
        "window": lambda: F.window("ts", "5 minutes"),
        "session_window": lambda: F.session_window("ts", "5 minutes"),
        "sliding": lambda: F.window("ts", "10 minutes", "1 minute"),
    }
    rows = {
        "000": [("a", "2024-01-01 10:30:00")],
        "001": [("a", "2024-01-01 10:31:00")],
        "002": [("a", "2024-01-01 09:00:00")] * 3 + [("b", "2024-01-01 10:32:00")],
    }
    for number, (name, cells) in enumerate(rows.items()):
        frame = spark.createDataFrame(cells, "id string, at string")
        frame = frame.selectExpr("id", "CAST(at AS timestamp) AS ts").coalesce(1)
        frame.write.parquet(str(tmp_path / name))
        (part,) = (tmp_path / name).glob("*.parquet")
        (tmp_path / "in").mkdir(exist_ok=True)
        shutil.move(part, tmp_path / "in" / f"{number}.parquet")
    reader = spark.readStream.schema("id string, ts timestamp").option("maxFilesPerTrigger", "1")
    query = (
        stateful(reader.parquet(str(tmp_path / "in")))
        .withWatermark("ts", "1 minute")
        .groupBy("id", windows[window]())
        .count()
        .writeStream.format("noop")
        .outputMode("append")
        .option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    dropped = [p["stateOperators"][0]["numRowsDroppedByWatermark"] for p in query.recentProgress]
    assert sum(dropped) == 3
    assert sum(p["numInputRows"] for p in query.recentProgress) == 6


def _sliding(time: str = "ts") -> Any:
    return F.window(F.expr(time), "10 minutes", "3 minutes")


SLIDING: dict[str, Callable[[Any], Any]] = {
    "lists": lambda f: f.groupBy("id", _sliding()).agg(F.collect_list("v")),
    "hours": lambda f: f.groupBy(F.hour(_sliding().start), _sliding().alias("ts")).count(),
}


def test_a_row_of_many_windows_is_counted_once_whatever_is_made_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_batches(tmp_path / "in", seed=5, batches=3, spread_s=3000)

    def counts(name: str, build: Callable[[Any], Any]) -> list[tuple[int, int]]:
        frame = stateful(source_of(spark, tmp_path / "in")).withWatermark("ts", "1 minute")
        writer = build(frame).writeStream.outputMode("update").format("noop")
        writer = writer.option("checkpointLocation", str(tmp_path / name))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        told = [p for p in query.recentProgress if not p["isTick"]]
        late = (p["stateOperators"][0]["numRowsDroppedByWatermark"] for p in told)
        return list(zip((p["numInputRows"] for p in told), late, strict=True))

    summed = counts("sums", lambda f: f.groupBy("id", _sliding()).agg(F.sum("v")))
    assert sum(rows for rows, _ in summed) == spark.read.parquet(str(tmp_path / "in")).count()
    assert 0 < sum(late for _, late in summed) < sum(rows for rows, _ in summed)
    for name, build in SLIDING.items():
        assert counts(name, build) == summed, name
    # Times without a zone have no watermark, and nothing is late by them.
    without_zone = _sliding("ts::timestamp_ntz")
    never_late = counts("ntz", lambda f: f.groupBy("id", without_zone).agg(F.first("v")))
    assert never_late == [(rows, 0) for rows, _ in summed]


def _running(spark: SparkSession, tmp_path: Path, outputs: list[Rows]) -> Any:
    frame = stateful(source_of(spark, tmp_path / "in")).withWatermark("ts", "1 minute")
    writer = _windows(frame).writeStream.outputMode("append").foreachBatch(_collector(outputs))
    return writer.option("checkpointLocation", str(tmp_path / "cp")).start()


def test_waiting_for_all_data_waits_for_the_windows_it_closes(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_batches(tmp_path / "in", seed=5, batches=2)
    outputs: list[Rows] = []
    query = _running(spark, tmp_path, outputs)
    try:
        query.processAllAvailable()
        ticks = [p for p in query.recentProgress if p["isTick"]]
        assert ticks
        assert outputs
        version = query.version
        query.processAllAvailable()
        assert query.version == version
    finally:
        query.stop()
    closed = {row[1] for rows in outputs for row in rows}
    with holdfast.open(tmp_path / "cp" / "holdfast") as db:
        kept = db.at(db.version).scan().column("window_end").to_pylist()
    assert max(window.end for window in closed) < min(end.replace(tzinfo=None) for end in kept)


def test_without_no_data_batches_windows_wait_for_data(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path / "in", seed=5, batches=1)
    outputs: list[Rows] = []
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    try:
        query = _running(spark, tmp_path, outputs)
        query.processAllAvailable()
        query.stop()
    finally:
        spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")
    assert query.version == 1
    assert not outputs


def test_a_stream_at_rest_closes_its_windows_by_itself(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path / "in", seed=6, batches=1)
    outputs: list[Rows] = []
    query = _running(spark, tmp_path, outputs)
    deadline = time.monotonic() + 240
    try:
        while not outputs and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        query.stop()
    assert outputs
    assert query.lastProgress["isTick"]


def test_distinct_values_are_estimated_as_spark_estimates_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number in range(3):
        rows = spark.range(0, 4000, 1, 1).selectExpr(
            "CAST(id % 3 AS string) AS k",
            f"CASE WHEN id % 7 = 0 THEN NULL ELSE id % {900 * (number + 1)} END AS v",
        )
        rows.write.mode("append").parquet(str(tmp_path / "in"))
    exact = (
        spark.read.parquet(str(tmp_path / "in"))
        .groupBy("k")
        .agg(
            F.approx_count_distinct("v", 0.02).alias("n"),
            F.expr("approx_count_distinct(v) FILTER (WHERE v < 30)").alias("few"),
        )
    )
    reader = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", "1")
    query = (
        stateful(reader.parquet(str(tmp_path / "in")))
        .groupBy("k")
        .agg(
            F.approx_count_distinct("v", 0.02).alias("n"),
            F.expr("approx_count_distinct(v) FILTER (WHERE v < 30)").alias("few"),
        )
        .writeStream.outputMode("complete")
        .format("memory")
        .queryName("distinct_values")
        .option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = {row.k: row for row in spark.table("distinct_values").collect()}
    for row in exact.collect():
        assert found[row.k] == row
