"""A query runs on a user's own provider, through the row contract alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from native import run, write_batches
from native_recordings import NativeRuns
from pyspark.sql import SparkSession
from test_aggregations import CASES as AGGREGATIONS
from test_operators import CASES as OPERATORS

import holdfast

pytestmark = pytest.mark.spark
CASES = {**AGGREGATIONS, **OPERATORS}
_EXAMPLES = str(Path(__file__).parents[2] / "examples")


@pytest.fixture
def dict_provider(spark: SparkSession) -> Iterator[None]:
    spark.sparkContext.addPyFile(f"{_EXAMPLES}/dict_provider.py")
    spark.conf.set("spark.holdfast.providerClass", "dict_provider.DictProvider")
    yield
    spark.conf.unset("spark.holdfast.providerClass")


@pytest.mark.usefixtures("dict_provider")
@pytest.mark.parametrize(
    "name",
    [
        "complete by one key",
        "append by tumbling windows",
        "sessions in append mode",
        "first rows within the watermark",
    ],
)
def test_a_provider_on_a_dict_gives_what_spark_gives_across_a_restart(
    spark: SparkSession, native_runs: NativeRuns, tmp_path: Path, name: str
) -> None:
    pipeline, mode = CASES[name]
    write_batches(tmp_path / "all", seed=11, batches=4)
    folder = tmp_path / "in"
    folder.mkdir()
    files = sorted((tmp_path / "all").glob("*.parquet"))
    for part in (files[:2], files[2:]):
        for path in part:
            shutil.copy2(path, folder)  # Spark takes files by their times
        native = native_runs.run(folder, tmp_path / "a", pipeline, mode)
        assert run(spark, folder, tmp_path / "b", pipeline, mode, native=False) == native
    kept = list((tmp_path / "b" / "holdfast" / "0").rglob("*.arrow"))
    assert kept


def test_a_provider_that_cannot_be_loaded_is_refused_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_batches(tmp_path / "in", seed=1, batches=1)
    pipeline, mode = CASES["complete by one key"]
    spark.conf.set("spark.holdfast.providerClass", "nowhere.Provider")
    try:
        with pytest.raises(holdfast.InvalidArgument, match=r"nowhere\.Provider"):
            run(spark, tmp_path / "in", tmp_path / "cp", pipeline, mode, native=False)
    finally:
        spark.conf.unset("spark.holdfast.providerClass")
