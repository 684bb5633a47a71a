"""The trades of the worked example give the same profits in whatever batches they arrive."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from continuous_profit import arrive, from_files, profit, trades

pytestmark = [pytest.mark.spark, pytest.mark.any_spark]

# As printed, commas and single quotes included.
LISTING = """\
{ 'id': 'apple', 'amount': 10, 'type': 'buy', 'time': '20-04-2020-10-10' },
{ 'id': 'ibm', 'amount': 15, 'type': 'buy', 'time': '20-04-2020-10-16' },
{ 'id': 'dell', 'amount': 8, 'type': 'sell', 'time': '20-04-2020-10-17' },
{ 'id': 'apple', 'amount': 5, 'type': 'sell', 'time': '20-04-2020-10-22' },
{ 'id': 'shell', 'amount': 18, 'type': 'buy', 'time': '20-04-2020-10-12' },
{ 'id': 'asus', 'amount': 5, 'type': 'buy', 'time': '20-04-2020-10-25' },
{ 'id': 'goggle', 'amount': 30, 'type': 'buy', 'time': '20-04-2020-10-27' }""".splitlines()

KINDS = {"tumbling": ("5 minutes", None), "sliding": ("10 minutes", "5 minutes"),
         "per id": ("5 minutes", None)}  # fmt: skip
EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    "tumbling": [("10:10", 28), ("10:15", 7), ("10:20", -5), ("10:25", 35)],
    "sliding": [("10:05", 28), ("10:10", 35), ("10:15", 2), ("10:20", 30), ("10:25", 35)],
    "per id": [("10:10", "apple", 10), ("10:10", "shell", 18), ("10:15", "dell", -8),
               ("10:15", "ibm", 15), ("10:20", "apple", -5), ("10:25", "asus", 5),
               ("10:25", "goggle", 30)],
}  # fmt: skip


def groups(kind: str) -> list[Column | str]:
    length, slide = KINDS[kind]
    window = F.window("eventtime", length, slide)
    return [window, "id"] if kind == "per id" else [window]


def stored(checkpoint: Path) -> list[tuple[Any, ...]]:
    """What the newest version of the state holds."""
    with holdfast.open(checkpoint / "holdfast") as state:
        return sorted(
            (f"{start:%H:%M}", *rest)
            for start, _, *rest in (row.values() for row in state.scan().to_pylist())
        )


def all_at_hand(folder: Path, batches: int) -> None:
    """The seven trades in one file or in seven, in the order of the listing."""
    folder.mkdir()
    size = len(LISTING) // batches
    for number in range(batches):
        arrive(folder, number, *LISTING[number * size : (number + 1) * size])
        os.utime(folder / f"{number}.json", (number + 1000, number + 1000))


@pytest.mark.parametrize("batches", [1, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_seven_trades_in_one_batch_or_seven_give_the_printed_profits(
    spark: SparkSession, tmp_path: Path, kind: str, batches: int
) -> None:
    all_at_hand(tmp_path / "in", batches)
    last: list[tuple[Any, ...]] = []

    def keep(batch: DataFrame, version: int) -> None:
        start = F.date_format("window.start", "HH:mm")
        last[:] = [tuple(row) for row in batch.withColumn("window", start).collect()]

    lines = from_files(spark, tmp_path / "in", maxFilesPerTrigger="1")
    query = (
        profit(lines, *groups(kind))
        .writeStream.outputMode("complete")
        .foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.version == batches
    assert sorted(last) == EXPECTED[kind]
    assert stored(tmp_path / "checkpoint") == EXPECTED[kind]


@pytest.mark.parametrize(
    "trigger", [{}, {"processingTime": "200 milliseconds"}, {"once": True}], ids=str
)
def test_any_trigger_leads_to_the_same_state(
    spark: SparkSession, tmp_path: Path, trigger: dict[str, Any]
) -> None:
    all_at_hand(tmp_path / "in", 7)
    lines = from_files(spark, tmp_path / "in", maxFilesPerTrigger="2")
    writer = (
        profit(lines, *groups("tumbling"))
        .writeStream.outputMode("complete")
        .format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    query = (writer.trigger(**trigger) if trigger else writer).start()
    if "once" in trigger:
        query.awaitTermination()
    else:
        query.processAllAvailable()
    query.stop()
    assert stored(tmp_path / "checkpoint") == EXPECTED["tumbling"]


def test_trades_have_the_printed_schema(spark: SparkSession, tmp_path: Path) -> None:
    assert trades(from_files(spark, tmp_path)).schema.simpleString() == (
        "struct<id:string,type:string,amount:int,eventtime:timestamp,profit:int>"
    )
