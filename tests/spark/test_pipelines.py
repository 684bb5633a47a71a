"""Ordinary pipelines deliver every closed window once, whatever stands before and after the state.

The cases hold every pair of what real pipelines vary: the plan before the first operator, the
trigger, the failure in the first run, settings of the session, the sink, and odd paths. Rows are
never late and windows close by event time alone, so what has to come out follows from the input;
Spark computes it as a batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from covering import Case, covering
from native import write_batch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast import stateful
from holdfast.spark.delivery import Delivery
from holdfast.spark.loop import VersionLoop

pytestmark = pytest.mark.spark
SEED = 20261118
PATIENCE_S = 240
DELAY_S = 60
START_S = 1_700_000_100
SCHEMA = "id string, v long, ts timestamp"
Rows = list[tuple[Any, ...]]

DIMENSIONS = {
    "plan": (
        "none", "filter", "exchange", "static join", "broadcast join", "union", "cache", "udf",
        "sources",
    ),
    "trigger": ("default", "processingTime", "once", "availableNow"),
    "failure": ("none", "sink raises", "stop while computing", "stop while delivering"),
    "settings": ("plain", "no ansi", "no aqe", "other zone", "case sensitive"),
    "sink": ("foreachBatch", "parquet", "table"),
    "path": ("plain", "a blank", "50%25 of it", "größe #1"),
}  # fmt: skip
SETTINGS = {
    "plain": {},
    "no ansi": {"spark.sql.ansi.enabled": "false"},
    "no aqe": {"spark.sql.adaptive.enabled": "false"},
    "other zone": {"spark.sql.session.timeZone": "America/New_York"},
    "case sensitive": {"spark.sql.caseSensitive": "true"},
}
TRIGGERS: dict[str, dict[str, Any]] = {
    "default": {},
    "processingTime": {"processingTime": "200 milliseconds"},
    "once": {"once": True},
    "availableNow": {"availableNow": True},
}


def write(folder: Path, *numbers: int) -> None:
    """Files whose event times go on from one to the next, each id with the same in each."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        moments = [START_S + 600 * number + 60 * minute for minute in (0, 1, 4, 8)]
        rows = [(user, moment) for user in "abcd" for moment in moments]
        table = pa.table(
            {
                "id": [user for user, _ in rows],
                "v": [number + place for place in range(len(rows))],
                "ts": pa.array([m * 1_000_000 for _, m in rows], pa.timestamp("us", tz="UTC")),
            }
        )
        write_batch(folder, number, table)


def shaped(session: SparkSession, plan: str, rows: DataFrame) -> DataFrame:
    """The plan before the first operator, of a stream or of a batch; each keeps all rows."""
    users = session.createDataFrame(
        [(user, user.upper()) for user in "abcd"], "id string, n string"
    )

    def marked(frame: DataFrame) -> DataFrame:
        return frame.withWatermark("ts", f"{DELAY_S} seconds")

    def of_users(*wanted: str) -> DataFrame:
        return marked(rows.filter(F.col("id").isin(*wanted)))

    plans: dict[str, Callable[[], DataFrame]] = {
        "none": lambda: marked(rows),
        "sources": lambda: marked(rows),
        "filter": lambda: marked(rows).filter("v >= 0"),
        "exchange": lambda: marked(rows).repartition(3),
        "static join": lambda: marked(rows).join(users.hint("merge"), "id").drop("n"),
        "broadcast join": lambda: marked(rows).join(F.broadcast(users), "id").drop("n"),
        "union": lambda: of_users("a", "b").union(of_users("c", "d")).repartition(2),
        "cache": lambda: marked(rows).join(users.cache(), "id").drop("n"),
        "udf": lambda: marked(rows.withColumn("id", F.udf(lambda user: user * 1)("id"))),
    }
    return plans[plan]()


def windows(frame: Any, settings: str) -> Any:
    """What the query computes."""
    total = "v"
    if settings == "case sensitive":
        frame, total = frame.withColumnRenamed("v", "ID"), "ID"
    return (
        frame.groupBy("id", F.window("ts", "5 minutes"))
        .agg(F.sum(total).alias("total"), F.count("*").alias("n"))
        .select("id", F.unix_seconds(F.col("window.end")).alias("until"), "total", "n")
    )


