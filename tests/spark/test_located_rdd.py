"""Where tasks should go, and what workers tell the driver."""

from __future__ import annotations

import logging
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from floods import silent_connections
from pyspark import RDD, TaskContext
from pyspark.serializers import NoOpSerializer
from pyspark.sql import functions as F
from waiting import until

from holdfast import stateful
from holdfast.coordinator import StateStoreCoordinator, StateStoreCoordinatorRef
from holdfast.ids import StateStoreId, StateStoreProviderId
from holdfast.spark.interop import located_java
from holdfast.spark.running.query import StatefulQuery
from holdfast.spark.state.locality import Locality, StateStoreRDD, spread


def test_every_partition_stays_with_its_holder() -> None:
    assert spread(["a", "b", "b", "a"], ["a", "b"]) == ["a", "b", "b", "a"]


def test_partitions_of_nobody_are_dealt_out_evenly() -> None:
    assert spread([None] * 5, ["a", "b"]) == ["a", "b", "a", "b", "a"]


def test_partitions_of_a_lost_executor_go_to_those_that_hold_least() -> None:
    assert spread(["a", "gone", "b", "gone"], ["a", "b"]) == ["a", "a", "b", "b"]


def test_a_new_executor_gets_its_share_and_no_more_moves_than_that() -> None:
    assert spread(["a"] * 4, ["a", "new"]) == ["a", "a", "new", "new"]


def test_without_executors_partitions_are_offered_as_held() -> None:
    assert spread(["a", None], []) == ["a", None]


@pytest.mark.parametrize("seed", range(50))
def test_no_executor_gets_more_than_its_share_and_nothing_moves_without_need(seed: int) -> None:
    rnd = random.Random(seed)
    executors = [str(number) for number in range(rnd.randint(1, 6))]
    held = [rnd.choice([*executors, None, "gone"]) for _ in range(rnd.randint(1, 40))]
    placed = spread(held, executors)
    share = -(-len(held) // len(executors))
    loads = Counter(placed)
    assert set(placed) <= set(executors)
    assert max(loads.values()) <= share
    for was, now in zip(held, placed, strict=True):
        if was in executors and now != was:
            assert loads[was] == share, "it left because its holder was full"
    assert spread(placed, executors) == placed


# -- in a stream -------------------------------------------------------------------------------


def started(spark: Any, folder: Path) -> StatefulQuery:
    """Totals of 20 users, all rows of which are there."""
    (folder / "in").mkdir(exist_ok=True)
    table = pa.table({"user": [n % 20 for n in range(100)], "v": list(range(100))})
    pq.write_table(table, folder / "in" / "0.parquet")
    query = (
        stateful(spark.readStream.schema("user long, v long").parquet(str(folder / "in")))
        .groupBy("user")
        .agg(F.sum("v").alias("total"))
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(folder / "cp"))
        .start()
    )
    assert isinstance(query, StatefulQuery)
    return query


def totals(query: StatefulQuery) -> dict[int, int]:
    rows = query.state().scan().to_pylist()
    return {row["user"]: row["sum"] if "sum" in row else list(row.values())[1] for row in rows}


EXPECTED = {user: sum(range(user, 100, 20)) for user in range(20)}


@pytest.mark.spark
def test_the_coordinator_knows_a_running_querys_stores_and_forgets_a_stopped_ones(
    spark: Any, tmp_path: Path
) -> None:
    query = started(spark, tmp_path)
    query.processAllAvailable()
    rdd = query._run.loop._stages[0].rdd
    asked = [rdd.get_preferred_locations(partition) for partition in range(rdd.partitions)]
    assert asked == [["executor_localhost_driver"]] * rdd.partitions
    query.stop()
    assert [rdd.get_preferred_locations(p) for p in range(rdd.partitions)] == [[]] * rdd.partitions


@pytest.mark.spark
def test_workers_outlive_tasks_that_read_no_input(spark: Any, tmp_path: Path) -> None:
    query = started(spark, tmp_path)
    query.processAllAvailable()
    rdd = query._run.loop._stages[0].rdd

    def workers() -> set[int]:
        """Those that some jobs of one task, such as merges, ran in; they take turns."""
        return {rdd.run_one(0, lambda _: os.getpid()) for _ in range(8)}

    first = workers()
    later = workers()
    query.stop()
    assert later == first


