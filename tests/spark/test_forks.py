"""A fork of a stream ends as a run from scratch does, and the original never sees it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from processors import OUTPUT
from put_back import SCHEMA, write_rows
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import holdfast
from holdfast import admin, stateful

pytestmark = pytest.mark.spark
# Workers cannot import the modules of tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
Rows = Counter[tuple[str, ...]]
HOUR_MS = 3_600_000


def totals(rows: Any) -> Any:
    return rows.groupBy("k").agg(F.sum("v").alias("total"), F.count("v").alias("n"))


def windows(rows: Any) -> Any:
    late = rows.withWatermark("ts", "10 seconds")
    return late.groupBy(F.window("ts", "5 seconds"), "k").agg(F.sum("v").alias("total"))


class Timed(StatefulProcessor):
    """A sum for each key, put out and cleared once the watermark is past the last row."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total = self.total.get() or (0, 0)
        last = 0.0
        for row in rows:
            n, total, last = n + 1, total + row.v, max(last, row.ts.timestamp())
        self.total.update((n, total))
        for moment in list(self.handle.listTimers()):
            self.handle.deleteTimer(moment)
        self.handle.registerTimer(int(last * 1000) + 1)
        yield Row(id=key[0], what="so far", n=n, total=total)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        n, total = self.total.get()
        self.total.clear()
        yield Row(id=key[0], what=str(expiredTimerInfo.getExpiryTimeInMs()), n=n, total=total)


class Lasting(StatefulProcessor):
    """Sums with a time to live, and a timer by the clock; neither ends while a test runs."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "total long", HOUR_MS)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (total,) = self.total.get() or (0,)
        total += sum(row.v for row in rows)
        self.total.update((total,))
        n = len(list(self.handle.listTimers()))
        if not n:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + HOUR_MS)
        yield Row(id=key[0], what="so far", n=n, total=total)


def timed(rows: Any) -> Any:
    keyed = rows.withColumn("id", F.expr("k || v % 3")).withWatermark("ts", "3 seconds")
    return keyed.groupBy("id").transformWithState(Timed(), OUTPUT, "Update", "EventTime")


def lasting(rows: Any) -> Any:
    return rows.groupBy("k").transformWithState(Lasting(), OUTPUT, "Update", "ProcessingTime")


def start(
    spark: SparkSession,
    source: Path,
    made: Callable[[Any], Any],
    checkpoint: Path,
    seen: list[tuple[int, Rows]],
    files: int = 1,
    **trigger: Any,
) -> Any:
    def note(batch: DataFrame, number: int) -> None:
        seen.append((number, Counter(tuple(map(str, row)) for row in batch.collect())))

    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", str(files))
    return (
        made(stateful(rows.json(str(source))))
        .writeStream.foreachBatch(note)
        .outputMode("append" if made is windows else "update")
        .option("checkpointLocation", str(checkpoint))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )


def run(*where: Any, **how: Any) -> list[tuple[int, Rows]]:
    """Run a query on what is there: what it has delivered, with the batch ids."""
    seen: list[tuple[int, Rows]] = []
    query = start(*where, seen, **how)
    if "processingTime" in how:
        query.processAllAvailable()
        query.stop()
    query.awaitTermination()
    return seen


def rows_in(seen: list[tuple[int, Rows]]) -> Rows:
    return sum((rows for _, rows in seen), Counter())


def state_of(checkpoint: Path, version: int | None = None) -> dict[str, list[str]]:
    """Every store's rows; of moments by the clock only that they are there."""
    found = {}
    root = holdfast.reading.open_root(checkpoint)
    for info in root.info().stores:
        state = holdfast.read(checkpoint, operator=info.operator, store=info.store)
        table = (state if version is None else state.at(version)).to_arrow()
        by_clock = [n for n in table.column_names if "expir" in n or info.store == "$timers"]
        rows = table.drop_columns([n for n in by_clock if n in table.column_names]).to_pylist()
        found[f"{info.operator}/{info.store}"] = sorted(map(str, rows))
    return found


CASES = [
    (windows, {"availableNow": True}),
    (timed, {"processingTime": "0 seconds"}),
    (lasting, {"availableNow": True}),
]


