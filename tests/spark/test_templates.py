"""A template gives what its function gives, for every version's rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.spark.pipeline.templates import Template

pytestmark = pytest.mark.spark

SCHEMA = "k string, v long"
ROWS = [[("a", 1), ("b", 2), ("a", None)], [("c", 5)], []]
MAKES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "grouped": lambda f: f.groupBy("k").agg(F.sum("v").alias("s")).withColumn("t", F.col("s") + 1),
    "to itself": lambda f: f.alias("l").join(f.alias("r"), F.col("l.k") == F.col("r.k")),
    "twice": lambda f: f.union(f.filter("v > 1")),
    "to a table": lambda f: f.join(f.sparkSession.range(6), F.col("v") == F.col("id"), "left"),
    "ordered": lambda f: f.orderBy(F.desc("v")).limit(2),
    "as is": lambda f: f,
}


def _rows(frame: DataFrame) -> list[str]:
    return sorted(map(str, frame.collect()))


@pytest.mark.parametrize("name", MAKES)
def test_a_filled_template_has_the_rows_of_its_function(spark: SparkSession, name: str) -> None:
    make = MAKES[name]
    template = Template(
        spark, [spark.createDataFrame([], SCHEMA).schema], lambda rows: make(rows[0])
    )
    assert template._fill is not None
    for rows in ROWS:
        frame = spark.createDataFrame(rows, SCHEMA)
        filled = template.fill(frame)
        assert _rows(filled) == _rows(make(frame))
        assert filled.schema == template.made.schema


def test_a_subquery_over_the_rows_is_asked_anew(spark: SparkSession) -> None:
    def above_mean(rows: Sequence[DataFrame]) -> DataFrame:
        frame = rows[0]
        return frame.where(F.col("v") > frame.select(F.avg("v")).scalar())

    template = Template(spark, [spark.createDataFrame([], SCHEMA).schema], above_mean)
    frame = spark.createDataFrame([("a", 1), ("b", 4)], SCHEMA)
    assert template._fill is None
    assert [row.k for row in template.fill(frame).collect()] == ["b"]


def test_random_values_are_those_of_each_version(spark: SparkSession) -> None:
    schema = spark.createDataFrame([], SCHEMA).schema
    template = Template(spark, [schema], lambda rows: rows[0].selectExpr("*", "uuid() AS id"))
    frame = spark.createDataFrame([("a", 1)], SCHEMA)
    first, second = (template.fill(frame).collect()[0].id for _ in range(2))
    assert first != second


def test_a_template_leaves_the_active_session_alone(spark: SparkSession) -> None:
    other = spark.newSession()
    spark.createDataFrame([("a", 1)], SCHEMA)
    template = Template(
        other, [spark.createDataFrame([], SCHEMA).schema], lambda rows: MAKES["grouped"](rows[0])
    )
    template.fill(spark.createDataFrame([("a", 1)], SCHEMA))
    active = SparkSession.getActiveSession()
    assert active is not None
    assert active._jsparkSession.equals(spark._jsparkSession)


def test_the_current_time_is_that_of_each_version(spark: SparkSession) -> None:
    schema = spark.createDataFrame([], SCHEMA).schema
    template = Template(
        spark, [schema], lambda rows: rows[0].withColumn("now", F.current_timestamp())
    )
    frame = spark.createDataFrame([("a", 1)], SCHEMA)
    first, second = (template.fill(frame).collect()[0].now for _ in range(2))
    assert first < second
