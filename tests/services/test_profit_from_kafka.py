"""Continuous profit from a real broker, as in the worked example."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from continuous_profit import TOPIC, TRADES, from_kafka, profit, send
from servers import Kafka, connector_jars

pytestmark = pytest.mark.services
ROOT = Path(__file__).resolve().parents[2]
BATCHES = [[], [10], [28], [28, -5], [33, -5]]


def test_profit_from_kafka_is_that_of_the_worked_example_batch_by_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    shown: dict[int, list[Any]] = {}

    def keep(batch: DataFrame, batch_id: int) -> None:
        shown[batch_id] = [row.profit for row in batch.orderBy("window").collect()]

    def start() -> Any:
        lines = from_kafka(spark, broker.address)
        return (
            profit(lines, F.window("eventtime", "5 minutes"))
            .writeStream.outputMode("complete")
            .foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )

    with Kafka(tmp_path / "kafka") as broker:
        broker.create_topic(TOPIC)
        query = start()
        query.processAllAvailable()
        for trade in TRADES[:2]:
            send(spark, broker.address, trade)
            query.processAllAvailable()
        # Neither the broker's crash nor the query's restart is seen in the profits.
        query.stop()
        broker.kill()
        broker.start()
        query = start()
        for trade in TRADES[2:]:
            send(spark, broker.address, trade)
            query.processAllAvailable()
        query.stop()
    assert [shown[number] for number in sorted(shown)] == BATCHES


def test_the_example_runs_on_a_broker(tmp_path: Path) -> None:
    with Kafka(tmp_path / "kafka") as broker:
        broker.create_topic(TOPIC)
        jars, given = ",".join(map(str, connector_jars())), os.environ["PYSPARK_SUBMIT_ARGS"]
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "continuous_profit.py"), broker.address],
            env={**os.environ, "PYSPARK_SUBMIT_ARGS": f"--jars {jars} {given}"},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    profits = [
        [int(line.split("|")[2]) for line in batch.splitlines() if line.startswith("|{")]
        for batch in done.stdout.split("Batch: ")[1:]
    ]
    assert profits == BATCHES
    assert re.findall(r"^Batch: (\d)$", done.stdout, re.MULTILINE) == list("01234")
