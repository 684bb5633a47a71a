"""Weekly spending: a late purchase counts, a finished week leaves the state, in every mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from weekly_spending import SCHEMA, TRANSACTIONS, arrive, stored, weekly

pytestmark = [pytest.mark.spark, pytest.mark.any_spark]

OUTPUT: dict[str, list[list[tuple[Any, ...]]]] = {
    "append": [[], [], [("16-04", "Jade", 800), ("16-04", "Sankar", 200)], []],
    "update": [
        [("16-04", "Sankar", 200)],
        [("16-04", "Jade", 800)],
        [("23-04", "Sankar", 300)],
        [("23-04", "Kun", 100)],
    ],
}
STATE = [
    ["16-04..23-04 Sankar 200"],
    ["16-04..23-04 Jade 800", "16-04..23-04 Sankar 200"],
    ["23-04..30-04 Sankar 300"],
    ["23-04..30-04 Kun 100", "23-04..30-04 Sankar 300"],
]


@pytest.mark.parametrize("mode", OUTPUT)
def test_jades_late_purchase_counts_and_the_finished_week_leaves(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    incoming, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    incoming.mkdir()
    rows: list[tuple[Any, ...]] = []

    def keep(batch: DataFrame, version: int) -> None:
        start = F.date_format("window.start", "dd-MM")
        rows.extend(tuple(row) for row in batch.withColumn("window", start).collect())

    query = (
        weekly(spark.readStream.schema(SCHEMA).json(str(incoming)))
        .writeStream.outputMode(mode)
        .foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    for number, transaction in enumerate(TRANSACTIONS):
        rows.clear()
        arrive(incoming, number, transaction)
        query.processAllAvailable()
        assert sorted(rows) == OUTPUT[mode][number]
        assert stored(checkpoint) == STATE[number]
    query.stop()
