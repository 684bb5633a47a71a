"""What a refusal advises works: nobody is sent in a circle."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import holdfast
from holdfast import stateful
from holdfast.spark.frame import StatefulDataFrame
from holdfast.spark.refusals import WITHOUT_STATE

pytestmark = pytest.mark.spark
SCHEMA = "k string, v long, ts timestamp"


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files: of each key a row in each, the values 0 to 5, a minute apart."""
    found = tmp_path_factory.mktemp("in")
    for first in (0, 3):
        rows = spark.range(first, first + 3, 1, 1).selectExpr(
            "concat('k', id % 3) AS k", "id AS v", "timestamp_seconds(1700000000 + id * 60) AS ts"
        )
        rows.coalesce(1).write.mode("append").parquet(str(found))
    return found


def source(spark: SparkSession, folder: Path, schema: str = SCHEMA) -> DataFrame:
    return spark.readStream.schema(schema).parquet(str(folder))


def result(
    frame: Any, mode: str = "update", then: Callable[[DataFrame], DataFrame] = lambda rows: rows
) -> list[tuple[Any, ...]]:
    """What a query delivers until it has read everything, each batch as `then` has it."""
    rows: list[tuple[Any, ...]] = []
    writer = frame.writeStream.outputMode(mode).trigger(availableNow=True)
    query = writer.foreachBatch(
        lambda batch, _: rows.extend(tuple(row) for row in then(batch).collect())
    ).start()
    query.awaitTermination()
    return sorted(rows, key=repr)


def public(owner: type) -> set[str]:
    return {name for name in dir(owner) if not name.startswith("_")}


# -- methods of DataFrame ----------------------------------------------------------------------

Call = Callable[[Any], Any]
LACKING = sorted(public(DataFrame) - public(StatefulDataFrame))
SEVERAL_SETS = {"cube", "groupingSets", "rollup"}
NEEDS_MORE = {
    **dict.fromkeys(("approxQuantile", "crosstab", "describe", "freqItems", "summary"), "time"),
    "transpose": "time",
    "checkpoint": "a folder of the application",
    "executionInfo": "Spark Connect",
    "metadataColumn": "a source with metadata",
    "nearestByJoin": "another DataFrame with names of its own",
    "plot": "plotly",
    "registerTempTable": "a reader who minds no warning",
    "toJSON": "a reader who minds no warning",
}
"""Methods that are not called here, and what they need."""


def arrow_rows(batches: Any) -> Any:
    yield from batches


CALLS: dict[str, Call] = {
    "coalesce": lambda f: f.coalesce(1),
    "colRegex": lambda f: f.select(f.colRegex("`k.*`"), "v"),
    "corr": lambda f: f.corr("v", "v"),
    "cov": lambda f: f.cov("v", "v"),
    "createGlobalTempView": lambda f: f.createGlobalTempView(f"g{uuid.uuid4().hex}"),
    "createOrReplaceGlobalTempView": lambda f: f.createOrReplaceGlobalTempView("refusals"),
    "createOrReplaceTempView": lambda f: f.createOrReplaceTempView("refusals"),
    "createTempView": lambda f: f.createTempView(f"t{uuid.uuid4().hex}"),
    "crossJoin": lambda f: f.crossJoin(f.sparkSession.range(1)),
    "exceptAll": lambda f: f.exceptAll(f),
    "fillna": lambda f: f.fillna(0),
    "foreach": lambda f: f.foreach(lambda row: None),
    "foreachPartition": lambda f: f.foreachPartition(lambda rows: None),
    "hint": lambda f: f.hint("broadcast"),
    "intersect": lambda f: f.intersect(f),
    "intersectAll": lambda f: f.intersectAll(f),
    "lateralJoin": lambda f: f.lateralJoin(f.sparkSession.range(1)),
    "limit": lambda f: f.limit(1),
    "mapInArrow": lambda f: f.mapInArrow(arrow_rows, f.schema),
    "mapInPandas": lambda f: f.mapInPandas(arrow_rows, f.schema),
    "melt": lambda f: f.melt(["k"], ["v"], "name", "v"),
    "mergeInto": lambda f: f.mergeInto("nowhere", F.lit(True)),
    "na": lambda f: f.na.fill(0),
    "observe": lambda f: f.observe(f"seen{uuid.uuid4().hex}", F.count(F.lit(1)).alias("n")),
    "offset": lambda f: f.offset(1),
    "randomSplit": lambda f: f.randomSplit([0.5, 0.5]),
    "repartition": lambda f: f.repartition(2),
    "repartitionById": lambda f: f.repartitionById(2, F.lit(1)),
    "repartitionByRange": lambda f: f.repartitionByRange(2, "v"),
    "replace": lambda f: f.replace(0, 1),
    "sameSemantics": lambda f: f.sameSemantics(f),
    "sample": lambda f: f.sample(0.5),
    "sampleBy": lambda f: f.sampleBy("k", {"k0": 1.0}),
    "sortWithinPartitions": lambda f: f.sortWithinPartitions("v"),
    "subtract": lambda f: f.subtract(f),
    "tail": lambda f: f.tail(1),
    "take": lambda f: f.take(1),
    "to": lambda f: f.to(StructType.fromDDL("k string, v long")),
    "toDF": lambda f: f.toDF(*f.columns),
    "unpivot": lambda f: f.unpivot(["k"], ["v"], "name", "v"),
    "withColumnsRenamed": lambda f: f.withColumnsRenamed({"nowhere": "there"}),
    "withMetadata": lambda f: f.withMetadata("v", {"unit": "m"}),
    "writeTo": lambda f: f.writeTo("nowhere"),
    "zip": lambda f: f.zip(f),
}
"""How a method is called that needs arguments, or gives what has to be called."""