class Interruption:
    """Fails or stops the query once, in the first version it makes."""

    def __init__(self, failure: str, patch: pytest.MonkeyPatch) -> None:
        self.query: Any = None
        self._ready = threading.Event()
        self._left = 0 if failure == "none" else 1
        self._failure = failure
        if failure == "stop while computing":
            self._before(patch, VersionLoop, "_run_stage")
        elif failure != "none":
            self._before(patch, Delivery, "deliver")

    def of(self, query: Any) -> None:
        self.query = query
        self._ready.set()

    def _before(self, patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        method = getattr(owner, name)

        def interrupted(*args: Any, **kwargs: Any) -> Any:
            if self._left:
                self._left -= 1
                self._interrupt()
            return method(*args, **kwargs)

        patch.setattr(owner, name, interrupted)

    def _interrupt(self) -> None:
        if self._failure == "sink raises":
            raise OSError("the sink is full")
        assert self._ready.wait(PATIENCE_S)
        threading.Thread(target=self.query.stop, daemon=True).start()
        while not self.query._stopping:
            threading.Event().wait(0.01)


class Place:
    """Where a case runs: its folder, and a table of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table = f"holdfast_{uuid4().hex}"
        self.given: dict[int, Rows] = {}

    def keep(self, frame: DataFrame, number: int) -> None:
        rows = sorted(map(tuple, frame.collect()))
        assert self.given.setdefault(number, rows) == rows, f"{number} came with other rows"

    def start(self, stream: Any, sink: str, trigger: str) -> Any:
        writer = stream.writeStream.option("checkpointLocation", str(self.folder / "cp"))
        if TRIGGERS[trigger]:
            writer = writer.trigger(**TRIGGERS[trigger])
        if sink == "foreachBatch":
            return writer.foreachBatch(self.keep).start()
        if sink == "table":
            return writer.option("path", str(self.folder / "table")).toTable(self.table)
        return writer.format("parquet").start(str(self.folder / "out"))

    def delivered(self, session: SparkSession, sink: str) -> Rows:
        if sink == "foreachBatch":
            return sorted(row for rows in self.given.values() for row in rows)
        if sink == "table":
            return sorted(map(tuple, session.table(self.table).collect()))
        return sorted(map(tuple, session.read.parquet(str(self.folder / "out")).collect()))


def finish(query: Any, trigger: str) -> None:
    if not {"once", "availableNow"} & {trigger}:
        query.processAllAvailable()
        query.stop()
    query.awaitTermination()


def first_run(query: Any, failure: str, trigger: str) -> None:
    if failure == "none":
        finish(query, trigger)
    elif failure == "sink raises":
        with pytest.raises(Exception, match="the sink is full"):
            query.awaitTermination(PATIENCE_S)
    else:
        assert query.awaitTermination(PATIENCE_S)


_computed: dict[tuple[bool, bool], Rows] = {}


def expected(session: SparkSession, inputs: list[Path], case: Case) -> Rows:
    """The windows that are closed in the end; a run of one batch closes none of its own.

    The plan before the operator keeps all rows, so cases with the same input have the same result.
    """
    kind = (len(inputs) > 1, case[1] == "once")
    if kind not in _computed:
        last = 1 if case[1] == "once" else 3
        bound = START_S + 600 * last + 60 * 8 - DELAY_S
        rows = session.read.schema(SCHEMA).parquet(*map(str, inputs))
        found = windows(rows, "plain").filter(F.col("until") <= bound)
        _computed[kind] = sorted(map(tuple, found.collect()))
    return _computed[kind]


@pytest.mark.parametrize("case", covering(DIMENSIONS, SEED), ids="-".join)
def test_every_closed_window_is_delivered_once(
    spark: SparkSession, tmp_path: Path, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, trigger, failure, settings, sink, path = case
    session = spark.newSession()
    for name, value in SETTINGS[settings].items():
        session.conf.set(name, value)
    place = Place(tmp_path / path)
    inputs = [tmp_path / "in", *([tmp_path / "more"] if plan == "sources" else [])]
    interruption = Interruption(failure, monkeypatch)

    def start() -> Any:
        reader = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
        source = reduce(DataFrame.union, [reader.parquet(str(folder)) for folder in inputs])
        stream = windows(stateful(shaped(session, plan, source)), settings)
        return place.start(stream, sink, trigger)

    try:
        for folder in inputs:
            write(folder, 0, 1)
        query = start()
        interruption.of(query)
        first_run(query, failure, trigger)
        for folder in inputs:
            write(folder, 2, 3)
        # One batch brings again what was not delivered, and one takes what has come since.
        for _ in range(2 if trigger == "once" else 1):
            finish(start(), trigger)
        assert place.delivered(session, sink) == expected(spark, inputs, case)
    finally:
        session.sql(f"DROP TABLE IF EXISTS {place.table}")
        session.catalog.clearCache()


def test_the_cases_hold_every_pair() -> None:
    cases = covering(DIMENSIONS, SEED)
    assert cases == covering(DIMENSIONS, SEED)
    assert len(cases) < 50
    values = list(DIMENSIONS.values())
    for left in range(len(values)):
        for right in range(left + 1, len(values)):
            seen = {(case[left], case[right]) for case in cases}
            assert seen == {(a, b) for a in values[left] for b in values[right]}
