"""The wrapper: what it passes on to Spark, what it refuses, and the types that come out."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from native import SCHEMA, check_input_like_spark, check_like_spark, write_batches
from native_recordings import NativeRuns
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from waiting import until

import holdfast
from holdfast import stateful

pytestmark = pytest.mark.spark
Pipeline = Callable[[Any], Any]


def _source(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").parquet(str(folder))


def _names(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("a", "Ann"), ("b", "Bob")], "id string, name string")


def _chosen(frame: Any) -> Any:
    """Functions that pick a row, over columns that make the pick certain."""
    stamped = frame.withColumn("at", F.unix_micros("ts") * 1000 + F.coalesce("v", F.lit(99)))
    return stamped.groupBy("id").agg(
        F.max_by("v", "at").alias("newest"),
        F.min_by(F.struct("v", "id"), "at").alias("oldest"),
        F.bit_and("v").alias("ba"),
        F.bit_or("v").alias("bo"),
        F.first(F.lit(7)).alias("f"),
        F.last(F.col("id"), ignorenulls=True).alias("l"),
        F.stddev_pop("x").alias("sp"),
        F.variance("v").alias("vs"),
    )


CASES: dict[str, tuple[Callable[[SparkSession, Any], Any], str]] = {
    "rows of functions that pick": (lambda _, f: _chosen(f), "update"),
    "a static table joined before": (
        lambda spark, f: f.join(_names(spark), "id").groupBy("name").count(), "update",
    ),
    "a static table joined after": (
        lambda spark, f: f.groupBy("id").count().join(_names(spark), "id", "left"), "update",
    ),
    "everything between": (
        lambda _, f: f.selectExpr("id", "v * 2 AS twice", "ts").alias("t")
        .withColumns({"k": F.lower("id"), "n": F.lit(1)}).withColumnRenamed("twice", "w")
        .where("w <> 4").transform(lambda g: g.drop("n"))
        .groupby(["k"]).sum("w").withColumnRenamed("sum(w)", "s").selectExpr("k", "s + 1 AS t"),
        "update",
    ),
    "shorthands": (lambda _, f: f.groupBy("id").max("v", "x"), "update"),
    "a dict of functions": (lambda _, f: f.groupBy("id").agg({"v": "sum", "*": "count"}), "update"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_batch_gives_what_spark_gives(
    spark: SparkSession, native_runs: NativeRuns, tmp_path: Path, name: str
) -> None:
    pipeline, mode = CASES[name]
    check_like_spark(native_runs, tmp_path, name, lambda f: pipeline(spark, f), mode)


def _people(spark: SparkSession) -> DataFrame:
    rows = [("a", "Ann", 1), ("b", "Bob", 2)]
    return spark.createDataFrame(rows, "k string, id string, v long")


def _wrapped(f: Any, people: DataFrame) -> Any:
    """A static table that is wrapped, too, and aggregated as such."""
    other: Any = people if isinstance(f, DataFrame) else stateful(people)
    oldest = other.groupBy("k").agg(F.max("v").alias("age"))
    counted = f.join(other.select("k", "id"), f.id == other.k).groupBy(other.k).count()
    return counted.join(oldest, "k", "left")


def _joined(f: Any, trades: DataFrame, people: DataFrame) -> Any:
    """Two columns of one name, told apart by where they come from."""
    joined = f.join(people, trades.id == people.k)
    return joined.groupBy(people.id, people.k).agg(F.sum(trades.v), F.max(people.v))


def _qualified(f: Any, people: DataFrame) -> Any:
    joined = f.alias("t").join(people.alias("p"), F.expr("t.id = p.k"))
    return joined.groupBy("t.id", F.upper("p.id")).agg(F.sum("t.v"), F.max("p.v"))


def _used_later(f: Any, trades: DataFrame, people: DataFrame) -> Any:
    counted = f.groupBy(trades.id).agg(F.sum(trades.v).alias("s")).filter(trades.id != "c")
    named = counted.alias("c").withColumn("twice", F.col("c.s") * 2)
    return named.join(people, trades.id == people.k).select(
        trades.id, people.id.alias("p"), "twice"
    )


TAKEN: dict[str, tuple[Callable[[Any, DataFrame, DataFrame], Any], str]] = {
    "tumbling windows": (
        lambda f, t, _: f.groupBy(F.upper(t.id), F.window(t["ts"], "5 minutes")).agg(F.sum("v")),
        "update",
    ),
    "sliding windows": (
        lambda f, t, _: f.groupBy(t.id, F.window(t.ts, "6 minutes", "2 minutes")).agg(F.sum(t.v)),
        "update",
    ),
    "sessions": (
        lambda f, t, _: f.groupBy(t.id, F.session_window(t.ts, "1 minute")).agg(F.sum(t.v)),
        "complete",
    ),
    "a static table": (_joined, "update"),
    "a static table that is wrapped": (lambda f, _, people: _wrapped(f, people), "update"),
    "names with an alias": (lambda f, _, people: _qualified(f, people), "update"),
    "after the operator": (_used_later, "update"),
    "an operator after another": (
        lambda f, t, _: f.select("id", "v").dropDuplicates().groupBy(t.id).agg(F.sum(t.v)),
        "update",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_columns_taken_from_dataframes_are_what_they_are_to_spark(
    spark: SparkSession, native_runs: NativeRuns, tmp_path: Path, name: str
) -> None:
    build, mode = TAKEN[name]
    write_batches(tmp_path / "in", seed=5, batches=2)
    people = _people(spark)

    def pipeline(frame: Any) -> Any:
        return build(frame, frame if isinstance(frame, DataFrame) else frame._native, people)

    check_input_like_spark(native_runs, tmp_path, pipeline, mode)


def test_how_a_column_is_named_does_not_change_what_the_state_was_made_by(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = _source(spark, tmp_path)
    window = F.window("ts", "5 minutes")
    by_name = stateful(source).groupBy("id", window).count()
    taken = stateful(source).groupBy(source.id, F.window(source.ts, "5 minutes")).count()
    definition = by_name._flow.stages[0].operator.definition()
    assert definition["keys"] == "id, window(ts, '5 minutes', '5 minutes', '0 second')"
    assert taken._flow.stages[0].operator.definition() == definition


def test_a_batch_can_be_joined_with_a_table_of_the_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_batches(tmp_path / "in", seed=5, batches=1)
    people = _people(spark)
    seen: list[tuple[Any, ...]] = []

    def keep(batch: DataFrame, version: int) -> None:
        seen.extend(map(tuple, batch.join(people, batch.k == people.k).select("id").collect()))

    frame = stateful(_source(spark, tmp_path / "in")).join(people.select("k"), F.expr("id = k"))
    writer = frame.groupBy(people.k).count().writeStream.outputMode("update").foreachBatch(keep)
    started = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True)
    started.start().awaitTermination()
    assert sorted(seen) == [("Ann",), ("Bob",)]


def test_columns_are_taken_from_the_wrapper_as_from_a_dataframe(
    native_runs: NativeRuns, tmp_path: Path
) -> None:
    def pipeline(frame: Any) -> Any:
        totals = frame[frame.v > -40].groupBy(frame.id, frame["x"] > 0.5).agg(F.sum(frame[1]))
        renamed = totals.withColumnRenamed("sum(v)", "total")
        return renamed[renamed.total > 0][["total", renamed["id"]]]

    write_batches(tmp_path / "in", seed=6, batches=2)
    check_input_like_spark(native_runs, tmp_path, pipeline, "update")


def test_columns_are_grouped_by_place(spark: SparkSession, tmp_path: Path) -> None:
    source = _source(spark, tmp_path)
    by_place = stateful(source).groupBy(1, 2).count()
    assert by_place.schema == source.groupBy(1, 2).count().schema
    by_name = stateful(source).groupBy("id", "v").count()
    operators = [frame._flow.stages[0].operator for frame in (by_place, by_name)]
    assert operators[0].definition() == operators[1].definition()


def test_an_option_of_none_is_not_set(spark: SparkSession, tmp_path: Path) -> None:
    writer = stateful(_source(spark, tmp_path)).groupBy("id").count().writeStream
    writer.options(view=None, path="here").option("path", None).option("header", True)
    assert writer._options == {"header": "true"}


def test_what_the_wrapper_lacks_it_says_it_lacks(spark: SparkSession, tmp_path: Path) -> None:
    frame = stateful(_source(spark, tmp_path))
    assert not hasattr(frame, "count")
    assert not hasattr(frame, "no_such_column")
    with pytest.raises(AttributeError, match=r"DataFrame\.limit is not part"):
        frame.limit(3)


def test_the_output_has_the_types_spark_gives(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path / "in", seed=1, batches=1)
    seen: list[Any] = []

    def typed(frame: Any) -> Any:
        return frame.groupBy("id", F.window("ts", "5 minutes")).agg(
            F.sum("v"),
            F.avg("v"),
            F.sum("d"),
            F.avg("d"),
            F.collect_set("x"),
            F.count("*"),
            F.max_by("d", "v"),
            F.approx_count_distinct("v"),
            F.stddev("v"),
            F.min("ts"),
        )

    source = _source(spark, tmp_path / "in")
    ours, native = typed(stateful(source)), typed(source)
    assert ours.schema == native.schema
    assert ours.columns == native.columns
    assert ours.isStreaming
    query = (
        ours.writeStream.outputMode("update")
        .foreachBatch(lambda batch, batch_id: seen.append((batch.schema, batch_id)))
        .option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    (schema, batch_id), *_ = seen
    assert [(f.name, f.dataType.simpleString()) for f in schema] == [
        (f.name, f.dataType.simpleString()) for f in native.schema
    ]
    assert batch_id == 0


def test_a_stream_without_an_operator_is_sparks_own(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path / "in", seed=1, batches=2)
    query = (
        stateful(_source(spark, tmp_path / "in"))
        .filter("v > 0")
        .select("id", "v")
        .writeStream.format("memory")
        .queryName("plain_rows")
        .option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    expected = spark.read.parquet(str(tmp_path / "in")).filter("v > 0").count()
    assert spark.table("plain_rows").count() == expected
    assert not (tmp_path / "cp" / "holdfast").exists()


# Real frames of Spark Connect, which asks its server for nothing before it has to. There is none,
# and at its end the session would look for it for minutes.
CONNECTED = """
import os, sys
from pyspark.sql.connect.session import SparkSession
from holdfast import InvalidArgument, stateful

