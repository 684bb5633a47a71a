"""A running query gives its state to whoever asks."""

from __future__ import annotations

from pathlib import Path

import pytest
from native import SCHEMA, write_batches
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import stateful

pytestmark = pytest.mark.spark


def test_a_running_query_gives_its_state_version_by_version(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_batches(tmp_path / "all", seed=3, batches=2)
    source = tmp_path / "in"
    source.mkdir()
    (tmp_path / "all/000.parquet").rename(source / "000.parquet")
    stream = stateful(spark.readStream.schema(SCHEMA).parquet(str(source)))
    windows = stream.withWatermark("ts", "1 hour").groupBy("id", F.window("ts", "5 minutes"))
    query = (
        windows.agg(F.count("*").alias("n"))
        .writeStream.outputMode("update")
        .foreachBatch(lambda batch, version: None)
        .option("checkpointLocation", str(tmp_path / "cp"))
        .start()
    )
    try:
        query.processAllAvailable()
        state = query.state()
        first = state.to_arrow()
        assert state.version == query.version
        assert first.column_names == ["id", "window_start", "window_end", "n"]
        rows = [spark.read.parquet(str(source)).count()]
        assert sum(first.column("n").to_pylist()) == rows[0]
        row = first.to_pylist()[0]
        key = {name: row[name] for name in ("id", "window_start", "window_end")}
        assert state.get(key) == (row["n"],)

        (tmp_path / "all/001.parquet").rename(source / "001.parquet")
        query.processAllAvailable()
        assert state.to_arrow().equals(first)
        later = state.refresh().to_arrow()
        rows.append(spark.read.parquet(str(source)).count())
        assert sum(later.column("n").to_pylist()) == rows[1] > rows[0]
        assert state.watermark == holdfast.read(tmp_path / "cp").watermark is not None
        assert state.at(1).to_arrow().equals(first)
    finally:
        query.stop()
    frame = spark.read.format("holdfast").option("metadata", "true").load(str(tmp_path / "cp"))
    assert frame.first().operatorName == "stateStoreSave"
    assert query.state().version == query.version
