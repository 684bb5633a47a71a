"""Functions with a GroupState; see test_custom_differential.py for what they give in Spark."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import pytest
from group_functions import OUTPUT, STATE, by_clock, mortal, whole_frame, wrong_state
from native import SCHEMA, run, write_batches
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession

import holdfast
from holdfast import stateful

pytestmark = pytest.mark.spark


def test_a_timeout_by_the_clock_comes_without_data(spark: SparkSession, tmp_path: Path) -> None:
    outputs: list[Row] = []
    write_batches(tmp_path / "in", seed=3, batches=1)
    rows = stateful(spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))).groupBy("id")
    query = (
        rows.applyInPandasWithState(by_clock, OUTPUT, STATE, "Update", "ProcessingTimeTimeout")
        .writeStream.outputMode("update")
        .foreachBatch(lambda frame, version: outputs.extend(frame.collect()))
        .option("checkpointLocation", str(tmp_path / "cp"))
        .start()
    )
    try:
        end = time.monotonic() + 240
        while not any(row.what == "over" for row in outputs) and time.monotonic() < end:
            time.sleep(0.2)
    finally:
        query.stop()
    waiting = [row.id for row in outputs if row.what == "waits"]
    assert waiting
    assert sorted(map(repr, waiting)) == sorted(repr(r.id) for r in outputs if r.what == "over")
    assert holdfast.read(tmp_path / "cp").to_arrow().num_rows == 0


def test_a_worker_that_dies_loses_and_repeats_nothing(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path / "in", seed=4, batches=4)
    function = functools.partial(mortal, marker=str(tmp_path / "died"))

    def pipeline(frame: Any) -> Any:
        return frame.groupBy("id").applyInPandasWithState(
            function, OUTPUT, STATE, "Append", "NoTimeout"
        )

    def start() -> None:
        run(spark, tmp_path / "in", tmp_path / "cp", pipeline, "append", native=False)

    with pytest.raises(StreamingQueryException, match=r"crashed|exited|EOF"):
        start()
    assert (tmp_path / "died").exists()
    start()
    held = holdfast.read(tmp_path / "cp").to_arrow().to_pylist()
    counted = {row["id"]: row["state"]["n"] for row in held}
    rows = spark.read.schema(SCHEMA).parquet(str(tmp_path / "in")).groupBy("id").count().collect()
    assert counted == {row.id: row["count"] for row in rows}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (whole_frame, "returned DataFrame. It has to return an iterator"),
        (wrong_state, "column 'state': takes long, not str"),
    ],
)
def test_what_a_function_may_not_give_is_refused_without_telling_a_value(
    spark: SparkSession, tmp_path: Path, function: Any, message: str
) -> None:
    write_batches(tmp_path / "in", seed=1, batches=1)

    def pipeline(frame: Any) -> Any:
        grouped = frame.groupBy("id")
        return grouped.applyInPandasWithState(function, OUTPUT, STATE, "Update", "NoTimeout")

    with pytest.raises(StreamingQueryException, match=message) as caught:
        run(spark, tmp_path / "in", tmp_path / "cp", pipeline, "update", native=False)
    assert "secret" not in str(caught.value)
    notes = "\n".join(caught.value.__notes__)
    assert "key with the hash" in notes
    assert "secret" not in notes


def test_a_timeout_that_is_none_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path, seed=1, batches=1)
    grouped = stateful(spark.readStream.schema(SCHEMA).parquet(str(tmp_path))).groupBy("id")
    with pytest.raises(holdfast.InvalidArgument, match="one of NoTimeout"):
        grouped.applyInPandasWithState(by_clock, OUTPUT, STATE, "Update", "Never")
