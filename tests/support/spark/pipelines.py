"""Pipelines as users write them: what they vary, and what has to come out of each.

Rows are never late and windows close by event time alone, so what has to come out follows from the
input; Spark computes it as a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from covering import Case
from native import write_batch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast import stateful

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


class Pipeline:
    """One case in a folder: its input, its checkpoint, and a sink of its own."""

    def __init__(self, spark: SparkSession, folder: Path, case: Case) -> None:
        self.plan, self.trigger, _, self.settings, self.sink, path = self.case = case
        self.folder = folder / path
        self.inputs = [folder / "in", *([folder / "more"] if self.plan == "sources" else [])]
        self.table = f"holdfast_{uuid4().hex}"
        self.given: dict[int, Rows] = {}
        self.session = spark.newSession()
        for name, value in SETTINGS[self.settings].items():
            self.session.conf.set(name, value)

    def write(self, *numbers: int) -> None:
        """Bring files to every input."""
        for folder in self.inputs:
            write(folder, *numbers)

    def start(self) -> Any:
        """The running query."""
        reader = self.session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
        source = reduce(DataFrame.union, [reader.parquet(str(folder)) for folder in self.inputs])
        stream = windows(stateful(shaped(self.session, self.plan, source)), self.settings)
        writer = stream.writeStream.option("checkpointLocation", str(self.folder / "cp"))
        if TRIGGERS[self.trigger]:
            writer = writer.trigger(**TRIGGERS[self.trigger])
        if self.sink == "foreachBatch":
            return writer.foreachBatch(self._keep).start()
        if self.sink == "table":
            return writer.option("path", str(self.folder / "table")).toTable(self.table)
        return writer.format("parquet").start(str(self.folder / "out"))

    def _keep(self, frame: DataFrame, number: int) -> None:
        rows = sorted(map(tuple, frame.collect()))
        assert self.given.setdefault(number, rows) == rows, f"{number} came with other rows"

    def finish(self) -> None:
        """Take what is there. One batch brings again what was not delivered, and one takes what
        has come since.
        """
        for _ in range(2 if self.trigger == "once" else 1):
            finish(self.start(), self.trigger)

    def delivered(self) -> Rows:
        """All that has come out."""
        if self.sink == "foreachBatch":
            return sorted(row for rows in self.given.values() for row in rows)
        if self.sink == "table":
            return sorted(map(tuple, self.session.table(self.table).collect()))
        return sorted(map(tuple, self.session.read.parquet(str(self.folder / "out")).collect()))

    def close(self) -> None:
        """Leave nothing in the session that others share."""
        self.session.sql(f"DROP TABLE IF EXISTS {self.table}")
        self.session.catalog.clearCache()


def finish(query: Any, trigger: str) -> None:
    """Wait until a query has taken what is there, and for its end."""
    if trigger not in ("once", "availableNow"):
        query.processAllAvailable()
        query.stop()
    query.awaitTermination()


_computed: dict[tuple[bool, bool], Rows] = {}


def expected(session: SparkSession, pipeline: Pipeline) -> Rows:
    """The windows that are closed in the end; a run of one batch closes none of its own.

    The plan before the operator keeps all rows, so cases with the same input have the same result.
    """
    is_once = pipeline.trigger == "once"
    kind = (len(pipeline.inputs) > 1, is_once)
    if kind not in _computed:
        last = 1 if is_once else 3
        bound = START_S + 600 * last + 60 * 8 - DELAY_S
        rows = session.read.schema(SCHEMA).parquet(*map(str, pipeline.inputs))
        found = windows(rows, "plain").filter(F.col("until") <= bound)
        _computed[kind] = sorted(map(tuple, found.collect()))
    return _computed[kind]
