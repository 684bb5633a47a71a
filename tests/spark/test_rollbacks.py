"""A stream that was rolled back and run on is as if it had run from scratch on the same input."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from put_back import rows_of, write_rows
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from timed_totals import OUTPUT, TimedTotals

import holdfast
from holdfast import admin

pytestmark = pytest.mark.spark
TRIGGERS: list[dict[str, Any]] = [{"availableNow": True}, {"processingTime": "0 seconds"}]
Seen = list[tuple[int, list[tuple[Any, ...]]]]


def totals(rows: Any) -> Any:
    return rows.groupBy("k").agg(F.sum("v").alias("total"), F.count("v").alias("n"))


def windows(rows: Any) -> Any:
    late = rows.withWatermark("ts", "10 seconds")
    return late.groupBy(F.window("ts", "5 seconds"), "k").agg(F.sum("v").alias("total"))


def sessions(rows: Any) -> Any:
    late = rows.withWatermark("ts", "10 seconds")
    return late.groupBy(F.session_window("ts", "2 seconds"), "k").agg(F.sum("v").alias("total"))


def chain(rows: Any) -> Any:
    first = rows.withWatermark("ts", "5 seconds").dropDuplicates(["k", "v", "ts"])
    return first.groupBy(F.window("ts", "5 seconds")).agg(F.count("v").alias("n"))


def timed(rows: Any) -> Any:
    late = rows.withWatermark("ts", "5 seconds")
    return late.groupBy("k").transformWithState(
        TimedTotals(), OUTPUT, outputMode="append", timeMode="eventTime"
    )


def run(
    spark: SparkSession, folder: Path, made: Any, mode: str, seen: Seen, **trigger: Any
) -> None:
    """Run the query of a folder on all its files, one a batch."""

    def note(batch: DataFrame, number: int) -> None:
        rows = [tuple(map(str, row)) for row in batch.collect()]
        seen.append((number, sorted(rows)))

    query = (
        made(rows_of(spark, folder / "in"))
        .writeStream.foreachBatch(note)
        .outputMode(mode)
        .option("checkpointLocation", str(folder / "cp"))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )
    if "processingTime" in trigger:
        query.processAllAvailable()
        query.stop()
    query.awaitTermination()


def state_of(folder: Path) -> list[tuple[Any, ...]]:
    newest = holdfast.reading.open_root(folder / "cp").versions[-1]
    return state_at(folder, newest)


def version_after(folder: Path, batch: int) -> int:
    """The first version of a batch."""
    for info in reversed(holdfast.reading.open_root(folder / "cp").history()):
        details = holdfast.reading.open_root(folder / "cp").version(info.version)
        if details.batch is not None and details.batch["id"] == batch:
            return info.version
    raise AssertionError(f"batch {batch} has no version")


@pytest.mark.parametrize(
    "trigger",
    [{"availableNow": True}, {"processingTime": "0 seconds"}],
    ids=["available", "default"],
)
@pytest.mark.parametrize(
    ("made", "mode"),
    [
        (totals, "update"),
        (windows, "append"),
        (sessions, "append"),
        (chain, "append"),
        (timed, "append"),
    ],
)
def test_a_stream_that_was_rolled_back_ends_as_one_that_ran_from_scratch(
    spark: SparkSession, tmp_path: Path, made: Any, mode: str, trigger: dict[str, Any]
) -> None:
    folder, scratch = tmp_path / "a stream", tmp_path / "scratch"
    for number in range(6):
        write_rows(folder / "in", number)
    seen: Seen = []
    run(spark, folder, made, mode, seen, **trigger)
    target = version_after(folder, 2)
    before = state_at(folder, target)
    last = holdfast.reading.open_root(folder / "cp").manifest(target).numbering["last"]

    plan = admin.rollback(folder / "cp", target, reason="a bad deploy")
    assert plan.batches == (3, 4, 5)
    [source] = plan.inputs
    assert (source.standing, source.files) == ("there", 3)
    result = plan.run()
    assert state_of(folder) == before
    assert holdfast.reading.open_root(folder / "cp").versions[-1] == result.version

    write_rows(folder / "in", 6)
    again: Seen = []
    run(spark, folder, made, mode, again, **trigger)
    for number in range(7):
        write_rows(scratch / "in", number)
    fresh: Seen = []
    run(spark, scratch, made, mode, fresh, **trigger)
    if mode == "append":
        run(spark, folder, made, mode, again, **trigger)
        run(spark, scratch, made, mode, fresh, **trigger)
    assert state_of(folder) == state_of(scratch)
    numbers = [number for number, _ in again]
    assert min(numbers) > max(number for number, _ in seen)
    assert len(set(numbers)) == len(numbers)
    if mode == "append":
        kept = rows_in(seen, last) + rows_in(again)
        assert kept == rows_in(fresh)


def rows_in(seen: Seen, upto: int | None = None) -> Counter[tuple[Any, ...]]:
    """The rows of some batches, but for those that a processor puts out once for each batch."""
    batches = [rows for number, rows in seen if upto is None or number <= upto]
    return Counter(row for rows in batches for row in rows if row[1] != "total")


def test_an_idempotent_writer_that_skips_batches_it_has_seen_misses_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number in range(5):
        write_rows(tmp_path / "in", number)
    stored: dict[str, int] = {}
    newest = -1

    def upsert(batch: DataFrame, number: int) -> None:
        nonlocal newest
        if number > newest:
            stored.update({row.k: row.total for row in batch.collect()})
            newest = number

    def run_on() -> None:
        totals(rows_of(spark, tmp_path / "in")).writeStream.foreachBatch(upsert).outputMode(
            "update"
        ).option("checkpointLocation", str(tmp_path / "cp")).trigger(
            availableNow=True
        ).start().awaitTermination()

    run_on()
    admin.rollback(tmp_path / "cp", 2).run()
    (tmp_path / "in" / "4.json").unlink()
    with pytest.raises(holdfast.InvalidArgument, match="is the newest one"):
        admin.rollback(tmp_path / "cp", 6)
    write_rows(tmp_path / "in", 4)
    write_rows(tmp_path / "in", 5)
    run_on()
    expected = {key: sum(v for v in range(60) if "ab"[v % 2] == key) for key in "ab"}
    assert stored == expected


def test_a_driver_that_runs_stops_with_a_conflict_and_the_next_one_continues(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number in range(4):
        write_rows(tmp_path / "in", number)
    seen: Seen = []

    def note(batch: DataFrame, number: int) -> None:
        seen.append((number, [tuple(row) for row in batch.collect()]))

    def start() -> Any:
        writer = totals(rows_of(spark, tmp_path / "in")).writeStream.foreachBatch(note)
        return (
            writer.outputMode("update").option("checkpointLocation", str(tmp_path / "cp")).start()
        )

    query = start()
    query.processAllAvailable()
    result = admin.rollback(tmp_path / "cp", 2).run()
    write_rows(tmp_path / "in", 4)
    with pytest.raises(holdfast.Conflict, match="holdfast rollback"):
        query.awaitTermination()
    assert holdfast.read(tmp_path / "cp").version == result.version
    again = start()
    again.processAllAvailable()
    again.stop()
    state = {
        row["k"]: row["total"] for row in holdfast.read(tmp_path / "cp").to_arrow().to_pylist()
    }
    assert state == {key: sum(v for v in range(50) if "ab"[v % 2] == key) for key in "ab"}
    numbers = [number for number, _ in seen]
    assert numbers == sorted(set(numbers))


def state_at(folder: Path, version: int) -> list[tuple[Any, ...]]:
    """The rows of every store at a version. Times by the clock, such as those of TTL, differ."""
    root = holdfast.reading.open_root(folder / "cp")
    found = []
    for store in root.version(version).stores:
        rows = root.store(store.operator, store.store).scan(version).to_pylist()
        for row in rows:
            cells = {name: cell for name, cell in row.items() if "expir" not in name.lower()}
            found.append((str(store.operator), store.store, *map(str, cells.values())))
    return sorted(found)


def test_each_of_several_sources_is_named_as_its_offsets_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    for folder in ("b", "a"):
        for number in range(2):
            write_rows(tmp_path / folder, number)
    both = rows_of(spark, tmp_path / "b").union(rows_of(spark, tmp_path / "a"))
    query = totals(both).writeStream.outputMode("update").format("noop")
    query = query.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True)
    query.start().awaitTermination()
    (tmp_path / "a" / "1.json").unlink()
    found = {each.source: each for each in admin.rollback(tmp_path / "cp", 0).inputs}
    assert len(found) == 2
    for source, each in found.items():
        log = (tmp_path / "cp" / "sources" / source / "0").read_text()
        folder = "a" if "/a/" in log else "b"
        assert each.kind.endswith(f"/{folder}]"), (source, each.kind)
        assert each.standing == ("gone" if folder == "a" else "there")
