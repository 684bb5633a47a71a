"""Drivers of one query, any number of them on one checkpoint, without Spark's own query."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import holdfast
from holdfast import stateful
from holdfast.conf import StateStoreConf
from holdfast.engine.versions.committer import Committer
from holdfast.engine.versions.log import VersionLog
from holdfast.reading import open_root, verify
from holdfast.spark import writer
from holdfast.spark.versions.opening import LoopOpening
from holdfast.testing.faults import FaultyStorage

cloudpickle.register_pickle_by_value(sys.modules[__name__])
KEEP = 3
CONF = StateStoreConf(min_versions_to_retain=KEEP, grace_period_ms=1)
USERS = "abcdef"
Rows = list[tuple[str, int]]


class RunningTotal(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        total = (self.total.get() or (0,))[0] + sum(row.v for row in rows)
        self.total.update((total,))
        yield Row(user=key[0], total=total)

    def close(self) -> None:
        pass


def batch(number: int) -> Rows:
    """What Spark brings in a batch: the same to every driver, each time."""
    return [(user, 10 * number + place) for place, user in enumerate(USERS[: 2 + number % 5])]


def expected(batches: int) -> tuple[dict[str, int], Counter[tuple[str, int]]]:
    """The totals after so many batches, and all that came out."""
    totals: Counter[str] = Counter()
    out: Counter[tuple[str, int]] = Counter()
    for number in range(batches):
        for user, v in batch(number):
            totals[user] += v
            out[user, totals[user]] += 1
    return dict(totals), out


class Driver:
    """The version loop of a driver of its own on a common checkpoint, its storage wrapped."""

    def __init__(self, spark: SparkSession, spec: Any, sink: Any) -> None:
        self._spark = spark
        self.sink = sink
        self._opening = LoopOpening(spec, sink, CONF)
        home = self._opening.home
        self.faulty = FaultyStorage(home.storage)
        self.versions = VersionLog(self.faulty, home.runtime)
        self.committer = Committer(self.versions, home.runtime, CONF)
        self._opening.home = replace(home, versions=self.versions, committer=self.committer)
        self._checkpoint = Path(spec.checkpoint)

    def open(self) -> None:
        self.loop = self._opening.open()
        (self._checkpoint / "metadata").write_text(json.dumps({"id": "q"}))

    @property
    def next_batch(self) -> int:
        last = self.loop.manifest.batch
        return 0 if last is None else last["id"] + 1

    def run(self, number: int) -> None:
        """What the running query does with a batch."""
        facts = {"id": number, "query_id": "q", "offsets": f"offsets of {number}"}
        self.loop.catch_up()
        if self.loop.is_replay(facts):
            self.loop.deliver()
            return
        frame = self._spark.createDataFrame(batch(number), "user string, v long")
        self.loop.run(frame, facts)


class World:
    """A checkpoint, and drivers on it."""

    def __init__(
        self, spark: SparkSession, folder: Path, sink: str, patch: pytest.MonkeyPatch
    ) -> None:
        self._spark, self.folder, self._sink, self._patch = spark, folder, sink, patch
        (folder / "in").mkdir()
        (folder / "cp").mkdir()
        self.delivered: dict[int, list[Any]] = {}

    def driver(self) -> Driver:
        made: list[Any] = []
        source = self._spark.readStream.schema("user string, v long")
        frame = stateful(source.parquet(str(self.folder / "in"))).groupBy("user")
        totals = frame.transformWithState(
            RunningTotal(), "user string, total long", "Append", "None"
        )
        out = totals.writeStream.option("checkpointLocation", str(self.folder / "cp"))
        with self._patch.context() as patch:
            patch.setattr(writer, "start_query", lambda *what: made.extend(what))
            if self._sink == "parquet":
                out.format("parquet").start(str(self.folder / "out"))
            else:
                out.foreachBatch(self._deliver).start()
        return Driver(self._spark, *made)

    def _deliver(self, frame: DataFrame, version: int) -> None:
        rows = sorted(map(tuple, frame.collect()))
        assert self.delivered.setdefault(version, rows) == rows, "the same again, or never before"

    def check(self, batches: int) -> None:
        """State and output are those of the batches, each once."""
        totals, out = expected(batches)
        root = self.folder / "cp" / "holdfast"
        state = holdfast.read(root, store="total")
        assert {row["user"]: row["total"] for row in state.to_arrow().to_pylist()} == totals
        assert verify(open_root(root)).intact
        if self._sink == "parquet":
            files = self._spark.read.parquet(str(self.folder / "out"))
            assert Counter(map(tuple, files.collect())) == out
        else:
            assert Counter(row for rows in self.delivered.values() for row in rows) == out
