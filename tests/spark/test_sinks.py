"""Sinks take each version once; what Spark refuses is refused with Spark's own conditions."""

from __future__ import annotations

import itertools
import json
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    StreamingQueryException,
)
from pyspark.sql import DataFrame, DataFrameWriter, Row, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import stateful
from holdfast.errors import Unavailable
from holdfast.spark.interop import hadoop, local_names
from holdfast.spark.sinks.files import FileSink
from holdfast.spark.sinks.plans import FilePlan, Plans
from holdfast.spark.sinks.sink import MemorySink, OutputBatch

pytestmark = pytest.mark.spark
SCHEMA = "k string, v long, ts timestamp"


def write_input(spark: SparkSession, folder: Path, first: int, rows: int = 10) -> None:
    """One file of rows, a second apart; half of them of key a, the others of key b."""
    frame = spark.range(first, first + rows, 1, 1).selectExpr(
        "if(id % 2 = 0, 'a', 'b') AS k", "id AS v", "timestamp_seconds(1700000000 + id) AS ts"
    )
    frame.coalesce(1).write.mode("append").parquet(str(folder))


def source(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").parquet(str(folder))


def counts(stream: Any) -> Any:
    return stream.groupBy("k").agg(F.count("*").alias("n"))


def windows(stream: Any) -> Any:
    """Each window of two seconds once, when the watermark has passed it."""
    grouped = stream.withWatermark("ts", "0 seconds").groupBy(F.window("ts", "2 seconds"), "k")
    return grouped.agg(F.sum("v").alias("s")).select("k", "s")


def finish(writer: Any, *args: Any, **kwargs: Any) -> Any:
    query = writer.trigger(availableNow=True).start(*args, **kwargs)
    query.awaitTermination()
    return query


def pairs(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.collect()))


def closed(upto: int) -> list[tuple[str, int]]:
    """The windows that rows 0 to `upto` - 1 close, in full."""
    return sorted((key, v) for v, key in zip(range(upto - 2), itertools.cycle("ab"), strict=False))


# -- console, memory, noop ---------------------------------------------------------------------


