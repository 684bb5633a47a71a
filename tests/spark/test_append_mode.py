"""Custom state in append mode: what was given once stays, in a sink that takes nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import group_functions
import pandas_processors
import processors
import pyarrow.parquet as pq
import pytest
from native import SCHEMA, write_batches
from pyspark.sql import SparkSession

from holdfast import stateful

pytestmark = pytest.mark.spark


def _by_rows(grouped: Any) -> Any:
    return grouped.transformWithState(processors.Totals(), processors.OUTPUT, "Append", "None")


def _by_frames(grouped: Any) -> Any:
    return grouped.transformWithStateInPandas(
        pandas_processors.Totals(), pandas_processors.OUTPUT, "Append", "None"
    )


def _by_function(grouped: Any) -> Any:
    return grouped.applyInPandasWithState(
        group_functions.counts, group_functions.OUTPUT, group_functions.STATE, "Append", "NoTimeout"
    )


@pytest.mark.parametrize("api", [_by_rows, _by_frames, _by_function])
def test_each_row_reaches_a_file_sink_once_in_append_mode_across_a_restart(
    spark: SparkSession, tmp_path: Path, api: Callable[[Any], Any]
) -> None:
    for batches in (2, 3):
        write_batches(tmp_path / "in", seed=5, batches=batches)
        source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
        rows = stateful(source.parquet(str(tmp_path / "in")).filter("v is not null"))
        query = (
            api(rows.groupBy("id"))
            .writeStream.outputMode("append")
            .format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "cp"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    wanted: Counter[tuple[Any, int]] = Counter()
    seen: Counter[Any] = Counter()
    for path in sorted((tmp_path / "in").glob("*.parquet")):
        given = [row["id"] for row in pq.read_table(path).to_pylist() if row["v"] is not None]
        seen.update(given)
        wanted.update((key, seen[key]) for key in set(given))
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert Counter((row.id, row.n) for row in found) == wanted
