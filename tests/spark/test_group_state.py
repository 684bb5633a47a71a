"""The same function gives the same through Spark's applyInPandasWithState and through Holdfast."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from group_functions import CASES, OUTPUT, STATE, by_clock, whole_frame, wrong_state
from native import SCHEMA, run, write_batches
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession

import holdfast
from holdfast import stateful

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("case", CASES)
def test_a_function_gives_what_it_gives_in_spark_across_a_restart(
    spark: SparkSession, tmp_path: Path, case: str
) -> None:
    function, timeout, has_watermark = CASES[case]

    def pipeline(frame: Any) -> Any:
        rows = frame.filter("ts is not null")
        rows = rows.withWatermark("ts", "1 minute") if has_watermark else rows
        rows = rows.selectExpr("*", "int(v) narrow", "float(x) small", "v > 0 positive")
        grouped = rows.groupBy("id")
        return grouped.applyInPandasWithState(function, OUTPUT, STATE, "Update", timeout)

    outputs: dict[bool, list[Any]] = {True: [], False: []}
    for batches in (2, 4):
        write_batches(tmp_path / "in", seed=11, batches=batches)
        for native, found in outputs.items():
            checkpoint = tmp_path / f"cp{native}"
            found += run(spark, tmp_path / "in", checkpoint, pipeline, "update", native=native)
    assert outputs[False] == outputs[True]
    assert outputs[True]
    states = [_held(spark, tmp_path / f"cp{native}", native=native) for native in outputs]
    assert states[0] == states[1]


def _held(spark: SparkSession, checkpoint: Path, *, native: bool) -> list[str]:
    """What is held for each key: its state, and its timeout if it has one."""
    rows = spark.read.format("statestore" if native else "holdfast").load(str(checkpoint)).collect()
    found = []
    for row in rows:
        known = row.value.asDict()
        state, moment = known.get("groupState", known.get("state")), known.get("timeoutTimestamp")
        if not native:
            moment = known["timeout_ms"]
        cells = None if state is None else tuple(state)
        found.append(repr((tuple(row.key), cells, None if moment == -1 else moment)))
    return sorted(found)


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
        end = time.monotonic() + 60
        while not any(row.what == "over" for row in outputs) and time.monotonic() < end:
            time.sleep(0.2)
    finally:
        query.stop()
    waiting = [row.id for row in outputs if row.what == "waits"]
    assert waiting
    assert sorted(map(repr, waiting)) == sorted(repr(r.id) for r in outputs if r.what == "over")
    assert holdfast.read(tmp_path / "cp").to_arrow().num_rows == 0


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
    assert "key with the hash" in str(caught.value)


def test_a_timeout_that_is_none_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path, seed=1, batches=1)
    grouped = stateful(spark.readStream.schema(SCHEMA).parquet(str(tmp_path))).groupBy("id")
    with pytest.raises(holdfast.InvalidArgument, match="one of NoTimeout"):
        grouped.applyInPandasWithState(by_clock, OUTPUT, STATE, "Update", "Never")
