"""A stream goes on from a copy of its state as if nothing had happened."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from native import SCHEMA, write_batches
from processors import OUTPUT, Totals
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import holdfast
from holdfast import reading, stateful
from holdfast.cli import app

pytestmark = pytest.mark.spark
# Workers cannot import the modules of tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
Delivered = list[tuple[int, list[Any]]]
Pipeline = Callable[[Any], Any]


def counted(rows: Any) -> Any:
    return rows.groupBy("id").count()


def totalled(rows: Any) -> Any:
    rows = rows.where("id is not null and v is not null")
    return rows.groupBy("id").transformWithState(Totals(), OUTPUT, "Update", "None")


def run(
    spark: SparkSession,
    source: Path,
    pipeline: Pipeline,
    checkpoint: Path,
    fails_at: int | None = None,
    **options: str,
) -> Delivered:
    """Take in what is there, one file a batch; what was delivered, by batch id."""
    delivered: Delivered = []

    def deliver(rows: Any, batch_id: int) -> None:
        if batch_id == fails_at:
            raise OSError("the sink is full")
        delivered.append((batch_id, sorted(map(repr, rows.collect()))))

    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").parquet(str(source))
    query = (
        pipeline(stateful(rows))
        .writeStream.outputMode("update")
        .foreachBatch(deliver)
        .options(checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return delivered


def copy(source: Path, target: Path, *more: str) -> None:
    done = CliRunner().invoke(app, ["copy", str(source), str(target), "--yes", *more])
    assert done.exit_code == 0, done.output


def rows_at(location: Path, version: int) -> list[str]:
    store = reading.open_root(location).store()
    return sorted(map(repr, store.scan(version).to_pylist()))


def test_a_stream_goes_on_from_a_copy_as_if_it_had_not_been_moved(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "cp"
    second, third = tmp_path / "second", tmp_path / "elsewhere" / "third"
    write_batches(source, seed=7, batches=2)
    delivered = run(spark, source, counted, checkpoint)
    copy(checkpoint, second)
    write_batches(source, seed=7, batches=3)
    delivered += run(spark, source, counted, checkpoint, stateLocation=str(second))
    copy(second, third)
    write_batches(source, seed=7, batches=4)
    delivered += run(spark, source, counted, checkpoint, stateLocation=str(third))

    whole = tmp_path / "whole"
    assert delivered == run(spark, source, counted, whole)
    assert reading.open_root(third).versions == reading.open_root(whole).versions
    for version in range(5):
        assert rows_at(third, version) == rows_at(whole, version)
    assert not (third / "place").exists()
    assert reading.verify(reading.open_root(third)).intact

    write_batches(source, seed=7, batches=5)
    for left in ({}, {"stateLocation": str(second)}):
        with pytest.raises(StreamingQueryException, match="do not belong together"):
            run(spark, source, counted, checkpoint, **left)
    assert holdfast.read(checkpoint).version == 2
    assert run(spark, source, counted, checkpoint, stateLocation=str(third))[-1][0] == 4


def test_a_stream_whose_driver_died_goes_on_from_a_copy_of_its_newest_version(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, checkpoint, moved = tmp_path / "in", tmp_path / "cp", tmp_path / "moved"
    write_batches(source, seed=9, batches=2)
    delivered = run(spark, source, counted, checkpoint)
    for note in (checkpoint / "holdfast" / "delivered").iterdir():
        note.unlink()  # the dead leave none
    copy(checkpoint, moved, "--versions", "newest")
    write_batches(source, seed=9, batches=3)
    again = run(spark, source, counted, checkpoint, stateLocation=str(moved))
    assert [batch_id for batch_id, _ in again] == [1, 2]
    assert again[0] == delivered[-1]
    assert [delivered[0], *again] == run(spark, source, counted, tmp_path / "whole")


def test_what_waits_for_delivery_is_delivered_from_the_copy(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, checkpoint, moved = tmp_path / "in", tmp_path / "cp", tmp_path / "moved"
    write_batches(source, seed=8, batches=2)
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        run(spark, source, totalled, checkpoint, fails_at=1)
    assert list((checkpoint / "holdfast" / "outbox").iterdir())
    copy(checkpoint, moved)
    write_batches(source, seed=8, batches=3)
    delivered = run(spark, source, totalled, checkpoint, stateLocation=str(moved))
    assert delivered == run(spark, source, totalled, tmp_path / "whole")[1:]
    assert [batch_id for batch_id, _ in delivered] == [1, 2]
