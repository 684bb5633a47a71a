"""Processors of DataFrames: what is theirs alone; see test_custom_differential.py for the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from custom_outcomes import settings
from native import SCHEMA, run, write_batches
from pandas_processors import OUTPUT, Dtypes, Giving, Seeded, Sizes, Totals
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import holdfast
from holdfast import stateful

pytestmark = pytest.mark.spark


def test_state_to_start_with_comes_as_dataframes(spark: SparkSession, tmp_path: Path) -> None:
    seeds = [("a", 1000.0), ("a", 2000.0), ("z", 5000.0)]
    start = spark.createDataFrame(seeds, "id string, total double")

    def pipeline(frame: Any) -> Any:
        return frame.groupBy("id").transformWithStateInPandas(
            Seeded(), OUTPUT, "Update", "None", start.groupBy("id")
        )

    write_batches(tmp_path / "in", seed=5, batches=2)
    run(spark, tmp_path / "in", tmp_path / "cp", pipeline, "update", native=False)
    state = holdfast.read(tmp_path / "cp", store="state")
    assert state.get("z") == (100, 5000.0)
    assert state.at(1).get("a") == (200, 3000.0)


@pytest.mark.parametrize("setting", [("maxRecordsPerBatch", "2"), ("maxBytesPerBatch", "1")])
def test_a_dataframe_has_as_many_rows_as_in_spark(
    spark: SparkSession, setting: tuple[str, str]
) -> None:
    rows = spark.createDataFrame([(key, n) for key in "ab" for n in range(5)], "id string, n long")

    def result(frame: Any) -> list[Any]:
        grouped, output = frame.groupBy("id"), "id string, sizes array<long>"
        processed = grouped.transformWithStateInPandas(Sizes(), output, "Update", "None")
        return sorted(processed.collect())

    name, value = setting
    with settings(spark, {f"spark.sql.execution.arrow.{name}": value}):
        assert result(stateful(rows)) == result(rows)


def test_the_nulls_of_other_keys_do_not_make_the_integers_of_a_key_floats(
    spark: SparkSession,
) -> None:
    cells = [("a", 2**60 + 1, True), ("b", 1, None), ("b", None, True)]
    rows = spark.createDataFrame(cells, "id string, v long, flag boolean")

    def result(frame: Any) -> dict[str, str]:
        grouped, output = frame.groupBy("id"), "id string, what string"
        processed = grouped.transformWithStateInPandas(Dtypes(), output, "Update", "None")
        return dict(map(tuple, processed.collect()))

    with settings(spark, {"spark.sql.shuffle.partitions": "1"}):  # one Arrow batch
        assert result(stateful(rows)) == {"a": "int64 bool", "b": "float64 object"}
        assert result(rows) == {"a": "float64 bool", "b": "float64 object"}


def test_a_stream_runs_where_the_rows_of_a_batch_have_no_limit(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_batches(tmp_path / "in", seed=5, batches=1)

    def pipeline(frame: Any) -> Any:
        grouped = frame.groupBy("id")
        return grouped.transformWithStateInPandas(Totals(), OUTPUT, "Update", "None")

    limited = run(spark, tmp_path / "in", tmp_path / "a", pipeline, "update", native=False)
    with settings(spark, {"spark.sql.execution.arrow.maxRecordsPerBatch": "-1"}):
        free = run(spark, tmp_path / "in", tmp_path / "b", pipeline, "update", native=False)
    assert free == limited
    assert free


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("secret", "returned str, not a pandas.DataFrame"),
        (
            pd.DataFrame({"id": ["secret"], "what": ["a"], "n": [1]}),
            "without the output's column 'total'",
        ),
        (pd.DataFrame([["secret", "a", 1]]), "3 columns without names"),
        (
            pd.DataFrame({"id": ["a"], "what": ["a"], "n": ["secret"], "total": [1.0]}),
            "'n' that the processor returned is object in pandas and cannot be converted to int64",
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
