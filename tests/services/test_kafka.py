"""The kit's Kafka is a real one: Spark writes and reads it, and a crash loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from processes import is_alive
from servers import Kafka, ServerError

pytestmark = pytest.mark.services


def produce(spark: SparkSession, broker: Kafka, topic: str, *values: str) -> None:
    rows = spark.createDataFrame([(value,) for value in values], "value string").coalesce(1)
    writer = rows.write.format("kafka").option("kafka.bootstrap.servers", broker.address)
    writer.option("topic", topic).save()


def consume(spark: SparkSession, broker: Kafka, topic: str) -> list[tuple[int, str]]:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.address)
    rows = reader.option("subscribe", topic).load()
    found = rows.selectExpr("offset", "cast(value as string)").collect()
    return sorted(map(tuple, found))


def test_what_spark_produces_spark_consumes(spark: SparkSession, kafka: Kafka) -> None:
    kafka.create_topic("round-trip")
    produce(spark, kafka, "round-trip", "one", "two")
    produce(spark, kafka, "round-trip", "three")
    assert consume(spark, kafka, "round-trip") == [(0, "one"), (1, "two"), (2, "three")]


def test_a_topic_has_the_partitions_it_was_made_with(kafka: Kafka) -> None:
    kafka.create_topic("wide", partitions=3)
    assert kafka.topics()["wide"] == 3
    with pytest.raises(ServerError, match="did not create the topic wide"):
        kafka.create_topic("wide")


def test_a_killed_broker_comes_back_with_its_data_and_stops_for_good(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Kafka(tmp_path) as broker:
        address, first = broker.address, broker.pid
        broker.create_topic("kept")
        produce(spark, broker, "kept", "before")
        broker.kill()
        assert broker.pid is None
        with pytest.raises(OSError, match="refused"):
            broker.topics()
        broker.start()
        assert broker.address == address
        assert broker.pid != first
        produce(spark, broker, "kept", "after")
        assert consume(spark, broker, "kept") == [(0, "before"), (1, "after")]
        broker.restart()
        assert consume(spark, broker, "kept") == [(0, "before"), (1, "after")]
        last = broker.pid
    assert first is not None
    assert last is not None
    assert not is_alive(first)
    assert not is_alive(last)


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with Kafka(tmp_path) as broker:
        broker.stop()
        known = tmp_path / "data" / "meta.properties"
        known.write_text(known.read_text().replace("node.id=1", "node.id=7"))
        with pytest.raises(ServerError, match=r"(?s)kafka ended with exit code 1\..*node ?id 7"):
            broker.start()
        assert broker.pid is None
