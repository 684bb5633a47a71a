"""The Kafka sink writes a version's rows with Spark's columns and options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import stateful
from servers import Kafka

pytestmark = pytest.mark.services


def updates(spark: SparkSession, folder: Path) -> Any:
    """A count for each key and batch, as key and value."""
    for number in range(2):
        rows = spark.range(4).selectExpr(f"if(id < {number + 1}, 'a', 'b') AS k")
        rows.coalesce(1).write.mode("append").parquet(str(folder))
    source = spark.readStream.schema("k string").option("maxFilesPerTrigger", "1")
    counted = stateful(source.parquet(str(folder))).groupBy("k").count()
    return counted.select(F.col("k").alias("key"), F.col("count").cast("string").alias("value"))


def write(frame: Any, broker: Kafka, folder: Path, **options: str) -> None:
    writer = frame.writeStream.outputMode("update").format("kafka").options(**options)
    writer.option("kafka.bootstrap.servers", broker.address)
    writer.option("checkpointLocation", str(folder / "cp"))
    writer.trigger(availableNow=True).start().awaitTermination()


def topic(spark: SparkSession, broker: Kafka, name: str) -> DataFrame:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.address)
    rows = reader.option("subscribe", name).load()
    return rows.selectExpr("cast(key as string) AS key", "cast(value as string) AS value")


def test_every_update_reaches_the_topic(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    kafka.create_topic("totals")
    write(updates(spark, tmp_path / "in"), kafka, tmp_path, topic="totals")
    found = sorted(map(tuple, topic(spark, kafka, "totals").collect()))
    assert sorted(key for key, _ in found) == ["a", "a", "b", "b"]
    assert max(value for key, value in found if key == "a") == "3"
    assert max(value for key, value in found if key == "b") == "5"


def test_the_column_topic_chooses_the_topic(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    for name in ("to-a", "to-b"):
        kafka.create_topic(name)
    frame = updates(spark, tmp_path / "in").withColumn("topic", F.concat(F.lit("to-"), "key"))
    write(frame, kafka, tmp_path)
    assert {row.key for row in topic(spark, kafka, "to-a").collect()} == {"a"}
    assert {row.key for row in topic(spark, kafka, "to-b").collect()} == {"b"}


def test_what_kafka_cannot_take_is_refused_at_start(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    frame = updates(spark, tmp_path / "in")
    with pytest.raises(holdfast.InvalidArgument, match="needs a topic"):
        write(frame, kafka, tmp_path)
    with pytest.raises(holdfast.InvalidArgument, match="column value"):
        write(frame.select("key"), kafka, tmp_path, topic="totals")
    with pytest.raises(holdfast.InvalidArgument, match="column key"):
        write(frame.withColumn("key", F.lit(1)), kafka, tmp_path, topic="totals")
    writer = frame.writeStream.outputMode("update").format("kafka").option("topic", "totals")
    with pytest.raises(holdfast.InvalidArgument, match=r"kafka\.bootstrap\.servers"):
        writer.option("checkpointLocation", str(tmp_path / "cp")).start()
    assert not (tmp_path / "cp").exists()
