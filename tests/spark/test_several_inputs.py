"""An operator with two inputs gets the rows of both, once, whatever fails; so does what follows."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ledger import HOLD_S, ledger
from native import source_of, write_batch
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import stateful

pytestmark = pytest.mark.spark
START_S = 1_700_000_040
"""The start of a minute."""
BATCHES, PATIENCE_S = 8, 240
Rows = list[tuple[str, int, int]]


def write_side(folder: Path, name: str, rnd: random.Random) -> Rows:
    """Files of one side, a minute each; all its rows, with the seconds since START_S."""
    folder.mkdir()
    found: Rows = []
    for number in range(BATCHES):
        own = [
            (rnd.choice("abcde"), rnd.randrange(1, 100), 60 * number + rnd.randrange(1, 50))
            for _ in range(rnd.randrange(1, 12))
        ]
        own.append(("a", 1, 60 * number + 50))  # both sides come equally far
        found += own
        times = [(START_S + second) * 1_000_000 for _, _, second in own]
        table = {
            "k": [key for key, _, _ in own],
            name: [cell for _, cell, _ in own],
            "ts": pa.array(times, pa.timestamp("us", tz="UTC")),
            "row": range(len(own)),
        }
        write_batch(folder, number, pa.table(table))
    return found


class Sink:
    """Keeps what it was given by batch id, and fails at its n-th batch with rows."""

    def __init__(self, fails_at: int) -> None:
        self.given: dict[int, Counter[Any]] = {}
        self._fails_at = fails_at
        self._calls = 0

    def deliver(self, frame: DataFrame, batch_id: int) -> None:
        rows = Counter(tuple(row) for row in frame.collect())
        self._calls += bool(rows)
        if self._calls == self._fails_at and rows:
            raise OSError("the sink is full")
        assert self.given.setdefault(batch_id, rows) == rows


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {}], ids=["availableNow", "default"])
@pytest.mark.parametrize("upstream", ["sources", "operators"])
def test_both_inputs_are_counted_once_through_failures_and_restarts(
    spark: SparkSession, tmp_path: Path, trigger: dict[str, Any], upstream: str
) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    rnd = random.Random(seed)
    deposits = write_side(tmp_path / "deposits", "amount", rnd)
    debits = write_side(tmp_path / "debits", "fee", rnd)
    sink = Sink(fails_at=2)

    def side(name: str, column: str) -> Any:
        schema = f"k string, {column} long, ts timestamp, row long"
        rows = source_of(spark, tmp_path / name, schema)
        marked = stateful(rows).withWatermark("ts", "0 seconds")
        if upstream == "sources":
            return marked.drop("row")
        return marked.dropDuplicates(["k", column, "ts", "row"]).drop("row")

    def run() -> None:
        moved = ledger(side("deposits", "amount"), side("debits", "fee"))
        writer = (
            moved.groupBy(F.window("ts", "1 minute"), "k")
            .agg(F.sum("moved"), F.count("*"))
            .select(F.unix_seconds("window.start"), "k", "sum(moved)", "count(1)")
            .writeStream.outputMode("append")
            .foreachBatch(sink.deliver)
            .option("checkpointLocation", str(tmp_path / "cp"))
        )
        query = (writer.trigger(**trigger) if trigger else writer).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    # A batch fails by Spark's exception, a version without data by that of the sink.
    with pytest.raises((OSError, StreamingQueryException), match="the sink is full"):
        run()
    run()

    expected: dict[tuple[int, str], list[int]] = {}
    totals: dict[str, list[int]] = {}
    for place, rows in enumerate((deposits, debits)):
        for key, cell, second in rows:
            start = START_S + (second - HOLD_S) // 60 * 60
            window = expected.setdefault((start, key), [0, 0])
            window[0] += -cell if place else cell
            window[1] += 1
            totals.setdefault(key, [0, 0])[place] += cell
    complete_s = START_S + 60 * (BATCHES - 1) + 50 - HOLD_S
    closed = Counter(
        (start, key, *cells) for (start, key), cells in expected.items() if start + 60 <= complete_s
    )
    assert sum(sink.given.values(), Counter()) == closed
    operator = 0 if upstream == "sources" else 2
    state = holdfast.read(str(tmp_path / "cp"), operator=operator).to_arrow().to_pylist()
    assert {row["k"]: [row["credit"], row["debit"]] for row in state} == totals