stream = SparkSession("sc://127.0.0.1:1").readStream.format("rate").load()
for frame in (stream, stream.withWatermark("timestamp", "1 minute"), stream.groupBy("value")):
    try:
        stateful(frame)
    except InvalidArgument as error:
        print(type(frame).__module__, error)
sys.stdout.flush()
os._exit(0)
"""


def test_frames_of_spark_connect_are_refused_with_what_to_do() -> None:
    done = subprocess.run([sys.executable, "-c", CONNECTED], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr[-3000:]
    for line in lines:
        assert re.search(r"^pyspark\.sql\.connect\..*from Spark Connect.*a master such as", line)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda f: stateful(f.groupBy("id")), "is no DataFrame"),
        (lambda f: stateful(f.groupBy("id").count()), "already has a stateful operator"),
        (
            lambda f: stateful(f.selectExpr("id COLLATE UNICODE_CI AS k")).groupBy("k").count(),
            "collat",
        ),
        (lambda f: stateful(f).limit(3), "DataFrame.limit is not part"),
        (lambda f: stateful(f).cache(), "DataFrame.cache is not part"),
        (lambda f: stateful(f).join(f, "id"), "static DataFrame only"),
        (lambda f: stateful(f).join(stateful(f), "id"), "static DataFrame only"),
        (lambda f: stateful(f).join("names", "id"), "join takes a static DataFrame, not str"),  # type: ignore[arg-type]
        (lambda f: stateful(f).union(f), "Wrap it with stateful"),
        (lambda f: stateful(f).groupBy(0), "places from 1 to 5, not 0"),
        (lambda f: stateful(f).groupBy("id", 6), "places from 1 to 5, not 6"),
        (lambda f: stateful(f).groupBy("id").pivot("v"), "GroupedData.pivot .* foreachBatch"),
        (lambda f: stateful(f).groupBy("id").applyInPandas(len, "n long"), "applyInPandas"),
        (lambda f: stateful(f).groupBy("id").agg(F.max(F.struct("ts", "v"))), "max_by"),
        (lambda f: stateful(f).transform(lambda g: 3), "It must return the wrapper"),
    ],
)
def test_what_cannot_work_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, build: Pipeline, message: str
) -> None:
    with pytest.raises(holdfast.InvalidArgument, match=message):
        build(_source(spark, tmp_path))


def test_a_query_that_is_stopped_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    totals: dict[Any, int] = {}
    delivered: set[int] = set()

    def keep(batch: DataFrame, version: int) -> None:
        delivered.add(version)
        totals.update((row.id, row["count"]) for row in batch.collect())

    def start() -> Any:
        frame = stateful(_source(spark, tmp_path / "in")).groupBy("id").count()
        writer = frame.writeStream.outputMode("update").foreachBatch(keep)
        return writer.option("checkpointLocation", str(tmp_path / "cp")).start()

    for number in (1, 2, 3):
        # Two files for each run: the runs before it may have read all that was there.
        write_batches(tmp_path / "in", seed=2, batches=2 * number)
        query = start()
        until(lambda query=query: query.lastProgress is not None or not query.isActive)
        query.stop()
        assert query.exception() is None
    query = start()
    query.processAllAvailable()
    query.stop()
    rows = spark.read.parquet(str(tmp_path / "in")).groupBy("id").count().collect()
    assert totals == {row.id: row["count"] for row in rows}
    # Six files are six versions at most: a stop that comes after Spark has listed a file and
    # before it has planned the batch leaves that file to the next run, with the one after it.
    assert delivered == set(range(query.version))
    assert query.version <= 6