def test_the_console_prints_sparks_layout(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_input(spark, tmp_path / "in", 0)
    stream = counts(stateful(source(spark, tmp_path / "in"))).select("n")
    writer = stream.writeStream.outputMode("complete").format("console")
    finish(writer.option("numRows", 1))
    line = "-" * 43
    table = "+---+\n|  n|\n+---+\n|  5|\n+---+\nonly showing top 1 row\n"
    assert capsys.readouterr().out == f"{line}\nBatch: 0\n{line}\n{table}"


def test_the_console_cuts_cells_as_it_is_told(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_input(spark, tmp_path / "in", 0, rows=1)
    stream = counts(stateful(source(spark, tmp_path / "in"))).select(F.lit("x" * 30).alias("t"))
    writer = stream.writeStream.outputMode("complete").format("console")
    for truncate, shown in (("true", "x" * 17 + "..."), ("false", "x" * 30), ("5", "xx...")):
        finish(writer.option("truncate", truncate))
        assert f"|{shown}|" in capsys.readouterr().out
    with pytest.raises(holdfast.InvalidArgument, match="truncate"):
        finish(writer.option("truncate", "much"))


@pytest.mark.parametrize(
    ("mode", "seen"),
    [
        ("complete", [("a", 10), ("b", 10)]),
        ("update", [("a", 5), ("a", 10), ("b", 5), ("b", 10)]),
    ],
)
def test_the_memory_sink_keeps_the_result_or_every_update(
    spark: SparkSession, tmp_path: Path, mode: str, seen: list[tuple[str, int]]
) -> None:
    for first in (0, 10):
        write_input(spark, tmp_path / "in", first)
    stream = counts(stateful(source(spark, tmp_path / "in")))
    finish(stream.writeStream.outputMode(mode).format("memory").queryName(f"kept_{mode}"))
    assert pairs(spark.table(f"kept_{mode}")) == seen


def test_the_memory_sink_adds_rows_to_its_table_and_none_of_them_twice(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = MemorySink("adds", complete=False)
    sink.start(spark.range(0))
    table = spark.table("adds")
    # Neither the rows that are there nor those that come pass through this process.
    monkeypatch.setattr(DataFrame, "collect", None)
    for number in (1, 2, 2, 3):
        sink.deliver(spark.range(number, number + 2), at(number))
        assert table.count() == 2 * number
    monkeypatch.undo()
    assert pairs(table) == [(1,), (2,), (2,), (3,), (3,), (4,)]


def test_a_name_that_is_in_use_is_refused_and_its_table_keeps_its_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_input(spark, tmp_path / "in", 0)
    rows = source(spark, tmp_path / "in")
    named = {"outputMode": "complete", "format": "memory", "queryName": "in_use"}
    first = counts(stateful(rows)).writeStream.start(**named)
    try:
        first.processAllAvailable()
        with pytest.raises(IllegalArgumentException) as by_spark:
            counts(rows).writeStream.start(**named)
        with pytest.raises(IllegalArgumentException) as refused:
            counts(stateful(rows)).writeStream.start(**named, checkpointLocation=tmp_path / "cp")
        assert str(refused.value) == str(by_spark.value)
        assert not (tmp_path / "cp").exists()
        assert pairs(spark.table("in_use")) == [("a", 5), ("b", 5)]
        write_input(spark, tmp_path / "in", 10)
        first.processAllAvailable()
    finally:
        first.stop()
    assert pairs(spark.table("in_use")) == [("a", 10), ("b", 10)]
    # Once it has ended, the name is free.
    again = counts(stateful(rows)).writeStream.outputMode("complete").format("noop")
    assert finish(again, queryName="in_use").exception() is None


# -- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "orc", "json", "csv"])
def test_files_get_every_row_once_by_partition(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    for first in (0, 10):
        write_input(spark, tmp_path / "in", first)
        stream = windows(stateful(source(spark, tmp_path / "in")))
        writer = stream.writeStream.partitionBy("k").option("checkpointLocation", tmp_path / "cp")
        finish(writer.format(kind), str(tmp_path / "out"))
    found = spark.read.schema("s long, k string").format(kind).load(str(tmp_path / "out"))
    assert pairs(found.select("k", "s")) == closed(20)
    assert {path.name for path in (tmp_path / "out").glob("k=*")} == {"k=a", "k=b"}


def failing_rename(monkeypatch: pytest.MonkeyPatch, crash_at: int) -> None:
    """The n-th rename of a sink's file into place fails from now on, once."""
    renames = itertools.count(1)
    rename = hadoop.rename_if_absent

    def failing(session: SparkSession, start: str, target: str) -> bool:
        if "/out/" in target and next(renames) == crash_at:
            raise OSError("the disk went away")
        return rename(session, start, target)

    monkeypatch.setattr(hadoop, "rename_if_absent", failing)


def test_the_folder_is_there_when_the_query_has_started(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    for kind, stream in (
        ("native", source(spark, tmp_path / "in")),
        ("ours", stateful(source(spark, tmp_path / "in"))),
    ):
        writer = windows(stream).writeStream.option(
            "checkpointLocation", str(tmp_path / "cp" / kind)
        )
        query = writer.start(str(tmp_path / "out" / kind))
        try:
            found = spark.read.schema("k string, s long").parquet(str(tmp_path / "out" / kind))
            assert found.count() == 0
        finally:
            query.stop()


def test_a_file_stream_downstream_reads_every_row_once_across_crashes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        stream = windows(stateful(source(spark, tmp_path / "in")))
        writer = stream.writeStream.option("checkpointLocation", tmp_path / "cp")
        finish(writer, str(tmp_path / "out"))

    def copy() -> None:
        reader = spark.readStream.schema("k string, s long")
        writer = reader.parquet(str(tmp_path / "out")).writeStream
        finish(writer.option("checkpointLocation", tmp_path / "cp2"), str(tmp_path / "copy"))

    for crash_at in (1, 2, 3):
        write_input(spark, tmp_path / "in", 10 * crash_at - 10)
        with monkeypatch.context() as patched:
            failing_rename(patched, crash_at)
            with pytest.raises(Exception, match="the disk went away"):
                run()
        copy()
    run()
    copy()
    assert pairs(spark.read.parquet(str(tmp_path / "copy"))) == closed(30)
    assert pairs(spark.read.parquet(str(tmp_path / "out"))) == closed(30)


def sink_in(folder: Path, **options: str) -> FileSink:
    """A sink of a query whose checkpoint is there."""
    (folder / "cp").mkdir(exist_ok=True)
    metadata = folder / "cp" / "metadata"
    if not metadata.exists():
        metadata.write_text(json.dumps({"id": str(uuid.uuid4())}))
    return FileSink(str(folder / "out"), "parquet", options, [], str(folder / "cp"))


def at(version: int, commit: str = "a", **more: Any) -> OutputBatch:
    """A version as a sink gets it."""
    return OutputBatch(version, version - 1, commit * 32, epoch=version - 1, **more)


def numbers(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(str(folder / "out")).collect())


def test_a_second_delivery_adds_nothing_however_the_rows_are_cut(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink_in(tmp_path).deliver(spark.range(0, 50, 1, 4), at(1))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    sink_in(tmp_path, maxRecordsPerFile="3").deliver(spark.range(0, 50, 1, 2), at(1))
    assert numbers(spark, tmp_path) == list(range(50))
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").glob("part-*")} == before
    assert all(path.name.startswith("part-0000000000-0000") for path in before)


@pytest.mark.parametrize("crash_at", range(1, 6))
def test_a_delivery_that_crashed_between_renames_is_completed_with_what_is_missing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    with monkeypatch.context() as patched:
        failing_rename(patched, crash_at)
        with pytest.raises(OSError, match="the disk went away"):
            sink_in(tmp_path).deliver(spark.range(0, 50, 1, 4), at(1))
    sink_in(tmp_path).deliver(spark.range(0, 50, 1, 3), at(1))
    assert numbers(spark, tmp_path) == list(range(50))
    sink_in(tmp_path).deliver(spark.range(50, 60, 1, 3), at(2))
    assert numbers(spark, tmp_path) == list(range(60))
    assert list((tmp_path / "out" / "_holdfast").glob("*/*-*")) == []


def test_a_plan_that_is_found_is_durable_before_its_files_are_moved(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        failing_rename(patched, 2)  # the plan has its name, no file has
        with pytest.raises(OSError, match="the disk went away"):
            sink_in(tmp_path).deliver(spark.range(0, 9, 1, 2), at(1))
    synced: list[str] = []
    sync = local_names._sync
    monkeypatch.setattr(local_names, "_sync", lambda path: (synced.append(path), sync(path)))
    sink_in(tmp_path).deliver(spark.range(0, 9, 1, 2), at(1))
    plans = next((tmp_path / "out" / "_holdfast").iterdir())
    assert synced[0] == str(plans)
    assert any(path.startswith(f"{plans}/1-") for path in synced[1:])
    assert numbers(spark, tmp_path) == list(range(9))


def test_a_crash_between_link_and_unlink_leaves_one_file(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(path: object) -> None:
        raise OSError("crash")

    sink = sink_in(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(local_names.os, "unlink", crash)
        for _ in range(3):  # the plan and two files
            with pytest.raises(OSError, match="crash"):
                sink.deliver(spark.range(0, 9, 1, 2), at(1))
    sink_in(tmp_path).deliver(spark.range(0, 9, 1, 2), at(1))
    assert numbers(spark, tmp_path) == list(range(9))


def test_of_eight_that_deliver_the_same_version_at_once_each_row_comes_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    failures: list[Exception] = []
    sink_in(tmp_path)

    def deliver(number: int) -> None:
        try:
            sink_in(tmp_path).deliver(spark.range(0, 40, 1, 1 + number % 4), at(1))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=deliver, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert numbers(spark, tmp_path) == list(range(40))


def test_of_eight_renames_to_one_name_one_wins(spark: SparkSession, tmp_path: Path) -> None:
    for attempt in range(20):
        won: list[int] = []
        for number in range(8):
            (tmp_path / f"{attempt}-{number}").write_text(str(number))

        def rename(number: int, attempt: int = attempt, won: list[int] = won) -> None:
            source, target = tmp_path / f"{attempt}-{number}", tmp_path / f"{attempt}"
            if hadoop.rename_if_absent(spark, str(source), str(target)):
                won.append(number)

        threads = [threading.Thread(target=rename, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [str(number) for number in won] == [(tmp_path / f"{attempt}").read_text()]


def test_a_disk_without_links_is_renamed_on_by_hadoop(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_names, "link_if_absent", lambda source, target: None)
    for _ in range(2):
        sink_in(tmp_path).deliver(spark.range(9), at(1))
    assert numbers(spark, tmp_path) == list(range(9))
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    assert not hadoop.rename_if_absent(spark, str(tmp_path / "a"), str(tmp_path / "b"))
    assert not hadoop.rename_if_absent(spark, str(tmp_path / "nothing"), str(tmp_path / "c"))
    assert (tmp_path / "b").read_text() == "b"


def test_a_rename_that_did_nothing_is_told_and_tried_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(local_names, "link_if_absent", lambda source, target: None)
        patched.setattr(hadoop, "_rename", lambda *given: False)
        patched.setattr(Plans, "find", lambda *given: FilePlan({"1-a/part": "part"}))
        sink = sink_in(tmp_path)
        query_id = json.loads((tmp_path / "cp" / "metadata").read_text())["id"]
        aside = tmp_path / "out" / "_holdfast" / query_id / "1-a"
        aside.mkdir(parents=True)
        (aside / "part").write_text("rows")
        with pytest.raises(Unavailable, match=r"Could not move a finished file to .*; try again"):
            sink.deliver(spark.range(9), at(1))
        assert (aside / "part").exists()


def test_a_plan_whose_answer_got_lost_is_carried_out(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = hadoop.create_if_absent

    def unheard(session: SparkSession, path: str, text: str) -> bool:
        create(session, path, text)
        return False

    monkeypatch.setattr(hadoop, "create_if_absent", unheard)
    sink_in(tmp_path).deliver(spark.range(9), at(1))
    assert numbers(spark, tmp_path) == list(range(9))


def test_a_run_that_was_overtaken_delivers_nothing_more(
    spark: SparkSession, tmp_path: Path
) -> None:
    for version in range(1, 13):
        sink_in(tmp_path).deliver(spark.range(1), at(version))
    with pytest.raises(holdfast.IllegalState, match="another run of the query"):
        sink_in(tmp_path).deliver(spark.range(1), at(1))
    assert numbers(spark, tmp_path) == [0] * 12
    assert len(list((tmp_path / "out" / "_holdfast").glob("*/*.plan"))) == 10


def test_two_queries_may_share_a_folder(spark: SparkSession, tmp_path: Path) -> None:
    sink_in(tmp_path).deliver(spark.range(3), at(1))
    (tmp_path / "cp" / "metadata").unlink()
    sink_in(tmp_path).deliver(spark.range(3, 6), at(1))
    assert numbers(spark, tmp_path) == list(range(6))


def test_files_without_the_querys_id_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path / "out"), "parquet", {}, [], str(tmp_path / "nothing"))
    with pytest.raises(holdfast.IllegalState, match="metadata"):
        sink.deliver(spark.range(3), at(1))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("basename", ["rows", "_hidden", ".x 5", "part-1-"])
def test_files_are_delivered_whatever_spark_calls_them(
    spark: SparkSession, tmp_path: Path, basename: str
) -> None:
    options = {"mapreduce.output.basename": basename, "maxRecordsPerFile": "4"}
    for _ in range(2):
        sink_in(tmp_path, **options).deliver(spark.range(0, 20, 1, 2), at(1))
    assert numbers(spark, tmp_path) == list(range(20))
    assert list((tmp_path / "out" / "_holdfast").glob("*/1-*")) == []


def test_a_basename_of_hadoops_settings_costs_no_row_of_a_partitioned_table(
    spark: SparkSession, tmp_path: Path, table: str
) -> None:
    write_input(spark, tmp_path / "in", 0)
    spark.conf.set("mapreduce.output.basename", "rows")
    try:
        to_table(spark, tmp_path, table, partitionBy=["k"])
    finally:
        spark.conf.unset("mapreduce.output.basename")
    assert pairs(spark.table(table).select("k", "s")) == closed(10)


def committing(monkeypatch: pytest.MonkeyPatch, commit: Callable[[Path, list[Path]], None]) -> None:
    """Have a committer of somebody's finish what Spark writes."""
    save = DataFrameWriter.save

    def saved(self: DataFrameWriter, path: str) -> None:
        save(self, path)
        commit(Path(path), sorted(Path(path).glob("part-*")))

    monkeypatch.setattr(DataFrameWriter, "save", saved)


def test_files_of_another_committer_are_delivered_and_its_markers_are_not(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(folder: Path, files: list[Path]) -> None:
        for number, file in enumerate(files):
            file.rename(folder / f"{number}=rows.parquet")
        (folder / "_started_7").write_text("{}")
        (folder / "_committed_7").write_text("{}")
        (folder / "_temporary" / "0").mkdir(parents=True)
        (folder / "_temporary" / "0" / "rows.parquet").write_text("of a task that failed")

    committing(monkeypatch, commit)
    for version in (1, 2):
        sink_in(tmp_path).deliver(spark.range(10 * version, 10 * version + 10, 1, 3), at(version))
    assert numbers(spark, tmp_path) == list(range(10, 30))


def test_what_was_written_and_is_not_recognised_is_an_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hide(folder: Path, files: list[Path]) -> None:
        files[0].rename(folder / "_rows.parquet")

    def lose(folder: Path, files: list[Path]) -> None:
        for file in files:
            file.unlink()

    for commit, told in ((hide, "wrote _rows.parquet"), (lose, "none of the rows of version 1")):
        with monkeypatch.context() as patched:
            committing(patched, commit)
            with pytest.raises(holdfast.IllegalState, match=told):
                sink_in(tmp_path).deliver(spark.range(9), at(1))
    sink_in(tmp_path).deliver(spark.range(9), at(1))
    assert numbers(spark, tmp_path) == list(range(9))


# -- foreach -----------------------------------------------------------------------------------


def note_writer(folder: Path) -> Any:
    """A class of this function, so that it travels to the workers whole."""

    class Notes:
        """Writes what it is called with to files; of partition 0 it takes nothing."""

        def __init__(self, folder: Path) -> None:
            self.folder = str(folder)
            self.lines: list[str] = []

        def open(self, partition_id: int, epoch_id: int) -> bool:
            self.where = (partition_id, epoch_id)
            return partition_id != 0

        def process(self, row: Row) -> None:
            if row.k == "broken":
                raise ValueError("a broken row")
            self.lines.append(f"{row.k}={row.n}")

        def close(self, error: Exception | None) -> None:
            partition, epoch = self.where
            body = json.dumps({"lines": self.lines, "error": error and str(error)})
            Path(self.folder, f"{epoch}-{partition}-{uuid.uuid4().hex}").write_text(body)

    return Notes(folder)


def notes(folder: Path) -> list[tuple[int, int, dict[str, Any]]]:
    found = []
    for path in folder.iterdir():
        epoch, partition, _ = path.name.split("-")
        found.append((int(epoch), int(partition), json.loads(path.read_text())))
    return sorted(found, key=lambda note: note[:2])


def test_foreach_opens_writes_and_closes_every_partition(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    frame = spark.range(40).selectExpr("concat('k', id) AS k", "1 AS v", "now() AS ts")
    frame.coalesce(1).write.parquet(str(tmp_path / "in"))
    stream = counts(stateful(source(spark, tmp_path / "in")))
    finish(stream.writeStream.outputMode("update").foreach(note_writer(folder)))
    found = notes(folder)
    assert [(epoch, partition) for epoch, partition, _ in found] == [(0, p) for p in range(2)]
    assert found[0][2]["lines"] == []
    assert all(note["lines"] and note["error"] is None for _, _, note in found[1:])
    lines = [line for _, _, note in found for line in note["lines"]]
    assert len(lines) == len(set(lines)) < 40
    assert all(line.endswith("=1") for line in lines)


def test_foreach_tells_close_of_the_error_and_the_query_fails(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    names = [f"k{number}" for number in range(20)] + ["broken"]
    rows = spark.createDataFrame([(name, 1, None) for name in names], SCHEMA)
    partition = {row.k: row.p for row in rows.selectExpr("k", "pmod(hash(k), 2) AS p").collect()}
    assert partition["broken"] != 0
    rows.coalesce(1).write.parquet(str(tmp_path / "in"))
    stream = counts(stateful(source(spark, tmp_path / "in")))
    with pytest.raises(Exception, match="a broken row"):
        finish(stream.writeStream.outputMode("update").foreach(note_writer(folder)))
    assert "a broken row" in {note["error"] for _, _, note in notes(folder)}


def test_foreach_takes_a_function(spark: SparkSession, tmp_path: Path) -> None:
    write_input(spark, tmp_path / "in", 0)
    folder = tmp_path / "seen"
    folder.mkdir()
    stream = counts(stateful(source(spark, tmp_path / "in")))
    finish(
        stream.writeStream.outputMode("update").foreach(
            lambda row: (folder / row.k).write_text(str(row.n))
        )
    )
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"a": "5", "b": "5"}


# -- tables ------------------------------------------------------------------------------------


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Any:
    name = f"t{uuid.uuid4().hex}"
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def to_table(spark: SparkSession, folder: Path, table: str, **options: Any) -> None:
    stream = windows(stateful(source(spark, folder / "in")))
    writer = stream.writeStream.option("checkpointLocation", folder / "cp")
    query = writer.trigger(availableNow=True).toTable(table, path=folder / "table", **options)
    query.awaitTermination()


def test_a_table_is_made_and_gets_every_row_once(
    spark: SparkSession, tmp_path: Path, table: str
) -> None:
    for upto in (10, 20):
        write_input(spark, tmp_path / "in", upto - 10)
        to_table(spark, tmp_path, table)
        assert pairs(spark.table(table).select("k", "s")) == closed(upto)
    assert spark.table(table).dtypes == [("k", "string"), ("s", "bigint")]


def test_new_partitions_of_a_table_become_visible(
    spark: SparkSession, tmp_path: Path, table: str
) -> None:
    for upto in (10, 20):
        write_input(spark, tmp_path / "in", upto - 10)
        to_table(spark, tmp_path, table, format="json", partitionBy=["k"])
        assert pairs(spark.table(table).select("k", "s")) == closed(upto)
    shown = spark.sql(f"SHOW PARTITIONS {table}").collect()
    assert [row.partition for row in shown] == ["k=a", "k=b"]
    with pytest.raises(holdfast.InvalidArgument, match="partitioned by k, not by s"):
        to_table(spark, tmp_path, table, partitionBy="s")


def test_a_table_is_clustered_and_other_sinks_take_no_notice(
    spark: SparkSession, tmp_path: Path, table: str
) -> None:
    write_input(spark, tmp_path / "in", 0)
    described = []
    for kind in ("native", "ours"):
        stream = source(spark, tmp_path / "in")
        writer = windows(stream if kind == "native" else stateful(stream)).writeStream
        writer = writer.option("checkpointLocation", str(tmp_path / kind)).clusterBy("k", "s")
        writer.trigger(availableNow=True).toTable(f"{kind}_{table}").awaitTermination()
        shown = [tuple(row) for row in spark.sql(f"DESCRIBE EXTENDED {kind}_{table}").collect()]
        described.append(shown[: shown.index(("", "", ""))])
        spark.sql(f"DROP TABLE {kind}_{table}")
    assert described[1] == described[0]
    assert ("# Clustering Information", "", "") in described[0]
    writer = windows(stateful(source(spark, tmp_path / "in"))).writeStream.clusterBy(["k"])
    finish(writer.option("checkpointLocation", str(tmp_path / "files")), str(tmp_path / "out"))
    assert pairs(spark.read.parquet(str(tmp_path / "out"))) == closed(10)


def test_a_table_that_does_not_fit_is_refused(
    spark: SparkSession, tmp_path: Path, table: str
) -> None:
    write_input(spark, tmp_path / "in", 0)
    spark.sql(f"CREATE TABLE {table} (k string, s string) USING parquet")
    with pytest.raises(holdfast.InvalidArgument, match=r"s string, the stream gives .*s bigint"):
        to_table(spark, tmp_path, table)
    with pytest.raises(AnalysisException, match="different from the table"):
        to_table(spark, tmp_path, table, format="json")
    with pytest.raises(holdfast.InvalidArgument, match="foreachBatch"):
        to_table(spark, tmp_path, f"no_{table}", format="console")
    spark.range(1).createOrReplaceTempView(f"view_{table}")
    with pytest.raises(AnalysisException, match="Streaming into views"):
        to_table(spark, tmp_path, f"view_{table}")
    assert spark.table(table).count() == 0


# -- Spark's rules -----------------------------------------------------------------------------


Start = Callable[[Any, Path], Any]
REFUSED: dict[str, Start] = {
    "files in update mode": lambda s, p: counts(s).writeStream.outputMode("update")
    .option("checkpointLocation", p / "cp").start(str(p / "out"), format="parquet"),
    "files in complete mode": lambda s, p: counts(s).writeStream.outputMode("complete")
    .option("checkpointLocation", p / "cp").start(str(p / "out"), format="json"),
    "files without a checkpoint": lambda s, p: windows(s).writeStream.start(str(p / "out")),
    "append without a watermark": lambda s, p: counts(s).writeStream
    .option("checkpointLocation", p / "cp").start(str(p / "out")),
    "memory without a name": lambda s, p: counts(s).writeStream.outputMode("update")
    .format("memory").start(),
    "memory in append mode without a watermark": lambda s, p: counts(s).writeStream
    .format("memory").queryName("m").start(),
    "memory by partition": lambda s, p: windows(s).writeStream.partitionBy("k")
    .format("memory").queryName("m").start(),
    "foreachBatch by partition": lambda s, p: windows(s).writeStream.partitionBy("k")
    .foreachBatch(lambda frame, number: None).start(),
    "a partition column that is not there": lambda s, p: windows(s).writeStream.partitionBy("x")
    .option("checkpointLocation", p / "cp").start(str(p / "out")),
    "nothing but partition columns": lambda s, p: windows(s).writeStream.partitionBy("k", "s")
    .option("checkpointLocation", p / "cp").start(str(p / "out")),
    "a table in update mode": lambda s, p: counts(s).writeStream.outputMode("update")
    .option("checkpointLocation", p / "cp").toTable("refused", path=p / "t"),
    "a table without a checkpoint": lambda s, p: windows(s).writeStream
    .toTable("refused", path=p / "t"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_spark_refuses_is_refused_under_the_same_condition(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    stream = source(spark, tmp_path)
    with pytest.raises(AnalysisException) as native:
        REFUSED[name](stream, tmp_path / "native")
    spark.sql("DROP TABLE IF EXISTS refused")
    with pytest.raises(AnalysisException) as ours:
        REFUSED[name](stateful(stream), tmp_path / "ours")
    assert ours.value.getCondition() == native.value.getCondition()
    assert ours.value.getCondition() is not None
    assert not spark.catalog.tableExists("refused")


class OpenIsNoMethod:
    """What foreach refuses for another reason than a missing `process`."""

    open = 5

    def process(self, row: Row) -> None: ...


NO_CALL_OF_A_WRITER: dict[str, Callable[[Any], Any]] = {
    "a query that runs once, or not": lambda w: w.trigger(once=False),
    "availableNow, or not": lambda w: w.trigger(availableNow=False),
    "no trigger": lambda w: w.trigger(),
    "a trigger of None": lambda w: w.trigger(processingTime=None),
    "two triggers": lambda w: w.trigger(once=True, availableNow=True),
    "a trigger by a number": lambda w: w.trigger(processingTime=5),
    "a trigger of no length of time": lambda w: w.trigger(processingTime="soon"),
    "a trigger nobody has": lambda w: w.trigger(now=True),
    "foreach of an object": lambda w: w.foreach(object()),
    "foreach of None": lambda w: w.foreach(None),
    "foreach with an open that is no method": lambda w: w.foreach(OpenIsNoMethod()),
    "clusters of partitions": lambda w: w.partitionBy("k").clusterBy("s"),
    "partitions of clusters": lambda w: w.clusterBy("s").partitionBy("k"),
}


@pytest.mark.parametrize("name", NO_CALL_OF_A_WRITER)
def test_a_call_that_sparks_writer_refuses_is_refused_with_its_error(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    call, stream = NO_CALL_OF_A_WRITER[name], windows(source(spark, tmp_path))
    with pytest.raises(Exception) as native:  # noqa: PT011 - whichever Spark raises
        call(stream.writeStream)
    with pytest.raises(type(native.value)) as ours:
        call(windows(stateful(source(spark, tmp_path))).writeStream)
    assert type(ours.value) is type(native.value)
    assert str(ours.value) == str(native.value)


def test_what_foreach_batch_cannot_call_ends_the_query_as_in_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_input(spark, tmp_path / "in", 0)
    for stream in (source(spark, tmp_path / "in"), stateful(source(spark, tmp_path / "in"))):
        query = counts(stream).writeStream.outputMode("update").foreachBatch(None).start()
        with pytest.raises(StreamingQueryException, match="'NoneType' object is not callable"):
            query.processAllAvailable()
    writer = counts(stateful(source(spark, tmp_path / "in"))).writeStream.outputMode("update")
    with pytest.raises(holdfast.InvalidArgument, match=r"use \.foreachBatch\("):
        writer.format("foreachBatch").start()
    # The last word is the sink's, as in Spark.
    query = writer.foreachBatch(None).format("noop").trigger(availableNow=True).start()
    query.awaitTermination()


def test_memory_does_not_go_on_with_a_checkpoint_but_in_complete_mode(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_input(spark, tmp_path / "in", 0)
    stream = counts(stateful(source(spark, tmp_path / "in")))
    for mode, name in (("update", "m_update"), ("complete", "m_complete")):
        writer = stream.writeStream.outputMode(mode).format("memory").queryName(name)
        writer.option("checkpointLocation", tmp_path / mode)
        finish(writer)
        if mode == "complete":
            finish(writer)
            continue
        with pytest.raises(AnalysisException) as caught:
            finish(writer)
        assert caught.value.getCondition() == "_LEGACY_ERROR_TEMP_1299"


def test_kafka_without_its_package_is_refused_as_by_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    if "kafka" in spark.conf.get("spark.jars", ""):
        pytest.skip("this session has the package")
    for stream in (source(spark, tmp_path), stateful(source(spark, tmp_path))):
        writer = counts(stream).selectExpr("k AS value").writeStream.outputMode("update")
        with pytest.raises(AnalysisException) as caught:
            writer.option("checkpointLocation", tmp_path / "cp").format("kafka").start()
        assert caught.value.getCondition() == "KAFKA_DATA_SOURCE_NOT_ENABLED"


def test_unknown_sinks_and_missing_paths_are_refused_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = windows(stateful(source(spark, tmp_path)))
    writer = stream.writeStream.option("checkpointLocation", tmp_path / "cp")
    with pytest.raises(holdfast.InvalidArgument, match="'delta' is not supported: use foreachBa"):
        writer.format("delta").start()
    with pytest.raises(holdfast.InvalidArgument, match=r"orc sink needs a path"):
        writer.format("orc").start()
    assert not (tmp_path / "cp").exists()


# -- triggers, names, checkpoints --------------------------------------------------------------


@pytest.mark.parametrize("trigger", [{"once": True}, {"availableNow": True}])
def test_a_query_that_reads_what_is_there_ends_by_itself(
    spark: SparkSession, tmp_path: Path, trigger: dict[str, bool]
) -> None:
    write_input(spark, tmp_path / "in", 0)
    writer = counts(stateful(source(spark, tmp_path / "in"))).writeStream.outputMode("complete")
    query = writer.format("memory").queryName("ends").trigger(**trigger).start()
    query.awaitTermination()
    assert not query.isActive
    assert pairs(spark.table("ends")) == [("a", 5), ("b", 5)]


def test_a_processing_time_trigger_takes_what_comes(spark: SparkSession, tmp_path: Path) -> None:
    write_input(spark, tmp_path / "in", 0)
    writer = counts(stateful(source(spark, tmp_path / "in"))).writeStream.outputMode("complete")
    writer = writer.format("memory").queryName("paced").trigger(processingTime="100 milliseconds")
    query = writer.start()
    try:
        query.processAllAvailable()
        write_input(spark, tmp_path / "in", 10)
        query.processAllAvailable()
        assert pairs(spark.table("paced")) == [("a", 10), ("b", 10)]
        assert query.name == "paced"
        assert query.version == 2
    finally:
        query.stop()


@pytest.mark.parametrize("trigger", [{"continuous": "1 second"}, {"realTime": "5 minutes"}])
def test_other_triggers_are_refused_by_name(
    spark: SparkSession, tmp_path: Path, trigger: dict[str, str]
) -> None:
    writer = counts(stateful(source(spark, tmp_path))).writeStream
    with pytest.raises(holdfast.InvalidArgument, match=f"{next(iter(trigger))} is not supported"):
        writer.trigger(**trigger)


def test_a_temporary_checkpoint_goes_with_the_query(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    write_input(spark, tmp_path / "in", 0)
    seen: list[str] = []

    def look(frame: DataFrame, version: int) -> None:
        seen.extend(path.name for path in (tmp_path / "tmp").glob("temporary-*/*"))

    stream = counts(stateful(source(spark, tmp_path / "in"))).writeStream.outputMode("update")
    finish(stream.foreachBatch(look))
    assert {"holdfast", "metadata", "offsets"} <= set(seen)
    assert list((tmp_path / "tmp").glob("temporary-*")) == []


def test_a_failed_query_keeps_its_temporary_checkpoint_unless_told_otherwise(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    write_input(spark, tmp_path / "in", 0)

    def fail(frame: DataFrame, version: int) -> None:
        raise ValueError("no such thing")

    stream = counts(stateful(source(spark, tmp_path / "in"))).writeStream.outputMode("update")
    force = "spark.sql.streaming.forceDeleteTempCheckpointLocation"
    for forced, left in (("true", 0), ("false", 1)):
        spark.conf.set(force, forced)
        try:
            query = stream.foreachBatch(fail).start()
            with pytest.raises(Exception, match="no such thing"):
                query.awaitTermination()
            query.stop()
        finally:
            spark.conf.unset(force)
        assert len(list((tmp_path / "tmp").glob("temporary-*"))) == left


def test_the_sessions_checkpoint_folder_is_used_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_input(spark, tmp_path / "in", 0)
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "all"))
    try:
        stream = windows(stateful(source(spark, tmp_path / "in")))
        finish(stream.writeStream, str(tmp_path / "out"), queryName="mine")
        finish(stream.writeStream, str(tmp_path / "out2"))
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    names = {path.name for path in (tmp_path / "all").iterdir()}
    assert "mine" in names
    assert len(names) == 2
    assert uuid.UUID((names - {"mine"}).pop())
    assert (tmp_path / "all" / "mine" / "holdfast").is_dir()
