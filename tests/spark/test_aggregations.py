"""Aggregations of streams give what Spark's own give, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from native import (
    SCHEMA,
    check_input_like_spark,
    check_like_spark,
    normal,
    run,
    write_batches,
)
from native_recordings import NativeRuns
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import stateful
from holdfast.spark.interop import check

pytestmark = pytest.mark.spark
Pipeline = Callable[[Any], Any]


def _summary(frame: Any, *keys: Any, watermark: str | None = None) -> Any:
    if watermark is not None:
        frame = frame.withWatermark("ts", watermark)
    return frame.groupBy(*keys).agg(
        F.sum("v").alias("s"),
        F.count("*").alias("n"),
        F.avg("v").alias("m"),
        F.min("x"),
        F.max("x").alias("mx"),
        (F.sum("v") / F.count("v")).alias("r"),
        F.expr("sum(v) filter (where x > 0.5)").alias("fs"),
        F.sum("d").alias("sd"),
    )


def _others(frame: Any, *keys: Any) -> Any:
    return frame.groupBy(*keys).agg(
        F.stddev("v"),
        F.var_pop("v"),
        F.avg("d").alias("ad"),
        F.bool_and(F.col("v") > 0).alias("ba"),
        F.bool_or(F.col("v") > 0).alias("bo"),
        F.bit_xor("v").alias("bx"),
        F.count_if(F.col("v") > 3).alias("ci"),
        F.collect_list("v").alias("cl"),
        F.collect_set("v").alias("cs"),
        F.max("id").alias("mi"),
        F.min("ts").alias("mt"),
    )


CASES: dict[str, tuple[Pipeline, str]] = {
    "update by one key": (lambda f: _summary(f, "id"), "update"),
    "complete by one key": (lambda f: _summary(f, "id"), "complete"),
    "update by an expression": (
        lambda f: _summary(f, "id", (F.col("v") % 3).alias("k")), "update",
    ),
    "global update": (lambda f: _summary(f), "update"),
    "global complete": (lambda f: _summary(f), "complete"),
    "append by tumbling windows": (
        lambda f: _summary(f, "id", F.window("ts", "5 minutes"), watermark="10 minutes"), "append",
    ),
    "update by sliding windows": (
        lambda f: _summary(f, F.window("ts", "9 minutes", "3 minutes"), "id", watermark="1 minute"),
        "update",
    ),
    "append by windows that no slide divides": (
        lambda f: _summary(
            f, "id", F.window("ts", "10 minutes", "4 minutes", "3 minutes"), watermark="2 minutes"
        ),
        "append",
    ),
    "update by windows and their hour": (
        lambda f: _summary(
            f, "id", F.hour(F.window("ts", "10 minutes", "5 minutes").start),
            F.window("ts", "10 minutes", "5 minutes"),
        ),
        "update",
    ),
    "complete by many windows with a negative offset": (
        lambda f: _summary(f, "id", F.window("ts", "7 minutes", "5 seconds", "-3 seconds")),
        "complete",
    ),
    "global update with a watermark": (
        lambda f: _summary(f, watermark="2 minutes"), "update",
    ),
    "complete by windows with an offset": (
        lambda f: _summary(f, F.window("ts", "5 minutes", "5 minutes", "1 minute")), "complete",
    ),
    "append by the event time itself": (
        lambda f: _summary(f, "ts", watermark="2 minutes"), "append",
    ),
    "other functions": (lambda f: _others(f, "id"), "update"),
    "columns before and after": (
        lambda f: _summary(f.filter("v is not null").withColumn("id", F.upper("id")), "id")
        .filter("n > 1").withColumn("z", F.col("s") * 2).drop("mx"),
        "update",
    ),
    "a key by the name of a result": (
        lambda f: f.withColumnRenamed("id", "result_0").groupBy("result_0").count(), "update",
    ),
    "aggregates by the names of results": (
        lambda f: f.groupBy("id").agg(
            F.sum("v").alias("result_1"), F.max("v").alias("result_0"), F.upper("id").alias("key_0")
        ),
        "update",
    ),
    "nothing but keys": (lambda f: f.groupBy("id").agg(F.lit(1).alias("one")), "update"),
    "nothing but windows": (
        lambda f: f.withWatermark("ts", "1 minute")
        .groupBy(F.window("ts", "9 minutes", "3 minutes"), "id").agg(F.lit(1).alias("one")),
        "append",
    ),
    "nothing but sessions": (
        lambda f: f.withWatermark("ts", "1 minute")
        .groupBy(F.session_window("ts", "5 minutes"), "id").agg(F.upper("id").alias("upper")),
        "append",
    ),
    "ordered": (lambda f: f.groupBy("id").count().orderBy("count"), "complete"),
}  # fmt: skip


def _alike(frame: Any) -> Any:
    return frame.groupBy(F.col("id").alias("a_sum"), "id", "id").agg(
        F.avg("v").alias("a"),
        F.sum("v").alias("A_count"),
        F.count("v").alias("a_sum"),
        F.last("v", ignorenulls=True).alias("l"),
        F.max("v").alias("l_seen"),
        F.max_by("v", "ts").alias("m"),
        F.max("ts").alias("m_by"),
        F.approx_count_distinct("v").alias("n"),
        F.count("x").alias("n_sketch"),
        F.stddev("v").alias("id"),
        F.min("v").alias("id"),
        F.max("x").alias("id_mean"),
        F.count("*").alias("_rows"),
        F.count("*").alias("_hash"),
        F.sum("x").alias("_found"),
    )


ALIKE: dict[str, tuple[Pipeline, str]] = {
    "partial columns": (_alike, "update"),
    "keys of the store's names": (
        lambda f: f.withColumnRenamed("id", "_rows").withColumn("_hash", F.col("v") % 2)
        .groupBy("_rows", "_hash", F.window("ts", "9 minutes", "3 minutes").alias("_dead"))
        .agg(F.sum("v").alias("_dead"), F.avg("v").alias("_dead_start")),
        "update",
    ),
    "sessions": (
        lambda f: f.withWatermark("ts", "1 minute")
        .groupBy(F.session_window("ts", "5 minutes").alias("s"), "id", "id")
        .agg(F.count("*").alias("s"), F.avg("v").alias("id")),
        "append",
    ),
    "all rows": (lambda f: f.agg(F.count("*").alias("all_rows")), "complete"),
}  # fmt: skip


def _of_keys(frame: Any) -> Any:
    return frame.groupBy("id", (F.col("v") % 3).alias("k")).agg(
        F.col("id"),
        F.upper("id"),
        F.lit(1),
        F.sum("v").alias("s"),
        (F.sum("v") + F.col("k")).alias("sk"),
        (F.col("s") * 2).alias("t"),
        (F.col("t") + F.col("s")).alias("u"),
    )


INSIDE: dict[str, tuple[Pipeline, str]] = {
    "keys, constants and other results": (_of_keys, "update"),
    "bounds of sliding windows": (
        lambda f: f.groupBy(F.window("ts", "9 minutes", "3 minutes").alias("w"), "id")
        .agg(F.sum("v"), F.col("w.start").alias("s")),
        "update",
    ),
    "bounds of sliding windows, aggregated": (
        lambda f: f.groupBy(F.window("ts", "9 minutes", "3 minutes"), "id")
        .agg(F.sum("v"), F.col("window").start.alias("s"), F.max("window.end").alias("m")),
        "update",
    ),
    "bounds of sessions": (
        lambda f: f.withWatermark("ts", "1 minute")
        .groupBy(F.session_window("ts", "5 minutes").alias("z"), "id")
        .agg(F.sum("v"), F.col("z").end.alias("e")),
        "append",
    ),
    "a constant of all rows": (lambda f: f.agg(F.lit(1)), "update"),
    "a sum and a constant of all rows": (lambda f: f.agg(F.sum("v"), F.lit(1)), "complete"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ALIKE, *INSIDE])
def test_names_that_are_alike_and_keys_inside_agg_give_what_spark_gives(
    native_runs: NativeRuns, tmp_path: Path, name: str
) -> None:
    pipeline, mode = {**ALIKE, **INSIDE}[name]
    write_batches(tmp_path / "in", seed=6, batches=2)
    check_input_like_spark(native_runs, tmp_path, pipeline, mode)


def test_names_are_stored_as_they_are_unless_another_column_has_them(spark: SparkSession) -> None:
    rates = stateful(_rates(spark))
    average, total = F.avg("value").alias("v"), F.sum("value").alias("v_sum")
    assert _stored_names(rates.groupBy("value").agg(average)) == ["v_sum", "v_count"]
    plain = rates.groupBy("value").agg(average, (F.sum("value") + 1).alias("v_sum"))
    assert _stored_names(plain) == ["v_sum", "v_count", "aggregate_1"]
    alike = rates.groupBy("value").agg(average, total)
    assert _stored_names(alike) == ["v_sum", "v_count", "v_sum_"]
    swapped = rates.groupBy("value").agg(total, average)
    assert _stored_names(swapped) == ["v_sum", "v_sum_", "v_count"]
    operator = swapped._flow.stages[-1].operator
    assert operator.definition()["aggregate v"] == "avg(value) kept in v_sum_, v_count"


def test_a_view_shows_stored_keys_and_finished_aggregates(spark: SparkSession) -> None:
    times = F.window("timestamp", "4 seconds", "2 seconds").alias("w")
    counted = stateful(_rates(spark)).groupBy(times, F.col("value").alias("_rows"))
    shown = counted.agg(F.avg("value").alias("v"), F.sum("value").alias("v_sum"))
    make = shown._flow.stages[-1].operator.shown(None).make
    stored = "_rows_ long, w_start timestamp, w_end timestamp, v_sum double, v_count long"
    row = (7, datetime(2026, 1, 1), datetime(2026, 1, 2), 9.0, 2, 9)
    made = make(spark.createDataFrame([row], f"{stored}, v_sum_ long")).first().asDict()
    expected = {"_rows_": 7, "w_start": row[1], "w_end": row[2], "v": 4.5, "v_sum": 9}
    assert made == expected
    again = counted.agg(F.avg("value").alias("v"), F.sum("value").alias("v"))
    make, rows = again._flow.stages[-1].operator.shown(None).make, f"{stored}, v long"
    with pytest.raises(holdfast.InvalidArgument, match=r"alias\(\)"):
        make(spark.createDataFrame([row], rows))


def _stored_names(frame: Any) -> list[str]:
    return [name for merge in frame._flow.stages[-1].operator.merges for name in merge.columns]


@pytest.mark.parametrize("name", CASES)
def test_every_batch_gives_what_spark_gives(
    native_runs: NativeRuns, tmp_path: Path, name: str
) -> None:
    pipeline, mode = CASES[name]
    check_like_spark(native_runs, tmp_path, name, pipeline, mode)


def test_a_restarted_query_continues_as_sparks_does(
    spark: SparkSession, native_runs: NativeRuns, tmp_path: Path
) -> None:
    pipeline, mode = CASES["append by tumbling windows"]
    write_batches(tmp_path / "all", seed=5, batches=3)
    for number in range(3):
        name = f"{number:03d}.parquet"
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes((tmp_path / "all" / name).read_bytes())
        native = native_runs.run(tmp_path / "in", tmp_path / "a", pipeline, mode)
        assert run(spark, tmp_path / "in", tmp_path / "b", pipeline, mode, native=False) == native
    assert native


def test_files_are_written_once_and_named_by_version(
    spark: SparkSession, native_runs: NativeRuns, tmp_path: Path
) -> None:
    pipeline, _ = CASES["append by tumbling windows"]
    write_batches(tmp_path / "in", seed=8)
    expected = native_runs.run(tmp_path / "in", tmp_path / "a", pipeline, "append")
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
    query = (
        pipeline(stateful(source.parquet(str(tmp_path / "in"))))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "b"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    found = sorted((tuple(map(normal, row)) for row in rows), key=repr)
    assert found == sorted((row for batch in expected for row in batch), key=repr)
    names = [path.name for path in (tmp_path / "out").glob("part-*.parquet")]
    assert names
    assert all(name.startswith("part-00000000") for name in names)


def test_the_state_can_be_read_at_any_version(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path / "in", seed=3)
    outputs = run(
        spark,
        tmp_path / "in",
        tmp_path / "cp",
        lambda f: f.groupBy("id").agg(F.count("*").alias("n")),
        "complete",
        native=False,
    )
    with holdfast.open(tmp_path / "cp" / "holdfast") as db:
        assert db.version == len(outputs)
        for version, rows in enumerate(outputs, start=1):
            table = db.at(version).scan()
            assert sorted(zip(*table.to_pydict().values(), strict=True), key=repr) == rows


def test_a_batch_brought_twice_is_recognised_by_its_offsets(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline, _ = CASES["update by one key"]
    write_batches(tmp_path / "in", seed=4, batches=2)
    first = run(spark, tmp_path / "in", tmp_path / "cp", pipeline, "update", native=False)
    for name in ("1", ".1.crc"):
        (tmp_path / "cp" / "commits" / name).unlink()
    again = run(spark, tmp_path / "in", tmp_path / "cp", pipeline, "update", native=False)
    assert again == first[-1:]
    with holdfast.open(tmp_path / "cp" / "holdfast") as db:
        assert db.version == 2


def test_other_offsets_behind_a_known_batch_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline, _ = CASES["update by one key"]
    write_batches(tmp_path / "in", seed=4, batches=2)
    run(spark, tmp_path / "in", tmp_path / "cp", pipeline, "update", native=False)
    for folder in ("commits", "offsets", "sources"):
        for path in sorted((tmp_path / "cp" / folder).rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
    with pytest.raises(Exception, match="do not belong together"):
        run(spark, tmp_path / "in", tmp_path / "cp", pipeline, "update", native=False)


def test_a_changed_query_is_refused_with_the_difference(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_batches(tmp_path / "in", seed=4, batches=1)
    run(
        spark,
        tmp_path / "in",
        tmp_path / "cp",
        lambda f: f.groupBy("id").count(),
        "update",
        native=False,
    )
    with pytest.raises(holdfast.InvalidArgument, match="keys was id, is v"):
        run(
            spark,
            tmp_path / "in",
            tmp_path / "cp",
            lambda f: f.groupBy("v").count(),
            "update",
            native=False,
        )


def test_an_overflow_fails_the_batch_and_commits_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.createDataFrame([(2**62,)], "v long").coalesce(1)
    for _ in range(2):
        rows.write.mode("append").parquet(str(tmp_path / "in"))
    source = spark.readStream.schema("v long").option("maxFilesPerTrigger", "1")
    query = (
        stateful(source.parquet(str(tmp_path / "in")))
        .agg(F.sum("v").alias("s"))
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match="ARITHMETIC_OVERFLOW"):
        query.awaitTermination()
    with holdfast.open(tmp_path / "cp" / "holdfast") as db:
        assert db.version == 1


def _rates(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


def test_what_cannot_work_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    rates = _rates(spark)
    with pytest.raises(holdfast.InvalidArgument, match="Deduplicate"):
        stateful(rates.dropDuplicates())
    with pytest.raises(holdfast.InvalidArgument, match=r"DataFrame\.limit"):
        stateful(rates).limit(3)
    with pytest.raises(holdfast.InvalidArgument, match="median"):
        stateful(rates).agg(F.median("value"))
    with pytest.raises(holdfast.InvalidArgument, match="DISTINCT"):
        stateful(rates).agg(F.count_distinct("value"))
    with pytest.raises(holdfast.InvalidArgument, match=r"^try_sum\(value\) .* use sum\(value\)"):
        stateful(rates).agg(F.try_sum("value"))
    with pytest.raises(holdfast.InvalidArgument, match=r"^try_avg\(value\) .* use avg\(value\)"):
        stateful(rates).agg(F.try_avg("value"))
    with pytest.raises(holdfast.InvalidArgument, match=r"Generate does more.* a select after it"):
        stateful(rates).agg(F.explode(F.collect_list("value")))
    with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
        stateful(rates).groupBy("nope").count()


def test_a_spark_that_lacks_what_is_called_is_named_with_its_version(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = "org.apache.spark.sql.classic.Dataset"
    for required, missing in [
        ({"org.apache.spark.Gone": ()}, "org.apache.spark.Gone"),
        ({dataset: ("toArrowBatchRdd", "toGoneRdd")}, f"{dataset}.toGoneRdd"),
    ]:
        monkeypatch.setattr(check, "_checked", set())
        monkeypatch.setattr(check, "_REQUIRED", required)
        with pytest.raises(holdfast.InvalidArgument) as refused:
            stateful(_rates(spark))
        assert f"Spark {spark.version} has no {missing}, which" in str(refused.value)


def test_sparks_rules_for_output_modes_hold_at_start(spark: SparkSession, tmp_path: Path) -> None:
    counted = stateful(_rates(spark)).groupBy("value").count()
    writer = counted.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(AnalysisException, match="STREAMING_OUTPUT_MODE"):
        writer.outputMode("append").start()
    plain = stateful(_rates(spark)).writeStream.format("noop")
    with pytest.raises(AnalysisException, match="STREAMING_OUTPUT_MODE"):
        plain.option("checkpointLocation", str(tmp_path)).outputMode("complete").start()
