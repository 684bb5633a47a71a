"""The same processor of DataFrames gives the same through Spark and through Holdfast."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from native import SCHEMA, run, write_batches
from pandas_processors import CASES, OUTPUT, Giving, Seeded, Totals
from processor_state import held, rocksdb
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import holdfast
from holdfast import stateful

__all__ = ["rocksdb"]
pytestmark = pytest.mark.spark


@pytest.mark.parametrize("case", CASES)
def test_a_processor_of_dataframes_gives_what_it_gives_in_spark_across_a_restart(
    spark: SparkSession, tmp_path: Path, rocksdb: None, case: str
) -> None:
    processor, time_mode, variables = CASES[case]

    def pipeline(frame: Any) -> Any:
        rows = frame.filter("ts is not null").withWatermark("ts", "1 minute")
        grouped = rows.selectExpr("*", "float(x) small", "v > 0 positive").groupBy("id")
        return grouped.transformWithStateInPandas(processor(), OUTPUT, "Update", time_mode)

    outputs: dict[bool, list[Any]] = {True: [], False: []}
    for batches in (2, 4):
        write_batches(tmp_path / "in", seed=11, batches=batches)
        for native, found in outputs.items():
            checkpoint = tmp_path / f"cp{native}"
            found += run(spark, tmp_path / "in", checkpoint, pipeline, "update", native=native)
    assert outputs[False] == outputs[True]
    assert outputs[True]
    states = [held(spark, tmp_path / f"cp{native}", variables, native=native) for native in outputs]
    assert states[0] == states[1]


def test_state_to_start_with_comes_as_dataframes(
    spark: SparkSession, tmp_path: Path, rocksdb: None
) -> None:
    seeds = [("a", 1000.0), ("a", 2000.0), ("z", 5000.0)]
    start = spark.createDataFrame(seeds, "id string, total double")

    def pipeline(frame: Any) -> Any:
        return frame.groupBy("id").transformWithStateInPandas(
            Seeded(), OUTPUT, "Update", "None", start.groupBy("id")
        )

    write_batches(tmp_path / "in", seed=5, batches=2)
    outputs = [
        run(spark, tmp_path / "in", tmp_path / f"cp{native}", pipeline, "update", native=native)
        for native in (True, False)
    ]
    assert outputs[0] == outputs[1]
    assert holdfast.read(tmp_path / "cpFalse", store="state").get("z") == (100, 5000.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("secret", "gave str, not a pandas.DataFrame"),
        (pd.DataFrame({"id": ["secret"], "what": ["a"], "n": [1]}), "without the column 'total'"),
        (pd.DataFrame([["secret", "a", 1]]), "3 columns without names"),
        (
            pd.DataFrame({"id": ["a"], "what": ["a"], "n": ["secret"], "total": [1.0]}),
            "'n' of what the processor gave is object in pandas and cannot be converted to int64",
        ),
    ],
)
def test_output_that_does_not_fit_is_refused_without_telling_a_value(
    spark: SparkSession, tmp_path: Path, given: Any, message: str
) -> None:
    write_batches(tmp_path / "in", seed=1, batches=1)

    def pipeline(frame: Any) -> Any:
        grouped = frame.groupBy("id")
        return grouped.transformWithStateInPandas(Giving(given), OUTPUT, "Update", "None")

    with pytest.raises(StreamingQueryException) as caught:
        run(spark, tmp_path / "in", tmp_path / "cp", pipeline, "update", native=False)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_without_pandas_the_extra_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_batches(tmp_path, seed=1, batches=1)
    grouped = stateful(spark.readStream.schema(SCHEMA).parquet(str(tmp_path))).groupBy("id")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(holdfast.InvalidArgument, match=r"holdfast\[pandas\]"):
        grouped.transformWithStateInPandas(Totals(), OUTPUT, "Update", "None")
