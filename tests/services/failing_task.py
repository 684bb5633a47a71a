"""A driver with a task that fails once its work is done, and is run again.

    python failing_task.py FOLDER

Reads FOLDER/in one file a batch, keeps totals in FOLDER/cp, and leaves in FOLDER/attempts what
each attempt did.
"""

from __future__ import annotations

import sys
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
from holdfast.streams.task import StoreSpec, Task, TaskResult

VERSION, PARTITION = 2, 1
"""Where it happens: in the second batch."""


@dataclass(frozen=True)
class FailingTask:
    """A task that does its work and then fails, once, before it can report."""

    task: Task
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
            raise RuntimeError("failed after its work was done")
        self._note(f"{context.attemptNumber()}-ended")
        return result

    def _note(self, what: str) -> None:
        Path(self.notes, what).touch()


def session() -> SparkSession:
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master("local[2,4]").appName("failing task")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main() -> None:
    folder = Path(sys.argv[1])
    notes = folder / "attempts"
    notes.mkdir()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    plain = Aggregation.task

    def failing(self: Aggregation, settings: TaskSettings) -> Any:
        return FailingTask(plain(self, settings), str(notes))

    Aggregation.task = failing  # type: ignore[method-assign]
    spark = session()
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
    query.processAllAvailable()
    query.stop()
    print(f"done {query.version}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