@pytest.mark.spark
def test_a_stream_goes_on_when_workers_cannot_reach_the_coordinator(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = StateStoreCoordinator()
    gone.stop()
    monkeypatch.setattr(Locality, "address", gone.address)
    query = started(spark, tmp_path)
    query.processAllAvailable()
    found = totals(query)
    query.stop()
    assert found == EXPECTED


@pytest.mark.spark
def test_a_stream_commits_while_silent_connections_crowd_the_coordinator(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowded = StateStoreCoordinator(proof_timeout_s=600)  # the crowd stays as long as the test
    try:
        with silent_connections(crowded.address.port, 2000):
            until(lambda: len(crowded._unproved) >= crowded.most_unproved)
            monkeypatch.setattr(Locality, "address", crowded.address)
            query = started(spark, tmp_path)
            query.processAllAvailable()
            found = totals(query)
            query.stop()
            assert len(crowded._connections) <= crowded.most_unproved
        assert crowded.is_running
    finally:
        crowded.stop()
    assert found == EXPECTED


@pytest.mark.spark
def test_locality_may_be_off(spark: Any, tmp_path: Path) -> None:
    spark.conf.set("spark.holdfast.locality", "off")
    try:
        query = started(spark, tmp_path)
    finally:
        spark.conf.unset("spark.holdfast.locality")
    query.processAllAvailable()
    found = totals(query)
    assert query._run.loop._locality.address is None
    query.stop()
    assert found == EXPECTED


@pytest.mark.spark
def test_spark_is_told_where_partitions_should_go_and_tasks_where_they_are(spark: Any) -> None:
    java = located_java.LocatedJava(spark, located_java._constructor(spark))
    plain = spark.sparkContext.parallelize([], 3)._jrdd.rdd()
    made = java.wrap(plain, ["executor_a_1", None, "executor_b_2"])
    told = [str(made.preferredLocations(part).mkString(",")) for part in made.partitions()]
    assert told == ["executor_a_1", "", "executor_b_2"]
    rdd = RDD(made.toJavaRDD(), spark.sparkContext, NoOpSerializer())
    name = located_java.EXECUTOR_PROPERTY
    found = rdd.mapPartitionsWithIndex(
        lambda p, _: [(p, TaskContext.get().getLocalProperty(name).split(" ")[0])]
    ).collect()
    assert found == [(0, "driver"), (1, "driver"), (2, "driver")]
    rows = java.numbers(spark, [None, "executor_a_1"])
    assert [row.id for row in rows.collect()] == [0, 1]
    assert rows.rdd.getNumPartitions() == 2


@pytest.mark.spark
def test_without_a_compiler_there_is_one_warning_and_no_location(
    spark: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(located_java, "_prepared", ("", None))
    monkeypatch.setattr(located_java, "_SOURCE", "no Java")
    assert [located_java.prepared(spark) for _ in range(3)] == [None] * 3
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "did not take the class" in warning.message


class Executors:
    """Java that knows of some executors."""

    def __init__(self, *found: str) -> None:
        self.found = list(found)

    def executors(self) -> list[str]:
        return self.found


def test_the_driver_warns_once_when_no_worker_reports(caplog: pytest.LogCaptureFixture) -> None:
    ref = StateStoreCoordinatorRef.for_driver("deaf")
    locality = Locality(None, ref, Executors())  # type: ignore[arg-type]
    rdd = StateStoreRDD("/r", 0, UUID(int=1), 2, "default", locality)
    rdd._offers()
    for _ in range(2):
        rdd._placed(locality.places)  # deliveries and maintenance, which report nothing
    assert caplog.records == [], "nothing has run yet"
    for _ in range(3):
        assert rdd._offers() == [None, None]
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "No executor has reported to the StateStoreCoordinator" in warning.message


def test_an_executor_whose_tasks_others_took_gets_none_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ref = StateStoreCoordinatorRef.for_driver("busy")
    one, two = "executor_host_1", "executor_host_2"
    locality = Locality(None, ref, Executors(one, two))  # type: ignore[arg-type]
    rdd = StateStoreRDD("/r", 0, UUID(int=1), 2, "default", locality)
    assert rdd._offers() == [one, two]
    for partition in (0, 1):
        store_id = StateStoreId("/r", 0, partition)
        ref.report_active_instance(StateStoreProviderId(store_id, UUID(int=1)), "host", "1")
    assert rdd._offers() == [one, one]
    assert rdd._offers() == [one, one]
    clock = time.monotonic() + 3600
    monkeypatch.setattr("holdfast.spark.state.locality.time.monotonic", lambda: clock)
    assert rdd._offers() == [one, two], "it is given its share again"
    assert rdd._offers() == [one, one], "it did not take it"
