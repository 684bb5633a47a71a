"""A driver on a cluster that tells where its tasks should run and where they ran.

    python located_app.py FOLDER MASTER on|off BATCHES [KILL_AFTER]

Takes FOLDER/files one a batch, keeps totals in FOLDER/cp, and leaves FOLDER/report.json: for each
version what the coordinator was asked and said, what Spark was told, where the tasks ran, and what
came out. FOLDER/maintained.json says which executor merged which partition in the end.
FOLDER/secret is what the coordinator lets workers in by. After batch KILL_AFTER the
executor that holds partition 0 is killed; after the next one there is another in its place.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

sys.path.append(str(Path(__file__).parents[1]))

from quiet_spark import SETTINGS, builder
from wrapped_task import WrappedTask, wrap_aggregations

from holdfast import stateful
from holdfast.spark.interop.located_java import LocatedJava
from holdfast.spark.running.query import StatefulQuery
from holdfast.spark.state.locality import StateStoreRDD
from holdfast.streams.stores import open_providers
from holdfast.streams.tasks.task import TaskResult

PARTITIONS = 4
PATIENCE_S = 90


@dataclass(frozen=True)
class NotingTask(WrappedTask):
    """A task that notes where it ran, and which partitions its process holds."""

    notes: str

    def run(self, partition: int, schema: bytes, batches: Iterable[bytes]) -> TaskResult:
        open_providers.VERIFY_EVERY_S = 0.5
        result = self.task.run(partition, schema, batches)
        executor = open_providers.here._executor
        note = {
            "executor": None if executor is None else executor.executor_id,
            "host": None if executor is None else executor.host,
            "jvm": _parent(_parent(os.getpid())),
            "held": sorted(store.partition_id for _, store in open_providers.here._providers),
        }
        path = Path(self.notes, f"{self.base_version + 1}-{partition}")
        path.write_text(json.dumps(note))
        return result


def _parent(pid: int) -> int:
    """The parent of a process: that of a worker is PySpark's daemon, whose is the executor."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def maintained(query: StatefulQuery) -> dict[int, str]:
    """By partition the executor that merged it in a round of maintenance."""
    ran: dict[int, str] = {}
    plain = StateStoreRDD.run_one

    def noting(rdd: StateStoreRDD, partition: int, work: Callable[[int], Any]) -> Any:
        def noted(partition: int) -> tuple[str, Any]:
            executor = open_providers.here._executor
            return "" if executor is None else executor.executor_id, work(partition)

        ran[partition], swaps = plain(rdd, partition, noted)
        return swaps

    StateStoreRDD.run_one = noting  # type: ignore[method-assign]
    query._run.maintain()
    StateStoreRDD.run_one = plain  # type: ignore[method-assign]
    return ran


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # ended meanwhile, or somebody else's
        return b""


class Report:
    """What happened, version by version."""

    def __init__(self, notes: Path) -> None:
        self.versions: list[dict[str, Any]] = []
        self._notes = notes
        self._asked: dict[int, list[str]] = {}
        self._told: list[str] = []
        self._rows: list[tuple[int, int]] = []

    def listen(self) -> None:
        """Watch what the coordinator is asked and what Spark is told, first in a version."""
        ask, wrap = StateStoreRDD.get_preferred_locations, LocatedJava.wrap

        def asking(rdd: StateStoreRDD, partition: int) -> list[str]:
            said = ask(rdd, partition)
            self._asked.setdefault(partition, said)
            return said

        def wrapping(java: LocatedJava, parts: Any, locations: list[str | None]) -> Any:
            made = wrap(java, parts, locations)
            if len(locations) == PARTITIONS and not self._told:
                self._told = [
                    str(made.preferredLocations(part).mkString(",")) for part in made.partitions()
                ]
            return made

        StateStoreRDD.get_preferred_locations = asking  # type: ignore[method-assign]
        LocatedJava.wrap = wrapping  # type: ignore[method-assign]

    def deliver(self, rows: DataFrame, version: int) -> None:
        self._rows = sorted((row.user, row.total) for row in rows.collect())

    def add(self, version: int, seconds: float) -> dict[str, Any]:
        """Close the entry of a version."""
        ran = [
            json.loads((self._notes / f"{version}-{partition}").read_text())
            for partition in range(PARTITIONS)
        ]
        entry = {
            "asked": [self._asked.get(partition) for partition in range(PARTITIONS)],
            "told": self._told, "ran": ran, "rows": self._rows, "seconds": seconds,
        }  # fmt: skip
        self.versions.append(entry)
        self._asked, self._told = {}, []
        return entry


def session(master: str, locality: str) -> SparkSession:
    settings = {
        **SETTINGS,
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "spark.holdfast.locality": locality,
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
        "spark.sql.streaming.stateStore.maintenanceInterval": "1h",  # only when it is told to
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{PATIENCE_S}s",
        "spark.cores.max": "2",
        # However busy the machine is, no executor takes what another one is preferred for.
        "spark.locality.wait": f"{PATIENCE_S}s",
    }
    return builder("located", settings, master).getOrCreate()


def await_executors(query: StatefulQuery) -> None:
    java = query._run.loop._locality.java
    assert java is not None
    deadline = time.monotonic() + PATIENCE_S
    while len(java.executors()) < 2 and time.monotonic() < deadline:
        time.sleep(0.2)


def await_loss(query: StatefulQuery) -> None:
    """Wait until Spark knows that an executor is gone, so that no task waits for it."""
    locality = query._run.loop._locality
    assert locality.java is not None
    deadline = time.monotonic() + PATIENCE_S
    while len(locality.java.executors()) > 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    locality._alive = (0.0, [])


def main() -> None:
    folder, master, locality, batches = Path(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4])
    kill_after = int(sys.argv[5]) if len(sys.argv) > 5 else None
    logging.basicConfig(level=logging.DEBUG, filename=folder / "driver.log")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    notes, arriving = folder / "notes", folder / "in"
    notes.mkdir()
    arriving.mkdir()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    wrap_aggregations(lambda task: NotingTask(task, str(notes)))
    report = Report(notes)
    report.listen()
    spark = session(master, locality)
    source = spark.readStream.schema("user long, v long")
    query = (
        stateful(source.parquet(str(arriving)))
        .groupBy("user")
        .agg(F.sum("v").alias("total"))
        .writeStream.outputMode("update")
        .foreachBatch(report.deliver)
        .option("checkpointLocation", str(folder / "cp"))
        .start()
    )
    assert isinstance(query, StatefulQuery)
    # Rows of whatever size are read from state by tasks.
    query._run.loop._delivery._needs_partitions = True
    for number in range(batches):
        started = time.monotonic()
        (folder / "files" / f"{number}.parquet").rename(arriving / f"{number}.parquet")
        query.processAllAvailable()
        entry = report.add(query.version, time.monotonic() - started)
        if number + 1 == kill_after:
            os.kill(entry["ran"][0]["jvm"], signal.SIGKILL)
            await_loss(query)
        elif number == kill_after:
            await_executors(query)
    (folder / "maintained.json").write_text(json.dumps(maintained(query)))
    address = query._run.loop._locality.address
    command_lines = [_bytes(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
    environments = [_bytes(path) for path in Path("/proc").glob("[0-9]*/environ")]
    (folder / "processes").write_bytes(b"\n".join([*command_lines, *environments]))
    (folder / "secret").write_bytes(b"" if address is None else address.secret._key)
    query.stop()
    (folder / "report.json").write_text(json.dumps(report.versions))
    print(f"done {query.version}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
