"""A query that is over leaves nothing in memory: a driver may run one after another for months."""

from __future__ import annotations

import gc
import json
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkValueError, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from waiting import until

import holdfast
from holdfast import stateful

pytestmark = pytest.mark.spark


def run(spark: SparkSession, folder: Path, ending: str) -> tuple[weakref.ref[Any], Any]:
    """Run a query to its end; weak references to it, in Python and in the JVM."""

    is_delivering, goes_on = threading.Event(), threading.Event()
    streams = holdfast.streams(spark)
    streams.resetTerminated()

    def deliver(rows: DataFrame, number: int) -> None:
        if ending == "its sink raises":
            raise OSError("the sink is full")
        if ending == "it is stopped in a batch":
            is_delivering.set()
            while not goes_on.wait(0.1):  # the stop cancels one of these jobs
                rows.count()

    query = (
        stateful(spark.readStream.schema("k string").json(str(folder / "in")))
        .groupBy("k")
        .count()
        .writeStream.outputMode("update")
        .foreachBatch(deliver)
        .option("checkpointLocation", str(folder / "cp"))
        .start()
    )
    execution = query._inner.current._jsq.streamingQuery()
    jvm: Any = spark._jvm
    in_jvm = jvm.java.lang.ref.WeakReference(execution)
    if ending == "its sink raises":
        with pytest.raises(Exception, match="the sink is full"):
            query.awaitTermination(240)
        assert "the sink is full" in str(query.exception())
        for _ in range(2):  # the session still knows of the failure, and not of the query
            with pytest.raises(StreamingQueryException, match="the sink is full"):
                streams.awaitAnyTermination(240)
    elif ending == "it is stopped in a batch":
        assert is_delivering.wait(240)
        query.stop()
        goes_on.set()
    else:
        query.processAllAvailable()
        query.stop()
    return weakref.ref(query), in_jvm


@pytest.mark.parametrize("ending", ["it is stopped", "its sink raises", "it is stopped in a batch"])
def test_a_query_that_is_over_is_forgotten_by_python_and_by_the_jvm(
    spark: SparkSession, tmp_path: Path, ending: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text(json.dumps({"k": "a"}) + "\n")
    in_python, in_jvm = run(spark, tmp_path, ending)

    def is_forgotten() -> bool:
        gc.collect()
        spark._jvm.java.lang.System.gc()  # type: ignore[union-attr]
        return in_python() is None and in_jvm.get() is None

    until(is_forgotten)


def test_waiting_for_what_is_no_time_is_sparks_error(spark: SparkSession) -> None:
    def errors(writer: Any) -> list[str]:
        query, told = writer.format("noop").start(), []
        try:
            assert query.awaitTermination(0.1) is False
            for wait in ("hello", 0, -1):
                with pytest.raises(PySparkValueError) as caught:
                    query.awaitTermination(wait)
                told.append(str(caught.value))
        finally:
            query.stop()
        return told

    rate = spark.readStream.format("rate").load()
    totals = stateful(rate).groupBy("value").count()
    assert errors(totals.writeStream.outputMode("update")) == errors(rate.writeStream)
