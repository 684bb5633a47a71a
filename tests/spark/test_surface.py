"""What a PySpark user finds on the wrapper, its writer and its queries: names and arguments."""

from __future__ import annotations

import inspect
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from native import SCHEMA, write_batches
from processors import Totals
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from holdfast import stateful
from holdfast.reading import open_root
from holdfast.spark.frame import StatefulDataFrame
from holdfast.spark.running.query import StatefulQuery
from holdfast.spark.versions.loop import VersionLoop
from holdfast.spark.writer import StatefulStreamWriter

pytestmark = pytest.mark.spark
OURS_HAVE = [
    (DataFrame, StatefulDataFrame, set()),
    (DataStreamWriter, StatefulStreamWriter, {"trigger"}),
    (StreamingQuery, StatefulQuery, set()),
]
"""Spark's class, ours, and what is handed on to Spark's as it is given."""


@pytest.mark.parametrize(("native", "ours", "handed_on"), OURS_HAVE)
def test_methods_take_the_arguments_that_sparks_take(
    native: type, ours: type, handed_on: set[str]
) -> None:
    shared = [
        name
        for name in dir(ours)
        if not name.startswith("_") and inspect.isfunction(getattr(native, name, None))
    ]
    assert len(shared) >= 5
    differing = {
        name
        for name in shared
        if [*inspect.signature(getattr(ours, name)).parameters]
        != [*inspect.signature(getattr(native, name)).parameters]
    }
    assert differing == handed_on


def test_the_wrapper_has_what_was_promised_and_a_query_all_that_sparks_has() -> None:
    promised = """select selectExpr filter where withColumn withColumns withColumnRenamed drop alias
        transform union join orderBy groupBy groupby schema printSchema columns isStreaming explain
        withWatermark dropDuplicates dropDuplicatesWithinWatermark writeStream"""
    assert set(promised.split()) <= set(dir(StatefulDataFrame))
    public = {name for name in dir(StreamingQuery) if not name.startswith("_")}
    assert public <= set(dir(StatefulQuery))


def _writer(spark: SparkSession, folder: Path) -> tuple[Any, Any]:
    stream = stateful(spark.readStream.schema(SCHEMA).parquet(str(folder / "in")))
    closing = stream.withWatermark("ts", "1 minute").groupBy(F.window("ts", "1 minute")).count()
    writer = closing.writeStream.format("noop").queryName("seen")
    return writer.option("checkpointLocation", str(folder / "cp")), closing


def test_a_stream_and_its_query_say_what_sparks_say(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_batches(tmp_path / "in", seed=8, batches=1)
    writer, stream = _writer(spark, tmp_path)
    assert stream.columns == ["window", "count"]
    stream.printSchema()
    assert " |-- count: long" in capsys.readouterr().out
    stream.explain(extended=True)
    explained = capsys.readouterr().out
    assert "== Analyzed Logical Plan ==" in explained
    first = writer.start()
    native = spark.readStream.format("rate").load().writeStream.format("noop").start()
    try:
        assert first.status.keys() == native.status.keys()
        assert [query.name for query in spark.streams.active if query.id == first.id] == ["seen"]
        assert first.awaitTermination(1) is False
        first.processAllAvailable()
        first.explain()
        assert "== Physical Plan ==" in capsys.readouterr().out
        assert (first.isActive, first.exception()) == (True, None)
    finally:
        native.stop()
        first.stop()
    assert (first.isActive, first.awaitTermination()) == (False, None)
    second = writer.trigger(availableNow=True).start()
    second.awaitTermination()
    assert second.id == first.id
    assert second.runId != first.runId
    (store,) = open_root(tmp_path / "cp").info().stores
    assert explained.partition("\n\n== Parsed")[0].splitlines() == [
        "== Stateful Plan ==",
        f"Operator {store.operator}: stateStoreSave",
        "  input: source 0",
        "  keys: window(ts, '1 minute', '1 minute', '0 second')",
        "  aggregate count: count(1)",
        "  watermark: ts, delayed by 1 minute",
        f"  store {store.store}: key {store.key_schema.ddl()}; value {store.value_schema.ddl()}; "
        "evicted by window_end",
        f"  partitions: {len(store.partitions)}",
        f"Output: operator {store.operator}",
    ]


def test_explain_tells_operators_apart_and_forwards_the_mode(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = spark.readStream.schema(SCHEMA).parquet(str(tmp_path))
    timed = stateful(rows).withWatermark("ts", "90 seconds")
    first = timed.dropDuplicates(["id", "ts"])
    first.union(timed).agg(F.max("v")).explain(mode="formatted")
    shown = capsys.readouterr().out
    for line in ("Operator 0: dedupe\n  input: source 0", "delayed by 90 seconds",
                 "Operator 1: stateStoreSave\n  input: operator 0, source 0\n  keys: none",
                 "; evicted by ts\n  partitions: 2\n", "partitions: 1\nOutput: operator 1\n",
                 "Arguments: "):  # fmt: skip
        assert line in shown, line
    stateful(rows).groupBy("id").transformWithState(
        Totals(), "id string, n long", "Update", "ProcessingTime"
    ).explain()
    shown = capsys.readouterr().out
    for line in ("time mode: processingtime", "watermark: none",
                 "store state: key id string; value n long", "== Physical Plan =="):  # fmt: skip
        assert line in shown, line
    stateful(rows).select("id").explain("simple")
    rows.select("id").explain("simple")
    ours, sparks = (plan[:30] for plan in capsys.readouterr().out.split("== Physical")[1:])
    assert ours == sparks


def test_a_tick_never_runs_beside_a_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_batches(tmp_path / "all", seed=9, batches=2)
    files = sorted((tmp_path / "all").iterdir())
    (tmp_path / "in").mkdir()
    run, busy = VersionLoop.run, threading.Lock()
    kinds: list[str] = []
    overlaps: list[str] = []

    def alone(self: VersionLoop, batch: Any, facts: Any, observe: Any = None) -> Any:
        kind = "tick" if batch is None else "batch"
        if not busy.acquire(blocking=False):
            overlaps.append(kind)
            return run(self, batch, facts, observe)
        try:
            kinds.append(kind)
            time.sleep(2 if kind == "tick" else 0)  # time for the next batch to come
            return run(self, batch, facts, observe)
        finally:
            busy.release()

    monkeypatch.setattr(VersionLoop, "run", alone)
    query = _writer(spark, tmp_path)[0].start()
    try:
        for number, file in enumerate(files, 1):
            file.rename(tmp_path / "in" / file.name)  # while the tick of the one before runs
            until = time.monotonic() + 60
            while kinds.count("tick") < number and time.monotonic() < until:
                time.sleep(0.02)
    finally:
        query.stop()
    assert query.exception() is None
    assert kinds[:4] == ["batch", "tick", "batch", "tick"]
    assert overlaps == []
