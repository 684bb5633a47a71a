"""A driver whose tasks misbehave: they fail, have a slower twin, or wake up too late.

    python unruly_tasks.py FOLDER fail|twin|zombie MASTER

Reads FOLDER/in one file a batch, keeps totals in FOLDER/cp, and leaves in FOLDER/attempts what
each attempt did. With `twin` and `zombie` Spark starts a second attempt of a task that seems to
hang. The first one of a `twin` does its work and is slow to report. A `zombie` is stopped before
its work, and does it once later versions were committed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

sys.path.append(str(Path(__file__).parents[1]))

from quiet_spark import SETTINGS, builder
from wrapped_task import WrappedTask, wrap_aggregations

from holdfast import stateful
from holdfast.spark.running.query import StatefulQuery
from holdfast.streams.tasks.task import TaskResult

VERSION, PARTITION = 2, 1
"""Where it happens: in the second batch."""
PATIENCE_S = 180


@dataclass(frozen=True)
class UnrulyTask(WrappedTask):
    """A task that misbehaves once: before its work as a zombie, otherwise before it reports."""

    how: str
    notes: str

    def run(self, partition: int, schema: bytes, batches: Iterable[bytes]) -> TaskResult:
        if (self.base_version + 1, partition) != (VERSION, PARTITION):
            return self.task.run(partition, schema, batches)
        context = TaskContext.get()
        assert context is not None
        first = context.attemptNumber() == 0
        self._note(f"{context.attemptNumber()}-began")
        rows = list(batches)
        if first and self.how == "zombie":
            self._note("stopped", str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        result = self.task.run(partition, schema, rows)
        if first and self.how == "fail":
            raise RuntimeError("failed after its work was done")
        if first and self.how == "twin":
            self._wait_for("1-ended")
        self._note(f"{context.attemptNumber()}-ended")
        return result

    def _wait_for(self, what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not Path(self.notes, what).exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _note(self, what: str, text: str = "") -> None:
        Path(self.notes, what).write_text(text)


def session(how: str, master: str) -> SparkSession:
    settings = {
        **SETTINGS,
        "spark.speculation": str(how != "fail").lower(),
        "spark.speculation.interval": "200ms",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "1s",
        # Spark ends the process of an attempt it has no use for; a zombie shall outlive that.
        "spark.python.task.killTimeout": f"{PATIENCE_S}s",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    return builder("unruly tasks", settings, master).getOrCreate()


def wake_the_zombie(notes: Path, query: StatefulQuery) -> None:
    """Let the stopped worker go on once a later version is there, and wait until it has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while query.version <= VERSION and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(int((notes / "stopped").read_text()), signal.SIGCONT)
    deadline = time.monotonic() + PATIENCE_S
    while not (notes / "0-ended").exists() and time.monotonic() < deadline:
        time.sleep(0.1)


def main() -> None:
    folder, how, master = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    notes = folder / "attempts"
    notes.mkdir()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    wrap_aggregations(lambda task: UnrulyTask(task, how, str(notes)))
    spark = session(how, master)
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
