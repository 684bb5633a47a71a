"""Streams united behind stateful operators, and watermarks set there: as in Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from native import check_like_spark, in_order, source_of, write_batch, write_batches
from native_recordings import NativeRuns
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import stateful

pytestmark = pytest.mark.spark
Wrap = Callable[[DataFrame], Any]


def _windows(frame: Any, name: str = "ts") -> Any:
    return frame.groupBy(F.window(name, "5 minutes")).agg(F.sum("v").alias("v"))


def _marked(frame: Any) -> Any:
    return frame.withWatermark("ts", "1 minute")


def _plain(frame: Any) -> Any:
    return frame.select("id", "v")


def _counted(frame: Any) -> Any:
    return frame.groupBy("id").count()


def _sums(frame: Any) -> Any:
    """Windows of a few rows by a key, without the window."""
    return _marked(frame).groupBy(F.window("ts", "5 minutes"), "id").agg(F.sum("v").alias("v"))


def _twice(frame: Any) -> Any:
    sums = _sums(frame)
    return sums.select("id", "v").union(sums.select("id", F.col("v") * 10))


def _unlike(frame: Any) -> Any:
    """Columns of other types, one missing, in another order: united by their names."""
    other = frame.select(F.lit(1.5).alias("count"), F.upper("id").alias("id"), "v")
    return _counted(frame).unionByName(other, allowMissingColumns=True)


def _chained(frame: Any) -> Any:
    """Rows without repetition beside all of them, both in windows."""
    marked = _marked(frame)
    once = marked.dropDuplicates(["id", "v"]).select("ts", "v")
    return _windows(once.union(marked.select("ts", F.lit(1000).alias("v"))))


def _thrice(frame: Any) -> Any:
    """A union of a union, with steps between."""
    first = _counted(frame).union(frame.select("id", F.lit(-1))).filter("id <> 'a'")
    return first.union(frame.groupBy("id").max("v")).withColumn("k", F.upper("id"))


def _of_columns(frame: Any) -> Any:
    """Columns taken from what was united."""
    both = _counted(frame).union(frame.select("id", "v"))
    return both.select(both["id"], (both["count"] + 1).alias("more")).where(both["id"] != "c")


def _two_ways(frame: Any) -> Any:
    """A watermark whose rows go two ways that meet, on a column beside some of the same name."""
    once = frame.dropDuplicates(["id", "v"]).select("id", F.col("x").alias("id"), "ts", "v")
    marked = once.alias("t").withWatermark("t.ts", "1 minute")
    sides = (marked.filter(side).select("ts", "v") for side in ("v > 0", "v <= 0"))
    return _windows(next(sides).union(next(sides)))


def _beside(frame: Any) -> Any:
    """Windows beside rows that have a watermark of their own: it holds the windows back."""
    windows = _windows(_marked(frame)).select("window.start", "v")
    once = frame.dropDuplicates(["id"]).withColumnRenamed("ts", "event.time")
    return windows.union(
        once.withWatermark("`event.time`", "9 minutes").select("`event.time`", "v")
    )


CASES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "sums and their rows, update": (lambda f: _plain(_sums(f)).union(_plain(f)), "update"),
    "sums and their rows, append": (lambda f: _plain(f).union(_plain(_sums(f))), "append"),
    "counts and their rows, complete": (lambda f: _counted(f).union(_plain(f)), "complete"),
    "an operator twice": (_twice, "append"),
    "two operators": (
        lambda f: _counted(f).union(f.groupBy(F.upper("id")).agg(F.max("v"))), "update",
    ),
    "unlike columns": (_unlike, "update"),
    "before a second operator": (_chained, "append"),
    "a union of a union": (_thrice, "update"),
    "columns of the union": (_of_columns, "update"),
    "random steps": (
        lambda f: _counted(f).union(_plain(f)).withColumn("r", F.rand() < 2), "update",
    ),
    "a watermark behind an operator": (
        lambda f: _windows(_marked(f.dropDuplicates(["id", "v"]))), "append",
    ),
    "watermarks before and behind": (
        lambda f: _windows(
            _marked(f).union(f.dropDuplicates(["id"]).withWatermark("ts", "9 minutes"))
        ), "append",
    ),
    "a watermark whose rows go two ways": (_two_ways, "append"),
    "a watermark beside an operator": (_beside, "append"),
    "a watermark behind the last operator": (
        lambda f: f.groupBy("id").agg(F.max("ts").alias("ts")).withWatermark("ts", "1 minute"),
        "update",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_batch_gives_what_spark_gives(
    native_runs: NativeRuns, tmp_path: Path, name: str
) -> None:
    pipeline, mode = CASES[name]
    check_like_spark(native_runs, tmp_path, name, pipeline, mode)


def _of_two(spark: SparkSession, folder: Path, wrap: Wrap) -> Any:
    left, right = (wrap(source_of(spark, folder / side)) for side in ("left", "right"))
    return (
        _counted(left)
        .unionByName(right.select(F.col("v").alias("count"), "id"))
        .unionByName(right.filter("v > 0").groupBy("id").count())
    )


def _collected(frame: Any, checkpoint: Path, fail_at: int | None = None) -> dict[int, list[Row]]:
    """What each batch gives until all is read; delivery fails in one, if so wished."""
    found: dict[int, list[Row]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        if number == fail_at:
            raise RuntimeError("no delivery")
        found[number] = batch.collect()

    writer = frame.writeStream.outputMode("update").foreachBatch(keep)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return found


def _normal(outputs: dict[int, list[Row]]) -> list[Any]:
    """The rows of each batch in a form that two runs can be compared by."""
    return in_order([outputs[number] for number in sorted(outputs) if outputs[number]])


def test_streams_of_two_sources_go_on_after_a_restart_as_in_spark(
    spark: SparkSession, native_runs: NativeRuns, tmp_path: Path
) -> None:
    native, ours = [], []
    folders = tmp_path / "left", tmp_path / "right"
    for start in (1, 2):
        for seed, folder in enumerate(folders):
            write_batches(folder, seed, batches=start)
        sparks, own = (_of_two(spark, tmp_path, wrap) for wrap in (lambda f: f, stateful))
        if start == 2:  # such a step has the query's plan made anew for each batch
            sparks, own = (frame.filter(F.rand() < 2) for frame in (sparks, own))
        native.append(
            in_order(native_runs.outputs(sparks, tmp_path / "native", "update", *folders))
        )
        ours.append(_normal(_collected(own, tmp_path / "ours")))
    assert ours == native
    assert all(native)
    assert holdfast.read(str(tmp_path / "ours"), operator=0).version == 2


def test_rows_beside_the_state_are_delivered_again_after_a_failed_delivery(
    spark: SparkSession, tmp_path: Path
) -> None:
    for seed, folder in enumerate(("left", "right")):
        write_batches(tmp_path / folder, seed, batches=1)
    frame = _of_two(spark, tmp_path, stateful)
    wanted = _normal(_collected(frame, tmp_path / "whole"))
    with pytest.raises(Exception, match="no delivery"):
        _collected(frame, tmp_path / "broken", fail_at=0)
    assert holdfast.read(str(tmp_path / "broken"), operator=0).version == 1
    assert _normal(_collected(frame, tmp_path / "broken")) == wanted


def test_files_of_a_union_have_each_row_once(
    spark: SparkSession, native_runs: NativeRuns, tmp_path: Path
) -> None:
    write_batches(tmp_path / "in", 3, batches=2)
    frame = stateful(source_of(spark, tmp_path / "in"))
    united = _plain(_sums(frame)).union(_plain(frame))
    for _ in range(2):
        query = (
            united.writeStream.format("parquet")
            .trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "cp"))
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()
    native = native_runs.run(
        tmp_path / "in", tmp_path / "native", lambda f: _plain(_sums(f)).union(_plain(f)), "append"
    )
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    wanted = [row for batch in native for row in batch]
    assert sorted(map(repr, map(tuple, found))) == sorted(map(repr, wanted))


def test_a_row_of_a_union_is_read_and_counted_once(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_batch(tmp_path / "in", 0, pa.table({"id": ["a", "b", "c"], "v": [1, 2, 3]}))
    source = spark.readStream.schema("id string, v long").parquet(str(tmp_path / "in"))
    frame = stateful(source)
    writer = _counted(frame).union(frame).writeStream.outputMode("update").format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).start()
    try:
        query.processAllAvailable()
        told = query.lastProgress
        assert told is not None
        assert told.numInputRows == 3
        assert [source.numInputRows for source in told.sources] == [3]
    finally:
        query.stop()
    assert not spark.sparkContext._jsc.getPersistentRDDs()


def test_an_operator_whose_rows_go_two_ways_has_its_state_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = stateful(source_of(spark, tmp_path))
    assert len(_twice(frame)._flow.stages) == 1
    assert len(_counted(frame).union(_counted(frame))._flow.stages) == 2


def test_a_second_watermark_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path / "in", 0, batches=1)
    frame = _marked(stateful(source_of(spark, tmp_path / "in"))).dropDuplicates(["id", "ts"])
    with pytest.raises(holdfast.InvalidArgument, match="has a watermark already"):
        _marked(frame)


def test_a_column_that_cannot_be_kept_until_delivery_is_refused_at_the_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_batches(tmp_path / "in", 0, batches=1)
    frame = stateful(source_of(spark, tmp_path / "in"))
    united = _counted(frame).union(_plain(frame)).withColumn("s", F.struct("id", "id"))
    writer = united.writeStream.outputMode("update").format("noop")
    with pytest.raises(holdfast.InvalidArgument, match="The column 's' of the union is struct"):
        writer.option("checkpointLocation", str(tmp_path / "cp")).start()
