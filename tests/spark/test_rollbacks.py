"""A stream that was rolled back and run on is as if it had run from scratch on the same input."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from put_back import rows_of, write_rows
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import admin

pytestmark = pytest.mark.spark
Seen = list[tuple[int, list[tuple[Any, ...]]]]


def totals(rows: Any) -> Any:
    return rows.groupBy("k").agg(F.sum("v").alias("total"), F.count("v").alias("n"))


def windows(rows: Any) -> Any:
    late = rows.withWatermark("ts", "10 seconds")
    return late.groupBy(F.window("ts", "5 seconds"), "k").agg(F.sum("v").alias("total"))


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
    table = holdfast.read(folder / "cp").to_arrow()
    return sorted(tuple(map(str, row.values())) for row in table.to_pylist())


def version_after(folder: Path, batch: int) -> int:
    """The first version of a batch."""
    for info in reversed(holdfast.reading.open_root(folder / "cp").history()):
        details = holdfast.reading.open_root(folder / "cp").version(info.version)
        if details.batch is not None and details.batch["id"] == batch:
            return info.version
    raise AssertionError(f"batch {batch} has no version")


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"processingTime": "0 seconds"}])
@pytest.mark.parametrize(("made", "mode"), [(totals, "update"), (windows, "append")])
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
    assert holdfast.read(folder / "cp").version == result.version

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
        kept = Counter(row for number, rows in seen if number <= last for row in rows)
        kept += Counter(row for _, rows in again for row in rows)
        assert kept == Counter(row for _, rows in fresh for row in rows)


def state_at(folder: Path, version: int) -> list[tuple[Any, ...]]:
    table = holdfast.read(folder / "cp").at(version).to_arrow()
    return sorted(tuple(map(str, row.values())) for row in table.to_pylist())
