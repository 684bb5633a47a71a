"""Sessions, deduplication and chains of operators give what Spark's own give, batch by batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from native import SCHEMA, check_like_spark, run, write_batches
from native_recordings import NativeRuns
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import stateful

pytestmark = pytest.mark.spark
Pipeline = Callable[[Any], Any]


def _totals(frame: Any) -> Any:
    return frame.agg(
        F.count("*").alias("n"),
        F.sum("v").alias("s"),
        F.min("ts").alias("from"),
        F.max("x").alias("x"),
        F.avg("v").alias("m"),
    )


def _sessions(gap: Any, *, delay: str = "2 minutes") -> Pipeline:
    return lambda f: _totals(
        f.withWatermark("ts", delay).groupBy("id", F.session_window("ts", gap))
    )


_GAP_BY_ROW = "CASE WHEN v > 0 THEN '1 minute' WHEN v < -45 THEN '-1 second' ELSE '3 minutes' END"

CASES: dict[str, tuple[Pipeline, str]] = {
    "sessions in append mode": (_sessions("2 minutes"), "append"),
    "sessions in complete mode": (_sessions("2 minutes"), "complete"),
    "sessions by several keys": (
        lambda f: _totals(f.withWatermark("ts", "2 minutes").groupBy(
            "id", (F.col("v") % 2).alias("k"), F.session_window("ts", "1 minute"))),
        "append",
    ),
    "sessions with the window first": (
        lambda f: _totals(f.withWatermark("ts", "1 minute")
                          .groupBy(F.session_window("ts", "90 seconds").alias("w"), "id")),
        "append",
    ),
    "sessions with a gap of their own": (
        lambda f: _totals(f.withWatermark("ts", "2 minutes")
                          .groupBy("id", F.session_window("ts", F.expr(_GAP_BY_ROW)))),
        "append",
    ),
    "sessions with long delays": (_sessions("4 minutes", delay="20 minutes"), "append"),
    "first rows of keys": (lambda f: f.select("id").dropDuplicates(), "append"),
    "first rows of keys in update mode": (
        lambda f: f.select("id", "v").dropDuplicates(["id", "v"]), "update",
    ),
    "first rows by event time": (
        lambda f: f.withWatermark("ts", "2 minutes").select("id", "ts").dropDuplicates(),
        "append",
    ),
    "first rows of keys with a watermark": (
        # The event time must be used afterwards: Spark prunes it otherwise, and drops no late rows.
        lambda f: f.withWatermark("ts", "1 minute").dropDuplicates(["id", "v"])
        .select("id", "v", F.col("ts").isNotNull()),
        "append",
    ),
    "first rows within the watermark": (
        lambda f: f.withWatermark("ts", "3 minutes").select("ts", "v")
        .withColumn("v", F.col("v") % 5).dropDuplicatesWithinWatermark(["v"]).select("v"),
        "append",
    ),
    "first rows by names as Spark reads them": (
        lambda f: f.select("id", F.col("v").alias("a.b")).dropDuplicates()
        .select("id", "`a.b`", F.lit(1).alias("_hash"), F.col("id").alias("seen"))
        .dropDuplicates(["ID", "a.b", "id", "seen"]),
        "append",
    ),
    "distinct rows in windows": (
        lambda f: f.withWatermark("ts", "2 minutes").select("id", "ts").dropDuplicates()
        .groupBy("id", F.window("ts", "5 minutes")).count(),
        "append",
    ),
    "distinct rows counted by key": (
        lambda f: f.select("id", "v").dropDuplicates().groupBy("id").agg(F.sum("v").alias("s")),
        "update",
    ),
    "distinct rows counted in complete mode": (
        lambda f: f.withWatermark("ts", "1 minute").dropDuplicates(["id", "v", "ts"])
        .groupBy("id").count(),
        "complete",
    ),
    "windows of windows": (
        lambda f: f.withWatermark("ts", "2 minutes")
        .groupBy("id", F.window("ts", "2 minutes")).agg(F.sum("v").alias("s"))
        .filter("s is not null").withColumn("half", F.col("s") / 2)
        .groupBy(F.window("window", "6 minutes")).agg(F.max("s"), F.sum("half"), F.count("*")),
        "append",
    ),
    "windows of sessions": (
        lambda f: f.withWatermark("ts", "1 minute")
        .groupBy("id", F.session_window("ts", "30 seconds")).count()
        .groupBy(F.window(F.window_time("session_window"), "10 minutes"))
        .agg(F.max("count").alias("longest"), F.count("*").alias("sessions")),
        "append",
    ),
    "three in a row": (
        lambda f: f.withWatermark("ts", "1 minute").dropDuplicates(["id", "ts"])
        .groupBy("id", F.window("ts", "2 minutes")).agg(F.sum("v").alias("s"))
        .groupBy("window").agg(F.sum("s").alias("t"), F.count("*").alias("n")),
        "append",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_batch_gives_what_spark_gives(
    native_runs: NativeRuns, tmp_path: Path, name: str
) -> None:
    pipeline, mode = CASES[name]
    check_like_spark(native_runs, tmp_path, name, pipeline, mode)


@pytest.mark.parametrize(
    "name", ["sessions in append mode", "first rows within the watermark", "windows of windows"]
)
def test_a_restart_after_every_batch_gives_what_spark_gives(
    spark: SparkSession, native_runs: NativeRuns, tmp_path: Path, name: str
) -> None:
    pipeline, mode = CASES[name]
    seed = random.randrange(10**6) if native_runs.live else sum(map(ord, name))
    print(f"seed {seed}")
    write_batches(tmp_path / "all", seed, batches=3)
    folder = tmp_path / "in"
    folder.mkdir()
    for path in sorted((tmp_path / "all").glob("*.parquet")):
        (folder / path.name).write_bytes(path.read_bytes())
        native = native_runs.run(folder, tmp_path / "a", pipeline, mode)
        assert run(spark, folder, tmp_path / "b", pipeline, mode, native=False) == native


def test_sessions_in_update_mode_give_each_session_as_it_stands(
    spark: SparkSession, native_runs: NativeRuns, tmp_path: Path
) -> None:
    write_batches(tmp_path / "in", seed=7, spread_s=0)
    pipeline = _sessions("2 minutes", delay="1 hour")
    updates = run(spark, tmp_path / "in", tmp_path / "a", pipeline, "update", native=False)
    final = native_runs.run(tmp_path / "in", tmp_path / "b", pipeline, "complete")[-1]
    assert updates
    assert {row for batch in updates for row in batch} >= set(updates[-1])
    assert set(updates[-1]) <= set(final)
    with holdfast.open(tmp_path / "a" / "holdfast") as db:
        assert db.at(db.version).scan().num_rows == len(final)


def test_a_replayed_batch_delivers_the_same_first_rows_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline, mode = CASES["first rows of keys in update mode"]
    write_batches(tmp_path / "in", seed=4, batches=2)
    first = run(spark, tmp_path / "in", tmp_path / "cp", pipeline, mode, native=False)
    for name in ("1", ".1.crc"):
        (tmp_path / "cp" / "commits" / name).unlink()
    again = run(spark, tmp_path / "in", tmp_path / "cp", pipeline, mode, native=False)
    assert again == first[-1:]


def test_delivered_rows_do_not_stay_in_the_outbox(spark: SparkSession, tmp_path: Path) -> None:
    pipeline, mode = CASES["first rows of keys in update mode"]
    write_batches(tmp_path / "in", seed=9, batches=4)
    run(spark, tmp_path / "in", tmp_path / "cp", pipeline, mode, native=False)
    outbox = list((tmp_path / "cp" / "holdfast" / "outbox").glob("*.outbox"))
    assert [path.name.partition("-")[0] for path in outbox] == ["4"]


def test_rows_too_many_for_a_result_travel_in_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.range(40_000).selectExpr("id % 30000 AS k", "repeat('x', 40) AS text").coalesce(
        1
    ).write.parquet(str(tmp_path / "in"))
    source = spark.readStream.schema("k long, text string").parquet(str(tmp_path / "in"))
    seen: list[int] = []

    def keep(batch: DataFrame, version: int) -> None:
        seen.extend(row.k for row in batch.collect())

    query = (
        stateful(source)
        .dropDuplicates(["k"])
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(seen) == list(range(30_000))
    assert len(list((tmp_path / "cp" / "holdfast" / "outbox").glob("*.outbox"))) == 2


def test_progress_names_the_operators_as_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path / "in", seed=3)
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
    pipeline, _ = CASES["distinct rows in windows"]
    query = (
        pipeline(stateful(source.parquet(str(tmp_path / "in"))))
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    operators = query.lastProgress["stateOperators"]
    assert [(operator["operatorName"], operator["operatorId"]) for operator in operators] == [
        ("stateStoreSave", 1), ("dedupe", 0),
    ]  # fmt: skip
    dropped = [
        p["stateOperators"][1]["customMetrics"]["numDroppedDuplicateRows"]
        for p in query.recentProgress
    ]
    late = [p["stateOperators"][1]["numRowsDroppedByWatermark"] for p in query.recentProgress]
    updated = [p["stateOperators"][1]["numRowsUpdated"] for p in query.recentProgress]
    read = [p["numInputRows"] for p in query.recentProgress]
    assert sum(dropped) + sum(late) + sum(updated) == sum(read)
    assert sum(late) > 0


def test_a_session_without_another_key_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    source = spark.readStream.schema(SCHEMA).parquet(str(tmp_path))
    with pytest.raises((AnalysisException, holdfast.InvalidArgument), match="session"):
        stateful(source).withWatermark("ts", "1 minute").groupBy(
            F.session_window("ts", "1 minute")
        ).count()


def test_first_rows_by_no_column_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    frame = stateful(spark.readStream.schema(SCHEMA).parquet(str(tmp_path)))
    with pytest.raises(holdfast.InvalidArgument, match=r"list of columns .* is empty"):
        frame.dropDuplicates([])
    with pytest.raises(holdfast.InvalidArgument, match=r"list of columns .* is empty"):
        frame.withWatermark("ts", "1 minute").dropDuplicatesWithinWatermark([])
