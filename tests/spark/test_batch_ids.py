"""A writer that skips the batch ids it has seen gets every row once: they are as Spark's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from put_back import as_before, forget_delivery, give_up, rows_of, write_rows
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import holdfast
from holdfast.backends.memory import MemoryStorage
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.versions.numbering import Numbering, lost_numbers, note_jump
from holdfast.reading import open_root
from holdfast.spark.versions.loop import VersionLoop

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])
Pipeline = Callable[[Any], Any]


class Writer:
    """Skips what it has seen, as Delta's `txnVersion` does; fails before it keeps `fails_at`."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.kept: dict[int, list[Any]] = {}
        self.fails_at: int | None = None

    def deliver(self, rows: DataFrame, batch_id: int) -> None:
        found = sorted(row[0] for row in rows.collect())
        self.seen.append(batch_id)
        if batch_id == self.fails_at:
            raise OSError("the writer is down")
        if not self.kept or batch_id > max(self.kept):
            self.kept[batch_id] = found

    @property
    def rows(self) -> list[Any]:
        return sorted(row for rows in self.kept.values() for row in rows)


class Stream:
    def __init__(self, spark: SparkSession, folder: Path, pipeline: Pipeline) -> None:
        self.spark, self.folder, self.pipeline = spark, folder, pipeline
        self.writer = Writer()

    def run(self, *files: int, native: bool = False, **options: str) -> Any:
        for number in files:
            write_rows(self.folder / "in", number)
        rows = rows_of(self.spark, self.folder / "in", native=native)
        query = (
            self.pipeline(rows)
            .writeStream.outputMode("update")
            .foreachBatch(self.writer.deliver)
            .options(checkpointLocation=str(self.folder / "cp"), **options)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    @property
    def numbering(self) -> tuple[int, int]:
        versions = open_root(self.folder / "cp")
        found = Numbering.of(versions.manifest(versions.versions[-1]))
        return found.first, found.last


def distinct(rows: Any) -> Any:
    return rows.dropDuplicates(["v"]).select("v")


def distinct_by_time(rows: Any) -> Any:
    """With ticks, which forget what is late."""
    return rows.withWatermark("ts", "0 seconds").dropDuplicates(["v", "ts"]).select("v")


class Passing(StatefulProcessor):
    """Starts with state, and puts out every row."""

    def init(self, handle: Any) -> None:
        self.start = handle.getValueState("start", "at long")

    def handleInitialState(self, key: Any, initial: Any, timerValues: Any) -> None:
        self.start.update((initial.at,))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        start = (self.start.get() or (0,))[0]
        yield from (Row(v=row.v + start) for row in rows)

    def close(self) -> None:
        pass


def test_batch_ids_are_sparks_with_ticks_and_without(spark: SparkSession, tmp_path: Path) -> None:
    for name, pipeline in (("plain", distinct), ("ticks", distinct_by_time)):
        ours = Stream(spark, tmp_path / name, pipeline)
        ours.run(0, 1)
        ours.run(2)
        query = ours.run(3)
        native = Stream(spark, tmp_path / f"native {name}", pipeline)
        native.run(0, 1, native=True)
        native.run(2, native=True)
        native.run(3, native=True)
        assert ours.writer.seen == native.writer.seen == list(range(len(ours.writer.seen)))
        assert ours.writer.kept == native.writer.kept
        assert ours.writer.rows == list(range(40))
        assert query.lastProgress.batchId == ours.writer.seen[-1]
        assert query.version == query.lastProgress["version"] == len(ours.writer.seen)


def test_a_batch_id_comes_again_with_the_rows_that_a_writer_failed_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, distinct)
    stream.run(0)
    stream.writer.fails_at = 1
    with pytest.raises(Exception, match="the writer is down"):
        stream.run(1)
    stream.writer.fails_at = None
    stream.run(2)
    assert stream.writer.seen == [0, 1, 1, 2]
    assert stream.writer.rows == list(range(30))


