"""Versions of one number with other rows: each reaches a file sink, and none of them twice."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from put_back import as_before, forget_delivery, give_up, rows_of, write_rows
from pyspark.sql import SparkSession

import holdfast
from holdfast.spark.sinks.files import FileSink
from holdfast.spark.sinks.sink import OutputBatch

pytestmark = pytest.mark.spark
QUERY = str(uuid.uuid4())


# -- what a plan counts for ----------------------------------------------------------------------


def sink_in(folder: Path) -> FileSink:
    (folder / "cp").mkdir(exist_ok=True)
    (folder / "cp" / "metadata").write_text(json.dumps({"id": QUERY}))
    return FileSink(str(folder / "out"), "json", {}, [], str(folder / "cp"))


def at(version: int, commit: str = "a", **more: Any) -> OutputBatch:
    return OutputBatch(version, version - 1, commit * 32, epoch=version - 1, **more)


def numbers(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.id for row in spark.read.json(str(folder / "out")).collect())


def plans(folder: Path) -> Path:
    return folder / "out" / "_holdfast" / QUERY


def test_another_version_of_the_same_number_is_delivered_beside_the_first(
    spark: SparkSession, tmp_path: Path
) -> None:
    for _ in range(2):
        sink_in(tmp_path).deliver(spark.range(0, 4, 1, 2), at(1, "a", made_from="batch 0"))
        sink_in(tmp_path).deliver(spark.range(4, 8, 1, 2), at(1, "b", made_from="another"))
        sink_in(tmp_path).deliver(spark.range(8, 12, 1, 2), at(1, "c"))
    assert numbers(spark, tmp_path) == list(range(12))


def test_the_same_batch_committed_again_on_the_same_version_is_not_delivered_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    for commit in "ab":
        sink_in(tmp_path).deliver(spark.range(4), at(1, commit, made_from="batch 0"))
    assert numbers(spark, tmp_path) == list(range(4))


def test_a_plan_without_commit_id_counts_for_versions_of_its_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink_in(tmp_path).deliver(spark.range(4), at(1))
    (plans(tmp_path) / f"1.{'a' * 32}.plan").rename(plans(tmp_path) / "1.plan")
    sink_in(tmp_path).deliver(spark.range(4), at(1, has_commit_id=False))
    assert numbers(spark, tmp_path) == list(range(4))
    sink_in(tmp_path).deliver(spark.range(4, 8), at(1, "b"))
    assert numbers(spark, tmp_path) == list(range(8))


@pytest.mark.parametrize("is_there", [True, False])
def test_a_plan_without_commit_id_is_doubted_after_the_checkpoint_was_put_back(
    spark: SparkSession, tmp_path: Path, is_there: bool
) -> None:
    for version in (1, 2):
        sink_in(tmp_path).deliver(spark.range(version), at(version))
        made = plans(tmp_path) / f"{version}.{'a' * 32}.plan"
        made.rename(plans(tmp_path) / f"{version}.plan")
    again = at(1, "b", has_commit_id=False, is_newest=lambda: True)
    with pytest.raises(
        holdfast.IllegalState, match=r"was put back.*of version 1 are.*remove 1\.plan"
    ):
        sink_in(tmp_path).deliver(spark.range(7, 8), again)
    assert numbers(spark, tmp_path) == [0, 0, 1]
    if is_there:
        (plans(tmp_path) / f"1.{'b' * 32}.plan").write_text('{"files": {}}')
    else:
        (plans(tmp_path) / "1.plan").unlink()
    sink_in(tmp_path).deliver(spark.range(7, 8), again)
    assert numbers(spark, tmp_path) == [0, 0, 1, *([] if is_there else [7])]


def test_a_checkpoint_that_was_put_back_goes_on_and_an_overtaken_driver_does_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    for version in range(1, 13):
        sink_in(tmp_path).deliver(spark.range(version, version + 1), at(version))
    # The state is back at version 1. Whether the sink has that one, nobody can tell any more.
    with pytest.raises(holdfast.IllegalState, match=r"put back.*of version 1 are.*remove \*\.plan"):
        sink_in(tmp_path).deliver(spark.range(1, 2), at(1, is_newest=lambda: True))
    sink_in(tmp_path).deliver(spark.range(3, 4), at(3, is_newest=lambda: True))
    for version in (2, 3, 4):
        new = at(version, "b", is_new=True, is_newest=lambda: True)
        for _ in range(2):
            sink_in(tmp_path).deliver(spark.range(100 + version, 101 + version), new)
    with pytest.raises(holdfast.IllegalState, match="comes too late"):
        sink_in(tmp_path).deliver(spark.range(9), at(5, "c", is_new=True))
    assert numbers(spark, tmp_path) == [*range(1, 13), 102, 103, 104]


def test_rows_that_may_be_there_are_doubted_until_the_version_before_has_its_own_plan(
    spark: SparkSession, tmp_path: Path
) -> None:
    for version in range(1, 14):
        sink_in(tmp_path).deliver(spark.range(version, version + 1), at(version))
    # A batch that was planned before the run may be in the sink, under another commit id.
    planned = at(2, "b", made_from="batch 1", parent_commit_id="0" * 32, is_newest=lambda: True)
    with pytest.raises(holdfast.IllegalState, match=r"put back.*of version 2 are.*remove \*\.plan"):
        sink_in(tmp_path).deliver(spark.range(2, 3), planned)
    added = plans(tmp_path) / f"2.{'b' * 32}.plan"
    added.write_text('{"files": {}}')
    sink_in(tmp_path).deliver(spark.range(2, 3), planned)
    # The plan that was added says nothing of the next batch, should that have been planned as well.
    third = at(3, "b", made_from="batch 2", parent_commit_id="b" * 32, is_newest=lambda: True)
    with pytest.raises(holdfast.IllegalState, match="of version 3 are"):
        sink_in(tmp_path).deliver(spark.range(3, 4), third)
    sink_in(tmp_path).deliver(spark.range(103, 104), replace(third, is_new=True))
    # Behind a version with a plan of its own an ordinary restart is not asked about anything.
    last = at(4, "b", made_from="batch 3", parent_commit_id="b" * 32, is_newest=lambda: True)
    sink_in(tmp_path).deliver(spark.range(104, 105), last)
    assert numbers(spark, tmp_path) == [*range(1, 14), 103, 104]


# -- streams -------------------------------------------------------------------------------------


class Stream:
    """Rows without duplicates, into files or a table; ticks deliver none."""

    def __init__(self, spark: SparkSession, folder: Path, table: str | None = None) -> None:
        self.spark, self.folder, self.table = spark, folder, table
        self.out = folder / "out"

    def run(self, *files: int, ticks: bool = True) -> None:
        for number in files:
            write_rows(self.folder / "in", number)
        rows = rows_of(self.spark, self.folder / "in")
        marked = rows.withWatermark("ts", "0 seconds") if ticks else rows
        writer = marked.dropDuplicates(["v", "ts"]).writeStream.trigger(availableNow=True)
        writer = writer.format("json").option("checkpointLocation", str(self.folder / "cp"))
        if self.table is None:
            query = writer.start(str(self.out))
        else:
            query = writer.toTable(self.table, path=str(self.out), partitionBy=["k"])
        query.awaitTermination()

    @property
    def numbers(self) -> list[int]:
        frame = self.spark.read.json(str(self.out))
        if self.table is not None:
            frame = self.spark.table(self.table)
        return sorted(row.v for row in frame.collect())

    @property
    def version(self) -> int:
        return holdfast.read(self.folder / "cp").version


@pytest.mark.parametrize("into_table", [False, True])
def test_the_way_out_of_a_damaged_manifest_loses_no_batch(
    spark: SparkSession, tmp_path: Path, into_table: bool
) -> None:
    name = f"t{uuid.uuid4().hex}" if into_table else None
    stream = Stream(spark, tmp_path, name)
    try:
        stream.run(0)
        give_up(tmp_path / "cp", stream.version)  # a tick: Spark goes on with the next batch
        stream.run(1)
        assert stream.numbers == list(range(20))
        stream.run(2)
        assert stream.numbers == list(range(30))
    finally:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_a_batch_that_spark_brings_again_after_its_manifest_was_damaged_comes_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    stream.run(0, 1, ticks=False)
    give_up(tmp_path / "cp", stream.version)
    forget_delivery(tmp_path / "cp", 1)
    stream.run(2, ticks=False)
    assert stream.numbers == list(range(30))


def test_a_checkpoint_put_back_from_an_older_copy_delivers_what_comes_then(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    stream.run(0)
    shutil.copytree(tmp_path / "cp", tmp_path / "copy")
    stream.run(1, 2)
    shutil.rmtree(tmp_path / "cp")
    (tmp_path / "copy").rename(tmp_path / "cp")
    for number in (1, 2):
        (tmp_path / "in" / f"{number}.json").unlink()
    stream.run(3)
    assert stream.numbers == list(range(40))
    stream.run(4)
    assert stream.numbers == list(range(50))


@pytest.mark.parametrize("is_there", [True, False])
def test_a_batch_planned_before_a_copy_that_is_too_old_is_asked_about(
    spark: SparkSession, tmp_path: Path, is_there: bool
) -> None:
    stream = Stream(spark, tmp_path)
    stream.run(0, ticks=False)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "cp", copy)
    stream.run(1, ticks=False)
    for log in ("offsets", "sources/0"):  # the copy was made when Spark had planned the batch
        for path in (tmp_path / "cp" / log).glob("*1*"):
            shutil.copy(path, copy / log)
    stream.run(*range(2, 13), ticks=False)
    shutil.rmtree(tmp_path / "cp")
    copy.rename(tmp_path / "cp")
    for number in range(2, 13):
        (tmp_path / "in" / f"{number}.json").unlink()
    if not is_there:
        for path in stream.out.glob("part-0000000001-*"):
            path.unlink()
    for _ in range(2):
        with pytest.raises(holdfast.IllegalState, match=r"put back.*rows of version 2 are") as told:
            stream.run(13, ticks=False)
    folder = next((stream.out / "_holdfast").iterdir())
    if is_there:
        added = re.search(r"add (\S+) with the text (\{.*\})\.", str(told.value))
        assert added is not None
        (folder / added[1]).write_text(added[2])
    else:
        for path in folder.glob("*.plan"):
            path.unlink()
    stream.run(14, ticks=False)
    assert stream.numbers == list(range(150))


def test_a_checkpoint_of_an_earlier_release_goes_on_without_a_row_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    stream.run(0, 1, ticks=False)
    forget_delivery(tmp_path / "cp", 1)
    as_before(tmp_path / "cp", tmp_path / "out")
    stream.run(2, ticks=False)
    assert stream.numbers == list(range(30))
    as_before(tmp_path / "cp", tmp_path / "out")
    give_up(tmp_path / "cp", stream.version)
    for folder in ("offsets", "commits", "sources/0"):
        for path in (tmp_path / "cp" / folder).glob("*2*"):
            path.unlink()
    (tmp_path / "in" / "2.json").unlink()
    stream.run(3, ticks=False)  # the note and the plan are those of another version 3
    assert stream.numbers == list(range(40))


def test_the_note_of_a_version_that_was_given_up_is_not_that_of_the_next(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    stream.run(0)
    notes = tmp_path / "cp" / "holdfast" / "delivered"
    first = {path.name for path in notes.iterdir()}
    assert [name.partition("-")[0] for name in first] == [str(stream.version)]
    give_up(tmp_path / "cp", stream.version)
    stream.run(1)
    assert first.isdisjoint(path.name for path in notes.iterdir())
