"""An application on a cluster that writes down where it is, and dawdles there, to be killed.

    python cluster_app.py FOLDER ATTEMPT run|finish

FOLDER/app.json has the Spark settings, the topic, and where checkpoints and state are. Two queries
read the topic: `windows` adds up ten minutes each, `ordinals` numbers the records of each key by a
processor of its own. Where the settings say so, the checkpointing sample runs beside them. Each
step is a line in FOLDER/journal. `run` goes on until it is killed or a query fails; `finish` takes
in all there is.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from wrapped_task import WrappedTask

from holdfast import stateful
from holdfast.engine.versions.committer import Committer
from holdfast.engine.versions.log import VersionLog
from holdfast.spark.pipeline.stages import StageRun
from holdfast.spark.versions.computation import Computation
from holdfast.spark.versions.loop import VersionLoop
from holdfast.spark.versions.opening import LoopOpening
from holdfast.streams.stores import open_providers
from holdfast.streams.tasks.task import Task, TaskResult
from holdfast.streams.watermark import Watermarks

QUERIES = ("windows", "ordinals")
ORDINALS = "name string, offset long, n long, total long"
_DAWDLE_S = 0.1


@dataclass(frozen=True)
class Journal:
    """One line for each step of any process of the application."""

    path: str
    attempt: int

    def note(self, query: str, phase: str, version: int, **where: Any) -> None:
        entry = {"attempt": self.attempt, "query": query, "phase": phase, "version": version}
        with Path(self.path).open("a") as file:
            file.write(json.dumps({**entry, **where}) + "\n")


@dataclass(frozen=True)
class NotingTask(WrappedTask):
    """A task that notes which process of which executor it runs in, and takes its time."""

    journal: Journal
    query: str

    def run(self, partition: int, schema: bytes, batches: Iterable[bytes]) -> TaskResult:
        executor = open_providers.here._executor
        where = {
            "partition": partition,
            "executor": None if executor is None else executor.executor_id,
            "worker": os.getpid(),
            "jvm": int(_stat(os.getppid()).rpartition(")")[2].split()[1]),
        }
        self.journal.note(self.query, "task", self.base_version + 1, **where)
        time.sleep(random.uniform(0, _DAWDLE_S))
        return self.task.run(partition, schema, batches)


def _stat(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text()


class Ordinals(StatefulProcessor):
    """Numbers the records of a key in the order of their offsets, and adds them up."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "n long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total = self.seen.get() or (0, 0)
        for row in sorted(rows, key=lambda row: row.offset):
            n, total = n + 1, total + row.v
            yield Row(name=key[0], offset=row.offset, n=n, total=total)
        self.seen.update((n, total))

    def close(self) -> None:
        pass


def windows(records: DataFrame) -> Any:
    return (
        stateful(records)
        .withWatermark("time", "10 minutes")
        .groupBy("name", F.window("time", "10 minutes"))
        .agg(F.sum("v").alias("total"), F.count("*").alias("n"))
        .select("name", F.unix_timestamp("window.start").alias("start"), "total", "n")
    )


def ordinals(records: DataFrame) -> Any:
    grouped = stateful(records).groupBy("name")
    return grouped.transformWithState(Ordinals(), ORDINALS, "Append", "None")


def keep_journal(journal: Journal) -> None:
    """Have the steps of a version note that they begin, and take their time."""
    doing = threading.local()

    def noting(owner: type, name: str, phase: str) -> None:
        method: Callable[..., Any] = getattr(owner, name)

        def slowly(*args: Any, **kwargs: Any) -> Any:
            if phase == "open":
                doing.now = (str(args[0].home.spec.name), 0)
            elif isinstance(loop := args[0], VersionLoop):
                doing.now = (str(loop.spec.name), loop.manifest.version + (phase != "deliver"))
            query, version = doing.now
            journal.note(query, phase, version)
            time.sleep(random.uniform(0, _DAWDLE_S))
            return method(*args, **kwargs)

        setattr(owner, name, slowly)

    noting(LoopOpening, "open", "open")
    noting(VersionLoop, "run", "read")
    noting(Computation, "_run_stage", "compute")
    noting(VersionLoop, "_commit", "write")
    noting(Committer, "_pack", "pack")
    noting(VersionLog, "publish", "commit")
    noting(VersionLoop, "_deliver", "deliver")
    plain_stage, plain_deliver = Computation._run_stage, VersionLoop._deliver

    def run_stage(
        made: Computation, run: StageRun, task: Task, rows: Any, marks: Watermarks
    ) -> Any:
        noted = NotingTask(task, journal, str(made._spec.name))
        return plain_stage(made, run, noted, rows, marks)

    def deliver(loop: VersionLoop, *args: Any) -> None:
        plain_deliver(loop, *args)
        journal.note(str(loop.spec.name), "delivered", loop.manifest.version)

    Computation._run_stage = run_stage  # type: ignore[method-assign]
    VersionLoop._deliver = deliver  # type: ignore[method-assign]


def session(settings: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName("to be killed")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def records(spark: SparkSession, source: dict[str, str], finish: bool) -> DataFrame:
    """The topic, a few records a batch, or all at once."""
    reader = spark.readStream.format("kafka").options(**source)
    if not finish:
        reader = reader.option("maxOffsetsPerTrigger", "40")
    parts = F.split(F.col("value").cast("string"), ",")
    return reader.load().select(
        "offset",
        parts[0].alias("name"),
        parts[1].cast("long").alias("v"),
        F.timestamp_seconds(parts[2].cast("long")).alias("time"),
    )


def start(spark: SparkSession, app: dict[str, Any], folder: Path, finish: bool) -> list[Any]:
    queries = []
    for name, made in zip(QUERIES, (windows, ordinals), strict=True):
        writer = made(records(spark, app["source"], finish)).writeStream.queryName(name)
        writer = writer.format("parquet").outputMode("append")
        writer = writer.option("checkpointLocation", f"{app['checkpoints']}/{name}")
        if app["states"] is not None:
            writer = writer.option("stateLocation", f"{app['states']}/{name}")
        if finish:
            writer = writer.trigger(availableNow=True)
        queries.append(writer.start(str(folder / "out" / name)))
    return queries


def start_sample(spark: SparkSession, app: dict[str, Any], folder: Path) -> None:
    sys.path.append(app["examples"])
    import checkpointing

    checkpointing.ROWS_PER_SECOND = 20
    checkpoint = f"{app['checkpoints']}/sample"
    checkpointing.checkpoint_exercise(spark, checkpoint, folder / "out" / "sample")


def main() -> None:
    folder, attempt, finish = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "finish"
    app = json.loads((folder / "app.json").read_text())
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    keep_journal(Journal(str(folder / "journal"), attempt))
    spark = session(app["spark"])
    queries = start(spark, app, folder, finish)
    if finish:
        for query in queries:
            query.awaitTermination()
        print("done", *(query.version for query in queries), flush=True)
    else:
        if app["sample"]:
            start_sample(spark, app, folder)
        spark.streams.awaitAnyTermination()
    spark.stop()


if __name__ == "__main__":
    main()
