"""How many tasks run on the executor that holds their state, and what they fetch otherwise.

    python benchmarks/locality.py [--batches 20]

Two executors of one core each, eight partitions, state on a MinIO of its own. A task counts when
it runs on the executor that its partition's task of the batch before ran on. Fetched is what tasks
read of segments and packs; changed is what the batch before wrote of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

sys.path.append(str(Path(__file__).parents[1] / "dev"))
sys.path.append(str(Path(__file__).parents[1] / "tests" / "support" / "services"))

from wrapped_task import WrappedTask, wrap_aggregations

from harness import Report
from holdfast import stateful
from holdfast.backends.s3 import S3Storage
from holdfast.streams.tasks.task import TaskResult
from servers import Minio

MASTER = "local-cluster[2,1,1024]"
PARTITIONS = 8
USERS, ROWS = 400_000, 20_000
STATE = "s3a://state/locality"


@dataclass(frozen=True)
class NotingTask(WrappedTask):
    """A task that notes the executor it ran in, by its process."""

    notes: str

    def run(self, partition: int, schema: bytes, batches: Iterable[bytes]) -> TaskResult:
        count_fetches()
        before = S3Storage.fetched  # type: ignore[attr-defined]
        result = self.task.run(partition, schema, batches)
        note = {
            # A worker's parent is PySpark's daemon, of which an executor has one.
            "executor": os.getppid(),
            "fetched": S3Storage.fetched - before,  # type: ignore[attr-defined]
            "changed": sum(
                part.delta.info.size for part in result.prepared if part.delta is not None
            ),
        }
        Path(self.notes, f"{self.base_version + 1}-{partition}").write_text(json.dumps(note))
        return result


def count_fetches() -> None:
    """Have this process count the bytes of segments and packs it reads from S3."""
    if hasattr(S3Storage, "fetched"):
        return
    S3Storage.fetched = 0
    plain = S3Storage._get

    def counted(self: S3Storage, path: str, **how: str) -> pa.Buffer:
        found = plain(self, path, **how)
        if not path.startswith("versions/"):
            S3Storage.fetched += found.size  # type: ignore[attr-defined]
        return found

    S3Storage._get = counted  # type: ignore[method-assign]


def session(locality: str, reached: dict[str, str]) -> SparkSession:
    settings = {
        "spark.hadoop.fs.s3a.endpoint": reached["endpoint_url"],
        "spark.hadoop.fs.s3a.access.key": reached["key"],
        "spark.hadoop.fs.s3a.secret.key": reached["secret"],
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.sql.streaming.stateStore.maintenanceInterval": "5s",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.holdfast.locality": locality,
        "spark.holdfast.progress": "false",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    builder = SparkSession.builder.master(MASTER).appName("locality")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def run(folder: Path, locality: str, batches: int) -> None:
    """A stream of its own process; leaves the seconds of its batches and where tasks ran."""
    notes, arriving = folder / "notes", folder / "in"
    notes.mkdir()
    arriving.mkdir()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    wrap_aggregations(lambda task: NotingTask(task, str(notes)))
    spark = session(locality, json.loads(os.environ["REACHED"]))
    query = (
        stateful(spark.readStream.schema("user long, v long").parquet(str(arriving)))
        .groupBy("user")
        .agg(F.sum("v").alias("total"))
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(folder / "cp"))
        .option("stateLocation", f"{STATE}-{locality}")
        .start()
    )
    rng = np.random.default_rng(1)
    seconds = []
    for number in range(batches + 1):
        users = rng.integers(0, USERS, ROWS) if number else np.arange(USERS)
        rows = {"user": users, "v": rng.integers(0, 10_000, len(users))}
        pq.write_table(pa.table(rows), folder / "next.parquet")
        (folder / "next.parquet").rename(arriving / f"{number}.parquet")
        started = time.perf_counter()
        query.processAllAvailable()
        seconds.append(time.perf_counter() - started)
    query.stop()
    spark.stop()
    (folder / "seconds.json").write_text(json.dumps(seconds))


@dataclass(frozen=True)
class Measured:
    """What batches did after the first two."""

    stayed: float
    """The share of tasks that ran where their state was."""
    seconds: float
    fetched: float
    changed: float


def measured(locality: str, batches: int, reached: dict[str, str]) -> Measured:
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, __file__, "--run", name, locality, "--batches", str(batches)]
        subprocess.run(command, check=True, env={**os.environ, "REACHED": json.dumps(reached)})
        notes = Path(name, "notes")
        ran = [
            [json.loads((notes / f"{version}-{p}").read_text()) for p in range(PARTITIONS)]
            for version in range(1, batches + 2)
        ]
        seconds = json.loads(Path(name, "seconds.json").read_text())
    places = [[task["executor"] for task in version] for version in ran]
    assert len({place for version in places for place in version}) > 1, "one executor took part"
    stayed = [
        was == now
        for before, after in pairwise(places)
        for was, now in zip(before, after, strict=True)
    ]

    def a_batch(what: str, versions: list[Any]) -> float:
        return statistics.mean(sum(task[what] for task in version) for version in versions) / 1024

    # What the first batch wrote, all users, is fetched by none but its writer's successor.
    return Measured(
        sum(stayed) / len(stayed),
        statistics.median(seconds[1:]),
        a_batch("fetched", ran[2:]),
        a_batch("changed", ran[1:-1]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--run", nargs=2, metavar=("FOLDER", "LOCALITY"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run(Path(given.run[0]), given.run[1], given.batches)
        return
    report = Report("Locality: tasks that run where their state is")
    with tempfile.TemporaryDirectory() as folder, Minio(Path(folder)) as server:
        server.create_bucket("state")
        on = measured("on", given.batches, server.options)
        off = measured("off", given.batches, server.options)
    what = f"{given.batches} batches, {PARTITIONS} partitions, 2 executors"
    report.add("tasks that ran where preferred", on.stayed, "share", at_least=0.9, note=what)
    report.add("the same with locality off", off.stayed, "share", note="by chance")
    report.add("changed in a batch", on.changed, "KiB", note=f"of {USERS:,} users")
    report.add("fetched in a batch", on.fetched, "KiB")
    report.add("fetched with locality off", off.fetched, "KiB")
    report.add("fetched for what changed", on.fetched / on.changed, "ratio", at_most=1.1)
    report.add("the same with locality off", off.fetched / off.changed, "ratio")
    report.add("median batch", on.seconds, "s")
    report.add("median batch with locality off", off.seconds, "s")
    report.write("locality")
    sys.exit(0 if report.all_hold else 1)


if __name__ == "__main__":
    main()
