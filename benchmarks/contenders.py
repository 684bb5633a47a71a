"""Who takes part in a benchmark of streams: a running query that is fed one file at a time."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from quiet_spark import SETTINGS, builder

from harness import wait_for_quiet
from holdfast import stateful

PARTITIONS = 4
SCHEMA = "user long, v long, ts timestamp"
_PROVIDERS = {
    "HDFS-backed": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "RocksDB": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
HDFS, ROCKS, OURS, FLOOR = "Spark, HDFS-backed", "Spark, RocksDB", "Holdfast", "without state"
Pipeline = Callable[[Any], Any]


def session() -> SparkSession:
    """The session of this process."""
    settings = {
        **SETTINGS,
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.streaming.pollingDelay": "500ms",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.driver.memory": "4g",
    }
    return builder("holdfast-bench", settings).getOrCreate()


@dataclass
class Contender:
    """One running query with a folder of its own; `times` are the seconds of its batches."""

    name: str
    folder: Path
    pipeline: Pipeline
    settings: Mapping[str, str] = field(default_factory=dict)
    query: Any = None
    times: list[float] = field(default_factory=list)

    def start(self) -> None:
        """Start the query, or start it again on its checkpoint."""
        (self.folder / "in").mkdir(parents=True, exist_ok=True)
        own = session().newSession()
        for setting, value in self.settings.items():
            own.conf.set(setting, value)
        kind = self.name.removeprefix("Spark, ")
        if kind in _PROVIDERS:
            own.conf.set("spark.sql.streaming.stateStore.providerClass", _PROVIDERS[kind])
        if kind == "RocksDB":
            name = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
            own.conf.set(name, "true")
        source = own.readStream.schema(SCHEMA).parquet(str(self.folder / "in"))
        if self.name == FLOOR:
            writer = source.writeStream.foreachBatch(self._without_state)
        else:
            frame = self.pipeline(stateful(source) if self.name == OURS else source)
            writer = frame.writeStream.outputMode("update").format("noop")
        checkpoint = str(self.folder / "checkpoint")
        self.query = writer.option("checkpointLocation", checkpoint).start()

    def _without_state(self, batch: DataFrame, number: int) -> None:
        self.pipeline(batch).write.format("noop").mode("overwrite").save()

    def feed(self, file: Path) -> float:
        """Have the query take in one file, and return the seconds its batch took."""
        known = self._batches()
        os.link(file, self.folder / "in" / file.name)
        self.query.processAllAvailable()
        while self._batches() == known:
            time.sleep(0.01)
        spent = self._spark_query().recentProgress
        data = [p for p in spent if p["numInputRows"] > 0]
        seconds = float(data[-1]["durationMs"]["triggerExecution"]) / 1000
        self.times.append(seconds)
        return seconds

    def _spark_query(self) -> Any:
        return self.query._inner.current if self.name == OURS else self.query

    def _batches(self) -> int:
        return sum(p["numInputRows"] > 0 for p in self._spark_query().recentProgress)

    def stop(self) -> None:
        """End the query; its checkpoint stays."""
        self.query.stop()

    def leave(self) -> None:
        """Nothing is left of it but its folder."""

    @property
    def median(self) -> float:
        """Seconds of a steady batch."""
        return statistics.median(self.times)


@dataclass
class Apart(Contender):
    """A contender in a process, and so in a JVM, of its own.

    None pays for another's garbage, nor for what another does in the background after its batch:
    each batch waits until the machine is quiet.
    """

    def __post_init__(self) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawning.Pipe()
        self._process = spawning.Process(
            target=_serve,
            args=(theirs, self.name, self.folder, self.pipeline, dict(self.settings)),
            daemon=True,
        )
        self._process.start()
        theirs.close()

    def _ask(self, what: str, *arguments: Any) -> Any:
        self._pipe.send((what, arguments))
        return self._pipe.recv()

    def start(self) -> None:
        self._ask("start")

    def feed(self, file: Path) -> float:
        wait_for_quiet()
        seconds: float = self._ask("feed", file)
        self.times.append(seconds)
        return seconds

    def stop(self) -> None:
        self._ask("stop")

    def leave(self) -> None:
        self._pipe.close()
        self._process.join(60)


def _serve(pipe: Connection, *what: Any) -> None:
    """Do what is asked for as a contender, until nobody is there to ask."""
    contender = Contender(*what)
    while True:
        try:
            asked, arguments = pipe.recv()
        except EOFError:
            break
        pipe.send(getattr(contender, asked)(*arguments))
    session().stop()
