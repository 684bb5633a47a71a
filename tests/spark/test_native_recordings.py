"""What Spark's own streaming gave is replayed, and never for another query or other rows."""

from __future__ import annotations

import json
import math
import os
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from native import source_of, write_batches
from native_recordings import RECORD, RECORDED_NATIVE, NativeRuns, decoded, encoded
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as T

TIME = datetime(2026, 3, 29, 2, 30, 0, 123456)
CELLS: list[tuple[Any, T.DataType]] = [
    (None, T.LongType()),
    (2**62, T.LongType()),
    (True, T.BooleanType()),
    ("ä", T.StringType()),
    (0.1 + 0.2, T.DoubleType()),
    (-math.inf, T.DoubleType()),
    (Decimal("1.500"), T.DecimalType(12, 3)),
    (Decimal("9" * 38), T.DecimalType(38, 0)),
    (date(2026, 3, 29), T.DateType()),
    (TIME, T.TimestampNTZType()),
    (datetime(2026, 7, 1, 12), T.TimestampType()),
    (bytearray(b"\x00\xff"), T.BinaryType()),
    ([3, None, 1], T.ArrayType(T.LongType())),
    (
        Row(start=datetime(2026, 7, 1), end=None),
        T.StructType().add("start", T.TimestampType()).add("end", T.TimestampType()),
    ),
]


@pytest.mark.parametrize(("cell", "kind"), CELLS)
def test_a_cell_comes_back_from_json_as_it_was(cell: Any, kind: T.DataType) -> None:
    text = json.dumps(encoded(cell, kind), allow_nan=False)
    again = decoded(json.loads(text), kind)
    assert repr(again) == repr(cell)


def test_zeros_and_no_numbers_come_back_as_they_were() -> None:
    cells = [-0.0, math.nan, math.inf]
    text = json.dumps([encoded(cell, T.DoubleType()) for cell in cells], allow_nan=False)
    again = [decoded(cell, T.DoubleType()) for cell in json.loads(text)]
    assert [repr(cell) for cell in again] == [repr(cell) for cell in cells]


def test_recordings_are_small_and_of_one_spark() -> None:
    paths = list(RECORDED_NATIVE.glob("*.json"))
    assert sum(path.stat().st_size for path in paths) < 1_000_000
    tests = {
        name: test for path in paths for name, test in json.loads(path.read_text())["tests"].items()
    }
    assert len({test["spark"] for test in tests.values()}) == 1
    silent = {
        name for name, test in tests.items() if not all(run["outputs"] for run in test["runs"][-1:])
    }
    # That Spark closes no window after the restart is what it shows.
    anew = "test_after_a_restart_inputs_begin_anew_below_one_watermark_as_in_spark"
    assert silent == {f"{anew}[min]", f"{anew}[max]"}


@pytest.fixture
def counts(spark: SparkSession, tmp_path: Path) -> DataFrame:
    write_batches(tmp_path / "in", seed=1, batches=1)
    return source_of(spark, tmp_path / "in").groupBy("id").count()


@pytest.fixture
def recorded(
    spark: SparkSession, counts: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[list[Row]]:
    """What was recorded of the counts as the test "a test"."""
    monkeypatch.setenv(RECORD, "1")
    runs = NativeRuns(spark, tmp_path / "a.json", "a test")
    found = runs.outputs(counts, tmp_path / "a", "update", tmp_path / "in")
    runs.save()
    monkeypatch.delenv(RECORD)
    return found


@pytest.mark.spark
def test_what_is_replayed_is_what_was_recorded_and_nothing_else(
    spark: SparkSession, counts: DataFrame, recorded: list[list[Row]], tmp_path: Path
) -> None:
    def replayed(test: str, frame: DataFrame, mode: str = "update") -> list[list[Row]]:
        runs = NativeRuns(spark, tmp_path / "a.json", test)
        return runs.outputs(frame, tmp_path / "b", mode, tmp_path / "in")

    folder = tmp_path / "in"
    assert replayed("a test", counts) == recorded
    assert replayed("a test", source_of(spark, folder).groupBy("id").count()) == recorded
    assert not (tmp_path / "b").exists()
    with pytest.raises(AssertionError, match=r"is not recorded\. Run `make recordings"):
        replayed("another test", counts)
    with pytest.raises(AssertionError, match="with another mode"):
        replayed("a test", counts, "complete")
    with pytest.raises(AssertionError, match="with another query"):
        replayed("a test", source_of(spark, folder).filter("v > 1").groupBy("id").count())
    write_batches(folder, seed=2, batches=1)
    with pytest.raises(AssertionError, match=r"with another input\. Run `make recordings"):
        replayed("a test", counts)


@pytest.mark.spark
def test_on_another_spark_than_the_recorded_one_the_query_runs(
    spark: SparkSession, counts: DataFrame, recorded: list[list[Row]], tmp_path: Path
) -> None:
    text = (tmp_path / "a.json").read_text()
    (tmp_path / "a.json").write_text(text.replace(f'"{spark.version}"', '"3.0"'))
    runs = NativeRuns(spark, tmp_path / "a.json", "a test")
    assert runs.live
    found = runs.outputs(counts, tmp_path / "b", "update", tmp_path / "in")
    assert sorted(map(repr, found[0])) == sorted(map(repr, recorded[0]))
    assert os.listdir(tmp_path / "b" / "commits")