def test_initial_state_takes_no_batch_id(spark: SparkSession, tmp_path: Path) -> None:
    start = spark.createDataFrame([("a", 100)], "k string, at long").groupBy("k")
    stream = Stream(
        spark,
        tmp_path,
        lambda rows: rows.groupBy("k").transformWithState(
            Passing(), "v long", "Update", "None", initialState=start
        ),
    )
    query = stream.run(0)
    stream.run(1)
    assert stream.writer.seen == [0, 1]
    assert query.version == 2, "the state's first version is the initial state"
    assert stream.writer.rows == sorted(v + (0 if v % 2 else 100) for v in range(20))


def test_state_with_new_columns_takes_no_batch_id(spark: SparkSession, tmp_path: Path) -> None:
    sums = [F.sum("v").alias("s")]
    stream = Stream(spark, tmp_path, lambda rows: rows.groupBy("k").agg(*sums).select("s"))
    stream.run(0)
    sums.append(F.count("*").alias("n"))
    query = stream.run(1, newAggregates="empty")
    assert stream.writer.seen == [0, 1]
    assert stream.writer.kept == {0: [20, 25], 1: [90, 100]}
    assert query.version == 3


def test_a_checkpoint_made_before_goes_on_with_its_versions_as_batch_ids(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, distinct)
    stream.run(0, 1)
    as_before(tmp_path / "cp")
    stream.writer.kept = {number + 1: rows for number, rows in stream.writer.kept.items()}
    stream.writer.seen.clear()
    query = stream.run(2)
    assert stream.writer.seen == [3]
    assert query.lastProgress.batchId == 2, "progress, consoles and epochs had one less"
    assert stream.numbering == (1, 3)
    stream.run(3)
    # What was not delivered comes again under the number it had.
    forget_delivery(tmp_path / "cp", 3)
    as_before(tmp_path / "cp")
    stream.run(4)
    assert stream.writer.seen == [3, 4, 4, 5]
    assert stream.writer.rows == list(range(50))


def test_no_batch_id_of_a_version_that_was_given_up_comes_with_other_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, distinct_by_time)
    stream.run(0)
    give_up(tmp_path / "cp", holdfast.read(tmp_path / "cp").version)
    stream.run(1)
    assert stream.writer.rows == list(range(20))
    assert stream.writer.seen == sorted(set(stream.writer.seen))
    root = open_root(tmp_path / "cp")
    assert lost_numbers(root.storage, root.manifest(root.versions[-1])) == 0


def test_no_batch_id_comes_again_when_a_version_is_given_up_a_second_time() -> None:
    def numbered(version: int, last: int) -> Any:
        return Mock(Manifest, version=version, numbering={"first": 0, "last": last})

    storage = MemoryStorage()
    manifest = numbered(version=1, last=0)
    assert lost_numbers(storage, manifest) == 0
    storage.create_if_absent("versions/2.damaged", b"")
    assert lost_numbers(storage, manifest) == 1
    note_jump(storage, 2, 2)  # the version 2 that takes its place, and is given up as well
    assert lost_numbers(storage, manifest) == 2
    note_jump(storage, 2, 3)
    storage.create_if_absent("versions/3.damaged", b"")  # the version after it had 4
    assert lost_numbers(storage, manifest) == 4
    assert lost_numbers(storage, numbered(version=3, last=4)) == 0


def test_a_rewrite_of_the_state_keeps_the_batch_ids_of_versions_that_were_given_up(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(*more: Any) -> Pipeline:
        counts = (F.count("*").alias("n"), *more)
        return lambda rows: (
            rows.withWatermark("ts", "0 seconds").groupBy("v", "ts").agg(*counts).select("v")
        )

    def fail(*_: Any) -> None:
        raise OSError("the driver is down")

    stream = Stream(spark, tmp_path, counted())
    stream.run(0)
    newest = holdfast.read(tmp_path / "cp").version
    give_up(tmp_path / "cp", newest)
    stream.pipeline = counted(F.max("v").alias("m"))
    with monkeypatch.context() as patch:
        patch.setattr(VersionLoop, "_run", fail)
        with pytest.raises(Exception, match="the driver is down"):
            stream.run(1, newAggregates="empty")
    assert holdfast.read(tmp_path / "cp").version == newest, "the state is rewritten, and no more"
    before = list(stream.writer.seen)
    stream.run(newAggregates="empty")
    assert len(stream.writer.seen) > len(before)
    assert stream.writer.seen == sorted(set(stream.writer.seen))
    assert stream.writer.rows == list(range(20))
