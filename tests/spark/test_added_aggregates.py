"""A query that is given more aggregates goes on with its state; the new ones start empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from native import SCHEMA, normal, write_batches
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import stateful
from holdfast.reading.find import open_root
from holdfast.reading.verification import verify

pytestmark = pytest.mark.spark

OLD = ["sum(v) AS s", "avg(v) AS m"]
COUNT = "count(*) AS n"
NEW = [
    COUNT,
    "sum(d) AS sd",
    "avg(d) AS ad",
    "stddev(v) AS sv",
    "collect_list(v) AS cl",
    "collect_set(id) AS cs",
    "min(ts) AS mt",
    "first(id) AS f",
    "max_by(id, v) AS mb",
    "bool_and(v > 0) AS ba",
    "approx_count_distinct(v) AS ac",
    "sum(v) FILTER (WHERE x > 0.5) AS fs",
]


class _Query:
    """A query over files, stopped and started again with other aggregates."""

    def __init__(self, spark: SparkSession, folder: Path, mode: str, *keys: Any) -> None:
        self.spark, self.folder, self.mode, self.keys = spark, folder, mode, keys
        self.outputs: list[tuple[int, list[Row]]] = []
        self.fails = False

    def keep(self, rows: DataFrame, version: int) -> None:
        if self.fails:
            raise RuntimeError("the sink is down")
        self.outputs.append((version, rows.collect()))

    def run(self, batches: int, *aggregates: str, **options: str) -> list[Row]:
        """Process files up to `batches`; the rows of every version since."""
        write_batches(self.folder / "in", seed=4, batches=batches)
        seen = len(self.outputs)
        source = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
        query = (
            stateful(source.parquet(str(self.folder / "in")))
            .withWatermark("ts", "1 minute")
            .groupBy(*self.keys)
            .agg(*map(F.expr, aggregates))
            .writeStream.outputMode(self.mode)
            .foreachBatch(self.keep)
            .options(checkpointLocation=str(self.folder / "cp"), **options)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [row for _, rows in self.outputs[seen:] for row in rows]

    def files(self, start: int, stop: int) -> DataFrame:
        """What some of the files hold."""
        names = [str(self.folder / "in" / f"{number:03d}.parquet") for number in range(start, stop)]
        return self.spark.read.schema(SCHEMA).parquet(*names)


def _by_v(rows: list[Row]) -> dict[Any, dict[str, Any]]:
    return {row.v: {name: normal(cell) for name, cell in row.asDict().items()} for row in rows}


def test_new_aggregates_hold_what_came_since_and_old_ones_all(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = _Query(spark, tmp_path, "complete", "v")
    query.run(2, *OLD)
    query.run(3, *OLD, *NEW, newAggregates="empty")
    found = _by_v(query.outputs[-1][1])
    late, new = query.files(2, 3), list(map(F.expr, NEW))
    nothing = late.filter("false").agg(*new).first()
    since = {row.v: row for row in late.groupBy("v").agg(*new).collect()}
    assert nothing is not None
    assert 0 < len(since) < len(found), "keys with new rows and without are part of the test"
    for row in query.files(0, 3).groupBy("v").agg(*map(F.expr, OLD)).collect():
        fresh = since.get(row.v, nothing).asDict()
        assert found[row.v] == _by_v([Row(**{**fresh, **row.asDict()})])[row.v]
    assert query.run(3, *OLD, *NEW) == []


def test_without_the_option_new_aggregates_are_refused_and_nothing_changes(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = _Query(spark, tmp_path, "update", "id")
    query.run(2, *OLD)
    with pytest.raises(holdfast.InvalidArgument, match=r"aggregate n was none, is count.*newAgg"):
        query.run(3, *OLD, COUNT)
    with pytest.raises(holdfast.InvalidArgument, match=r"aggregate s was sum.v., is none"):
        query.run(3, OLD[1], COUNT, newAggregates="empty")
    with pytest.raises(holdfast.InvalidArgument, match=r"aggregate s was sum.v., is max.v."):
        query.run(3, "max(v) AS s", OLD[1], newAggregates="empty")
    with pytest.raises(holdfast.InvalidArgument, match="newAggregates must be empty"):
        query.run(3, *OLD, newAggregates="full")
    assert holdfast.read(tmp_path / "cp").version == 2
    query.run(3, *OLD)
    assert holdfast.read(tmp_path / "cp").version == 3


@pytest.mark.parametrize(
    "window",
    [
        lambda: F.window("ts", "5 minutes"),
        lambda: F.session_window("ts", "2 minutes"),
    ],
    ids=["window", "session"],
)
def test_no_window_comes_out_twice_or_never_for_new_aggregates(
    spark: SparkSession, tmp_path: Path, window: Any
) -> None:
    changed = _Query(spark, tmp_path / "changed", "append", "id", window().alias("w"))
    before = changed.run(2, *OLD)
    after = changed.run(4, *OLD, COUNT, newAggregates="empty")
    same = _Query(spark, tmp_path / "same", "append", "id", window().alias("w"))
    expected = same.run(2, *OLD) + same.run(4, *OLD)
    rows = [(row.id, row.w, row.s, row.m) for row in [*before, *after]]
    assert sorted(rows, key=repr) == sorted(map(tuple, expected), key=repr)
    assert before
    assert after
    assert max(row.n for row in after) > 0


def test_state_that_was_not_delivered_is_not_changed(spark: SparkSession, tmp_path: Path) -> None:
    query = _Query(spark, tmp_path, "update", "id")
    query.fails = True
    with pytest.raises(StreamingQueryException, match="the sink is down"):
        query.run(1, *OLD)
    query.fails = False
    with pytest.raises(holdfast.IllegalState, match=r"Version 1 .* was not delivered yet"):
        query.run(1, *OLD, *NEW, newAggregates="empty")
    assert query.run(1, *OLD)
    assert query.run(1, *OLD, *NEW, newAggregates="empty") == []
    assert holdfast.read(tmp_path / "cp").version == 2


def test_versions_before_the_change_are_read_and_compared_as_those_after(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = _Query(spark, tmp_path, "update", "id")
    query.run(1, *OLD)
    query.run(2, *OLD, COUNT, newAggregates="empty")
    state = holdfast.read(tmp_path / "cp")
    assert state.version == 3
    first = state.at(1).to_arrow()
    assert first.column_names == state.to_arrow().column_names
    assert first.column("n").null_count == first.num_rows
    feed = spark.read.format("holdfast").option("readChangeFeed", "true")
    rows = feed.option("changeStartVersion", "1").load(str(tmp_path / "cp")).collect()
    assert {row.version for row in rows} == {1, 3}
    assert all((row.value.n is None) == (row.version == 1) for row in rows)
    assert verify(open_root(tmp_path / "cp")).broken == ()