@pytest.mark.parametrize(("made", "trigger"), CASES)
def test_a_fork_goes_on_as_a_run_from_scratch_does_and_so_does_the_original(
    spark: SparkSession, tmp_path: Path, made: Callable[[Any], Any], trigger: dict[str, Any]
) -> None:
    source, scratch_source = tmp_path / "in", tmp_path / "scratch in"
    cp, new, scratch = tmp_path / "cp", tmp_path / "a fork", tmp_path / "scratch"
    original = partial(run, spark, source, made, cp, **trigger)
    for number in range(2):
        write_rows(source, number)
        write_rows(scratch_source, number)
    seen = original()
    version = newest(cp)
    fresh = run(spark, scratch_source, made, scratch, **trigger)
    assert rows_in(seen) == rows_in(fresh)
    for number in range(2, 5):
        write_rows(source, number)
        write_rows(scratch_source, number)
    seen += original()
    later = newest(cp)

    plan = admin.fork(cp, new, at=version)
    assert [each.files for each in plan.inputs] == [3]
    query_id = plan.run().detail["query_id"]
    assert query_id in (new / "metadata").read_text()
    forked = run(spark, source, made, new, **trigger)
    fresh = run(spark, scratch_source, made, scratch, files=3, **trigger)
    assert rows_in(forked) == rows_in(fresh)
    assert state_of(new) == state_of(scratch)
    before = [number for number, _ in seen if number <= last_number(cp, version)]
    assert min(number for number, _ in forked) == max(before) + 1
    assert newest(cp) == later

    for number in range(5, 7):
        write_rows(source, number)
        write_rows(scratch_source, number)
    seen += original()
    after = newest(new)
    forked = run(spark, source, made, new, **trigger)
    fresh = run(spark, scratch_source, made, scratch, **trigger)
    assert rows_in(forked) == rows_in(fresh)
    assert state_of(new) == state_of(scratch)
    assert newest(new) > after
    numbers = [number for number, _ in seen]
    assert numbers == sorted(set(numbers))
    # In append mode the watermark of the two has moved in other steps, to the same end.
    assert state_of(cp) == state_of(scratch)


def newest(checkpoint: Path) -> int:
    return holdfast.reading.open_root(checkpoint).versions[-1]


def last_number(checkpoint: Path, version: int) -> int:
    return holdfast.reading.open_root(checkpoint).manifest(version).numbering["last"]


def test_a_stream_is_forked_while_it_runs_and_both_run_beside_each_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, cp, new = tmp_path / "in", tmp_path / "cp", tmp_path / "fork"
    trigger = {"processingTime": "0 seconds"}
    for number in range(3):
        write_rows(source, number)
    ours: list[tuple[int, Rows]] = []
    theirs: list[tuple[int, Rows]] = []
    query = start(spark, source, totals, cp, ours, **trigger)
    try:
        query.processAllAvailable()
        made = admin.fork(cp, new, at=2, reason="the fix").run()
        forked = start(spark, source, totals, new, theirs, **trigger)
        try:
            assert str(forked.id) == made.detail["query_id"] != str(query.id)
            for number in range(3, 5):
                write_rows(source, number)
                query.processAllAvailable()
                forked.processAllAvailable()
        finally:
            forked.stop()
    finally:
        query.stop()
    query.awaitTermination()
    expected = {}
    for v in range(50):
        n, total = expected.get("ab"[v % 2], (0, 0))
        expected["ab"[v % 2]] = n + 1, total + v
    for place in (cp, new):
        found = {
            row["k"]: (row["n"], row["total"]) for row in holdfast.read(place).scan().to_pylist()
        }
        assert found == expected
    assert [number for number, _ in ours] == list(range(5))
    assert theirs[0][0] == 2
    assert holdfast.reading.open_root(cp).tags == {}


def test_the_newest_version_that_was_not_delivered_is_left_to_the_original(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, cp, new = tmp_path / "in", tmp_path / "cp", tmp_path / "fork"
    write_rows(source, 0)
    first = run(spark, source, totals, cp)
    for path in (*(cp / "holdfast" / "delivered").iterdir(), *(cp / "commits").iterdir()):
        path.unlink()
    plan = admin.fork(cp, new)
    assert not plan.is_delivered
    plan.run()
    write_rows(source, 1)
    assert [number for number, _ in run(spark, source, totals, new)] == [1]
    again = run(spark, source, totals, cp)
    assert again[0] == first[0]
    assert [number for number, _ in again] == [0, 1]


def test_a_fork_before_the_first_batch_takes_all_input(spark: SparkSession, tmp_path: Path) -> None:
    source, cp, new = tmp_path / "in", tmp_path / "cp", tmp_path / "fork"
    for number in range(3):
        write_rows(source, number)
    run(spark, source, totals, cp)
    admin.fork(cp, new, at=0).run()
    assert next(number for number, _ in run(spark, source, totals, new)) == 0
    assert state_of(new) == state_of(cp)