def call(frame: Any, name: str) -> Any:
    known = CALLS.get(name)
    if known is not None:
        return known(frame)
    found = getattr(frame, name)
    return found() if callable(found) else found


def test_methods_without_state_are_called_before_stateful(
    spark: SparkSession, folder: Path
) -> None:
    names = sorted(WITHOUT_STATE & set(LACKING) - set(NEEDS_MORE))
    assert len(names) >= 20
    for name in names:
        frame = source(spark, folder)
        with pytest.raises(holdfast.InvalidArgument, match=rf"{name} is .* before stateful\(\)"):
            getattr(stateful(frame), name)
        found = call(frame, name)
        counted = stateful(found if isinstance(found, DataFrame) else frame).groupBy("k").count()
        assert counted.columns == ["k", "count"]


def test_other_methods_are_called_on_the_batch_in_foreach_batch(
    spark: SparkSession, folder: Path
) -> None:
    known = {*WITHOUT_STATE, *SEVERAL_SETS, *NEEDS_MORE}
    names = [name for name in LACKING if name not in known]
    failed: dict[str, BaseException] = {}

    def use(batch: DataFrame, _: int) -> None:
        for name in names:
            try:
                call(batch, name)
            except Exception as error:
                failed[name] = error

    frame = stateful(source(spark, folder))
    for name in names:
        with pytest.raises(holdfast.InvalidArgument, match=f"{name} is .* inside foreachBatch"):
            getattr(frame, name)
    counted = frame.groupBy("k").agg(F.max("v").alias("v")).writeStream.outputMode("update")
    counted.trigger(availableNow=True).foreachBatch(use).start().awaitTermination()
    assert failed == {}


def test_groups_of_several_sets_are_united(spark: SparkSession, folder: Path) -> None:
    frame = stateful(source(spark, folder)).withWatermark("ts", "1 second")
    for name in sorted(SEVERAL_SETS & set(LACKING)):
        with pytest.raises(holdfast.InvalidArgument, match="groupBy for each set"):
            getattr(frame, name)
    window = F.window("ts", "1 minute")
    by_key = frame.groupBy("k", window).count().select("k", "count")
    of_all = frame.groupBy(window).count().select("count")
    rows = result(by_key.unionByName(of_all, allowMissingColumns=True), mode="append")
    assert len(rows) == 10
    assert rows.count((None, 1)) == 5


def test_a_limit_is_one_of_each_batch(spark: SparkSession, folder: Path) -> None:
    with pytest.raises(holdfast.InvalidArgument, match="limit the rows of each batch inside fore"):
        stateful(source(spark, folder).limit(1))
    frame = stateful(source(spark, folder)).groupBy("k").count()
    with pytest.raises(holdfast.InvalidArgument, match="limit the rows of each batch inside fore"):
        frame.limit(1)
    assert len(result(frame, then=lambda rows: rows.limit(1))) == 1


def test_distinct_comes_after_stateful(spark: SparkSession, folder: Path) -> None:
    frame = source(spark, folder).select("k")
    with pytest.raises(holdfast.InvalidArgument, match="the operator on the result"):
        stateful(frame.distinct())
    assert result(stateful(frame).distinct(), "append") == [("k0",), ("k1",), ("k2",)]


