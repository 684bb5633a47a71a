"""A sink that fails gets what it lacks, the same rows under the same batch id, before all else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drivers import World
from native import SCHEMA, write_batches
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast import stateful
from holdfast.spark.running.query import StatefulQuery

pytestmark = pytest.mark.spark
PATIENCE_S = 120


class Sink:
    """Keeps what it was given by batch id, and fails where a test says so."""

    def __init__(self) -> None:
        self.given: dict[int, list[str]] = {}
        self.before: Callable[[list[str]], None] = lambda rows: None

    def deliver(self, frame: DataFrame, batch_id: int) -> None:
        rows = sorted(map(repr, frame.collect()))
        self.before(rows)
        assert self.given.setdefault(batch_id, rows) == rows

    def fail(self, rows: list[str]) -> None:
        """Fail once rows come: those of windows that a tick has closed."""
        if rows:
            raise OSError("the sink is full")

    @property
    def rows(self) -> list[str]:
        return sorted(row for rows in self.given.values() for row in rows)


def start(spark: SparkSession, folder: Path, sink: Sink) -> StatefulQuery:
    rows = spark.readStream.schema(SCHEMA).parquet(str(folder / "in"))
    query = (
        stateful(rows)
        .withWatermark("ts", "1 minute")
        .groupBy("id", F.window("ts", "5 minutes"))
        .count()
        .writeStream.outputMode("append")
        .foreachBatch(sink.deliver)
        .option("checkpointLocation", str(folder / "cp"))
        .start()
    )
    assert isinstance(query, StatefulQuery)
    return query


def _take_all(query: StatefulQuery) -> None:
    query.processAllAvailable()
    query.awaitTermination(PATIENCE_S)


def test_a_tick_that_fails_ends_the_query_and_the_next_run_delivers_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_batches(tmp_path / "in", seed=5, batches=1)
    sink, whole = Sink(), Sink()
    sink.before = sink.fail
    query = start(spark, tmp_path, sink)
    with pytest.raises(OSError, match="the sink is full"):  # in this thread or in that of ticks
        _take_all(query)
    query.stop()
    assert not query.isActive
    assert "the sink is full" in str(query.exception())
    assert sink.rows == []
    sink.before = lambda rows: None
    query = start(spark, tmp_path, sink)
    query.processAllAvailable()
    query.stop()

    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "in").symlink_to(tmp_path / "in")
    query = start(spark, tmp_path / "other", whole)
    query.processAllAvailable()
    query.stop()
    assert whole.rows
    assert sink.given == whole.given


def test_a_tick_that_fails_while_a_batch_waits_ends_the_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_batches(tmp_path / "in", seed=5, batches=1)
    write_batches(tmp_path / "more", seed=5, batches=2)
    _, more = sorted((tmp_path / "more").iterdir())
    sink = Sink()

    def fail_once_a_batch_waits(rows: list[str]) -> None:
        if rows:
            more.rename(tmp_path / "in" / more.name)
            assert query._run.turns.batch_waits.wait(PATIENCE_S)
            raise OSError("the sink is full")

    sink.before = fail_once_a_batch_waits
    query = start(spark, tmp_path, sink)
    with pytest.raises(OSError, match="the sink is full"):
        assert query.awaitTermination(PATIENCE_S)
    assert not query._inner.isActive


def test_a_loop_delivers_what_its_sink_lacks_before_it_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(spark, tmp_path, "function", monkeypatch)
    driver = world.driver()
    driver.open()
    driver.run(0)

    def fail(*given: Any) -> None:
        raise OSError("the sink is full")

    with monkeypatch.context() as patched:
        patched.setattr(driver.sink, "deliver", fail)
        with pytest.raises(OSError, match="the sink is full"):
            driver.run(1)
    assert (list(world.delivered), driver.loop.manifest.version) == ([0], 2)
    driver.run(2)
    assert list(world.delivered) == [0, 1, 2]
    world.check(3)
