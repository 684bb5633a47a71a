"""A query that is stopped in the middle of a batch ends quietly and goes on later."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast
from holdfast import stateful

pytestmark = pytest.mark.spark


def start(spark: SparkSession, folder: Path, deliver: Any) -> Any:
    return (
        stateful(spark.readStream.schema("k string").json(str(folder / "in")))
        .groupBy("k")
        .count()
        .writeStream.outputMode("update")
        .foreachBatch(deliver)
        .option("checkpointLocation", str(folder / "cp"))
        .start()
    )


@pytest.fixture
def jvm_errors(spark: SparkSession) -> Iterator[Any]:
    """What the JVM prints as an error, in a buffer of its own."""
    system = spark._jvm.java.lang.System
    before, buffer = system.err, spark._jvm.java.io.ByteArrayOutputStream()
    system.setErr(spark._jvm.java.io.PrintStream(buffer))
    yield buffer
    system.setErr(before)


def test_a_stop_in_the_middle_of_a_batch_is_no_failure_and_prints_nothing(
    spark: SparkSession, tmp_path: Path, jvm_errors: Any
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text(json.dumps({"k": "a"}) + "\n")
    began = threading.Event()

    def slow(rows: DataFrame, version: int) -> None:
        began.set()
        spark.sparkContext.parallelize(range(2), 2).foreach(lambda _: time.sleep(20))

    query = start(spark, tmp_path, slow)
    assert began.wait(120)
    time.sleep(1)
    query.stop()
    assert query.exception() is None
    time.sleep(1)  # a thread that ends badly says so after it has ended
    assert "Exception in thread" not in jvm_errors.toString()
    seen: list[Any] = []
    query = start(spark, tmp_path, lambda rows, batch_id: seen.append((batch_id, rows.collect())))
    query.processAllAvailable()
    query.stop()
    assert seen == [(0, [("a", 1)])], "the same batch again"
    assert holdfast.read(tmp_path / "cp").get("a") == (1,)
