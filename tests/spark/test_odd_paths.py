"""Paths mean what they mean to Spark, whatever characters they have: nothing is written beside."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import stateful
from holdfast.errors import IllegalState
from holdfast.spark.interop import hadoop

pytestmark = pytest.mark.spark
ODD = "a b 100% %20 %2F #1 [x]{y} \u00e9\u4e2d+&="
"""A folder's name with what a URI or a pattern takes for something else."""
SCHEMA = "k string, v long, ts timestamp"


def write_input(spark: SparkSession, folder: Path, first: int) -> None:
    frame = spark.range(first, first + 10, 1, 1).selectExpr(
        f"if(id % 2 = 0, 'a', '{ODD}/b') AS k",
        "id AS v",
        "timestamp_seconds(1700000000 + id) AS ts",
    )
    frame.write.mode("append").parquet(str(folder))


def windows(spark: SparkSession, folder: Path) -> Any:
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").parquet(str(folder))
    marked = stateful(rows).withWatermark("ts", "0 seconds")
    grouped = marked.groupBy(F.window("ts", "2 seconds"), "k")
    return grouped.agg(F.sum("v").alias("s")).select("k", "s")


def pairs(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((row.k, row.s) for row in frame.select("k", "s").collect())


def closed(upto: int) -> list[tuple[str, int]]:
    return sorted((f"{ODD}/b" if v % 2 else "a", v) for v in range(upto - 2))


@pytest.mark.parametrize("is_managed", [True, False])
@pytest.mark.parametrize("partition_by", [[], ["k"]])
def test_a_table_at_an_odd_location_gets_every_row(
    spark: SparkSession, tmp_path: Path, is_managed: bool, partition_by: list[str]
) -> None:
    # Spark itself makes no table without partitions where the path looks like a pattern.
    name = ODD if partition_by else ODD.replace("[x]{y}", "")
    place, database = tmp_path / name, f"d{uuid.uuid4().hex}"
    where = {} if is_managed else {"path": str(place / "table")}
    spark.sql(f"CREATE DATABASE {database} LOCATION '{place / 'db'}'")
    try:
        for upto in (10, 20):
            write_input(spark, tmp_path / "in", upto - 10)
            writer = windows(spark, tmp_path / "in").writeStream.trigger(availableNow=True)
            writer = writer.option("checkpointLocation", place / "cp")
            query = writer.toTable(f"{database}.t", partitionBy=partition_by or None, **where)
            query.awaitTermination()
            assert pairs(spark.table(f"{database}.t")) == closed(upto)
    finally:
        spark.sql(f"DROP DATABASE {database} CASCADE")
    assert [path.name for path in tmp_path.iterdir() if path.name != "in"] == [name]


def test_files_and_a_checkpoint_at_odd_places_get_every_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = tmp_path / ODD
    for upto in (10, 20):
        write_input(spark, tmp_path / "in", upto - 10)
        stream = windows(spark, tmp_path / "in").writeStream.trigger(availableNow=True)
        stream = stream.partitionBy("k").option("checkpointLocation", f"file://{place}/cp")
        # As a URI or as a path, it is the same place.
        out = f"file://{place}/out" if upto == 10 else str(place / "out")
        stream.option("stateLocation", f"file:{place}/state").start(out).awaitTermination()
    for plain in "\\[]{}?*":
        out = out.replace(plain, f"\\{plain}")
    assert pairs(spark.read.parquet(out)) == closed(20)
    assert sorted(path.name for path in place.iterdir()) == ["cp", "out", "state"]
    assert [path.name for path in tmp_path.iterdir() if path.name != "in"] == [ODD]
    assert not (place / "cp" / "holdfast").exists()
    for root in (place / "state", f"file:{place}/state"):
        assert holdfast.read(root).version == 4


def test_a_file_that_is_not_below_its_folder_is_an_error() -> None:
    assert hadoop.below("s3a://bucket/a b", "s3a://bucket/a b/k=1/part") == "k=1/part"
    for folder in ("s3a://bucket/a%20b", "s3a://bucket/a b/k"):
        with pytest.raises(IllegalState, match="is not below"):
            hadoop.below(folder, "s3a://bucket/a b/k=1/part")