def test_two_streams_are_joined_by_a_query_of_sparks(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    left = source(spark, folder)
    right = source(spark, folder).selectExpr("v", "k AS other")
    joined = left.join(right, "v")
    for refused in (
        lambda: stateful(joined),
        lambda: stateful(left).join(right, "v"),
        lambda: stateful(left).join(stateful(right), "v"),
        lambda: stateful(left).groupBy("v").count().join(right, "v"),
    ):
        with pytest.raises(holdfast.InvalidArgument, match="does not join two streams yet") as told:
            refused()
        assert "files or a Kafka topic, and wrap" in str(told.value)
    writer = joined.writeStream.option("checkpointLocation", str(tmp_path / "cp"))
    writer.trigger(availableNow=True).start(str(tmp_path / "joined")).awaitTermination()
    schema = "v long, k string, ts timestamp, other string"
    read = source(spark, tmp_path / "joined", schema)
    assert result(stateful(read).groupBy("other").count()) == [("k0", 2), ("k1", 2), ("k2", 2)]


# -- aggregates --------------------------------------------------------------------------------

MEDIAN = "element_at(array_sort({}), cast(ceil(size({}) / 2) AS int))"
AGGREGATES: dict[str, tuple[str, str, str, list[tuple[Any, ...]]]] = {
    "percentile_approx(v, 0.5)": (
        "collect_list", "collect_list(v)", MEDIAN, [("k0", 0), ("k1", 1), ("k2", 2)],
    ),
    "count(DISTINCT v)": (
        "collect_set", "collect_set(v)", "size({})", [("k0", 2), ("k1", 2), ("k2", 2)],
    ),
    "try_sum(v)": (r"use sum\(", "sum(v)", "{}", [("k0", 3), ("k1", 5), ("k2", 7)]),
    "max(struct(ts, v))": (
        "max_by", "max_by(v, ts)", "{}", [("k0", 3), ("k1", 4), ("k2", 5)],
    ),
}  # fmt: skip
"""What is refused, what the refusal advises, and a way to follow it."""


def test_refused_aggregates_are_made_of_others(spark: SparkSession, folder: Path) -> None:
    grouped = stateful(source(spark, folder)).groupBy("k")
    for refused, (advice, *_) in AGGREGATES.items():
        with pytest.raises(holdfast.InvalidArgument, match=advice):
            grouped.agg(F.expr(refused))
    instead = [
        F.expr(aggregate).alias(f"c{number}")
        for number, (_, aggregate, _, _) in enumerate(AGGREGATES.values())
    ]
    finish = [
        f"{finish.replace('{}', f'c{number}')} AS c{number}"
        for number, (_, _, finish, _) in enumerate(AGGREGATES.values())
    ]
    rows = result(grouped.agg(*instead).selectExpr("k", *finish))
    for number, (_, _, _, expected) in enumerate(AGGREGATES.values(), 1):
        assert [(row[0], row[number]) for row in rows] == expected


def test_a_generator_stands_in_a_select_after_the_aggregation(
    spark: SparkSession, folder: Path
) -> None:
    grouped = stateful(source(spark, folder)).groupBy("k")
    with pytest.raises(holdfast.InvalidArgument, match="in a select after it"):
        grouped.agg(F.explode(F.collect_list("v")))
    listed = grouped.agg(F.collect_list("v").alias("vs")).selectExpr("k", "explode(vs)")
    assert result(listed) == [
        ("k0", 0), ("k0", 3), ("k1", 1), ("k1", 4), ("k2", 2), ("k2", 5),
    ]  # fmt: skip


# -- groups, windows, unions, watermarks -------------------------------------------------------


def test_methods_of_groups_are_called_on_groups_of_the_batch(
    spark: SparkSession, folder: Path
) -> None:
    frame = stateful(source(spark, folder))
    for name in ("apply", "applyInArrow", "applyInPandas", "cogroup", "pivot"):
        with pytest.raises(holdfast.InvalidArgument, match="group the batch inside foreachBatch"):
            getattr(frame.groupBy("k"), name)
    rows = result(
        frame.groupBy("k", "v").count(), then=lambda rows: rows.groupBy("k").pivot("v").count()
    )
    assert [row[0] for row in rows] == ["k0", "k1", "k2"]


def test_a_session_is_grouped_by_a_constant(spark: SparkSession, folder: Path) -> None:
    frame = stateful(source(spark, folder)).withWatermark("ts", "1 second")
    session = F.session_window("ts", "90 seconds")
    with pytest.raises(holdfast.InvalidArgument, match="or by a constant"):
        frame.groupBy(session).count()
    grouped = frame.groupBy(session, F.lit("all").alias("all")).count()
    assert result(grouped.select("all", "count")) == [("all", 6)]


def test_a_union_takes_what_was_wrapped(spark: SparkSession, folder: Path) -> None:
    counted = stateful(source(spark, folder)).groupBy("k").count()
    rows = source(spark, folder).selectExpr("k", "v AS count")
    with pytest.raises(holdfast.InvalidArgument, match="Wrap it with stateful"):
        counted.union(rows)  # type: ignore[arg-type]
    with pytest.raises(holdfast.InvalidArgument, match=r"not str\.$"):
        counted.union("rows")  # type: ignore[arg-type]
    assert len(result(counted.union(stateful(rows)))) == 9


def test_a_second_watermark_is_left_out(spark: SparkSession, folder: Path) -> None:
    frame = stateful(source(spark, folder)).withWatermark("ts", "1 second")
    frame = frame.dropDuplicates(["k", "ts"])
    with pytest.raises(holdfast.InvalidArgument, match="Leave out the second withWatermark"):
        frame.withWatermark("ts", "1 second")
    assert len(result(frame.groupBy(F.window("ts", "1 minute")).count(), "append")) == 5
