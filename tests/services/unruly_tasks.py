"""A driver whose tasks misbehave: they fail, have a slower twin, or wake up too late.

    python unruly_tasks.py FOLDER fail|twin|zombie

Reads FOLDER/in one file a batch, keeps totals in FOLDER/cp, and leaves in FOLDER/attempts what
each attempt did. With `zombie` one worker stops itself in the middle of a task; the driver wakes
it once the version it worked on has been committed by its twin.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast import stateful
from holdfast.spark.aggregation import Aggregation
from holdfast.spark.operators import TaskSettings
from holdfast.spark.query import StatefulQuery
from holdfast.streams.task import StoreSpec, Task, TaskResult

VERSION, PARTITION = 2, 1
"""Where it happens: in the second batch."""


@dataclass(frozen=True)
class UnrulyTask:
    """A task that does its work and then misbehaves, once, before it can report."""

    task: Task
    how: str
    notes: str

    @property
    def store(self) -> StoreSpec:
        return self.task.store

    @property
    def base_version(self) -> int:
        return self.task.base_version

    def run(self, partition: int, schema: bytes, batches: Iterable[bytes]) -> TaskResult:
        if (self.base_version + 1, partition) != (VERSION, PARTITION):
            return self.task.run(partition, schema, batches)
        context = TaskContext.get()
        assert context is not None
        first = context.attemptNumber() == 0
        self._note(f"{context.attemptNumber()}-began")
        result = self.task.run(partition, schema, list(batches))
        if first:
            self._misbehave()
        self._note(f"{context.attemptNumber()}-ended")
        return result

    def _misbehave(self) -> None:
        if self.how == "fail":
            raise RuntimeError("failed after its work was done")
        if self.how == "twin":
            time.sleep(20)
        else:
            Path(self.notes, "stopped").write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)

    def _note(self, what: str) -> None:
        Path(self.notes, what).touch()


def session(how: str) -> SparkSession:
    master = "local[2,4]" if how == "fail" else "local-cluster[2,1,1024]"
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.speculation": str(how != "fail").lower(),
        "spark.speculation.interval": "200ms",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "1s",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    builder = SparkSession.builder.master(master).appName("unruly tasks")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def wake_the_zombie(notes: Path, query: StatefulQuery) -> None:
    """Let the stopped worker go on once its version is there, and wait until it has ended."""
    while query.version < VERSION or not (notes / "stopped").exists():
        time.sleep(0.1)
    pid = int((notes / "stopped").read_text())
    os.kill(pid, signal.SIGCONT)
    deadline = time.monotonic() + 30
    while not (notes / "0-ended").exists() and time.monotonic() < deadline:
        time.sleep(0.1)


def main() -> None:
    folder, how = Path(sys.argv[1]), sys.argv[2]
    notes = folder / "attempts"
    notes.mkdir()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    plain = Aggregation.task

    def unruly(self: Aggregation, settings: TaskSettings) -> Any:
        return UnrulyTask(plain(self, settings), how, str(notes))

    Aggregation.task = unruly  # type: ignore[method-assign]
    spark = session(how)
    source = spark.readStream.schema("user long, v long").option("maxFilesPerTrigger", "1")
    query = (
        stateful(source.parquet(str(folder / "in")))
        .groupBy("user")
        .agg(F.sum("v").alias("total"))
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(folder / "cp"))
        .start()
    )
    assert isinstance(query, StatefulQuery)
    if how == "zombie":
        wake_the_zombie(notes, query)
    query.processAllAvailable()
    query.stop()
    print(f"done {query.version}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
