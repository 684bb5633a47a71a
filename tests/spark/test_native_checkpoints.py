"""Checkpoints of Spark's own queries are refused at start(), and nothing is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from native import SCHEMA, write_batches
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import holdfast
from holdfast import stateful

pytestmark = pytest.mark.spark


def _source(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
    return reader.parquet(str(folder / "in"))


def _writer(frame: Any, checkpoint: Path, **options: str) -> Any:
    writer = frame.writeStream.outputMode("update").trigger(availableNow=True)
    return writer.options(checkpointLocation=str(checkpoint), **options)


def _run(spark: SparkSession, folder: Path, checkpoint: Path, **options: str) -> Any:
    frame = stateful(_source(spark, folder)).groupBy("id").count()
    query = _writer(frame, checkpoint, **options).format("noop").start()
    query.awaitTermination()
    return query


def _contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize(("kind", "batches"), [("stateless", 2), ("stateful", 2), ("no batch", 0)])
def test_a_checkpoint_of_sparks_own_is_refused_and_left_as_it_is(
    spark: SparkSession, tmp_path: Path, kind: str, batches: int
) -> None:
    (tmp_path / "in").mkdir()
    write_batches(tmp_path / "in", seed=1, batches=batches)
    source = _source(spark, tmp_path)
    native = source.groupBy("id").count() if kind == "stateful" else source.select("id")
    checkpoint = tmp_path / "of spark's"
    _writer(native, checkpoint).format("noop").start().awaitTermination()
    before = _contents(checkpoint)
    assert "metadata" in before
    write_batches(tmp_path / "in", seed=1, batches=3)
    frame = stateful(_source(spark, tmp_path)).groupBy("id").count()
    firsts = stateful(_source(spark, tmp_path)).dropDuplicates(["id"])
    said = rf"made by Spark's own streaming \({batches} batches\).*new checkpoint location"
    with pytest.raises(holdfast.IllegalState, match=said):
        _writer(frame, checkpoint).format("noop").start()
    with pytest.raises(holdfast.IllegalState, match=said):
        _writer(frame, checkpoint).format("memory").queryName("of_native").start()
    with pytest.raises(holdfast.IllegalState, match=said):
        _writer(firsts, checkpoint).outputMode("append").toTable("of_native_table")
    elsewhere = tmp_path / "state"
    with pytest.raises(holdfast.IllegalState, match=said):
        _writer(frame, checkpoint, stateLocation=str(elsewhere)).format("noop").start()
    assert _contents(checkpoint) == before
    assert not elsewhere.exists()
    assert not spark.catalog.tableExists("of_native")
    assert not spark.catalog.tableExists("of_native_table")
    # The checkpoint is still good for the query that made it.
    _writer(native, checkpoint).format("noop").start().awaitTermination()


def test_fresh_state_elsewhere_does_not_make_sparks_checkpoint_ours(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    state = str(tmp_path / "state")
    _run(spark, tmp_path, tmp_path / "ours", stateLocation=state)
    write_batches(tmp_path / "in", seed=2, batches=1)
    native = _source(spark, tmp_path).select("id")
    _writer(native, tmp_path / "native").format("noop").start().awaitTermination()
    before = _contents(tmp_path / "native")
    with pytest.raises(holdfast.IllegalState, match=r"Spark's own streaming \(1 batch\)"):
        _run(spark, tmp_path, tmp_path / "native", stateLocation=state)
    assert _contents(tmp_path / "native") == before


def test_a_first_start_that_was_cut_off_is_resumed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_batches(tmp_path / "in", seed=3, batches=1)
    (tmp_path / "cp" / "offsets").mkdir(parents=True)  # a folder without a batch is no history

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DataStreamWriter, "start", killed)
        with pytest.raises(KeyboardInterrupt):
            _run(spark, tmp_path, tmp_path / "cp")
    assert not (tmp_path / "cp" / "metadata").exists()
    assert _run(spark, tmp_path, tmp_path / "cp").version == 1


@pytest.mark.parametrize("is_beside", [True, False])
def test_a_checkpoint_of_ours_without_its_note_is_known_by_its_state(
    spark: SparkSession, tmp_path: Path, is_beside: bool
) -> None:
    options = {} if is_beside else {"stateLocation": str(tmp_path / "state")}
    write_batches(tmp_path / "in", seed=4, batches=1)
    _run(spark, tmp_path, tmp_path / "cp", **options)
    (tmp_path / "cp" / "holdfast-state").unlink()
    write_batches(tmp_path / "in", seed=4, batches=2)
    assert _run(spark, tmp_path, tmp_path / "cp", **options).version == 2
