"""On a cluster processes die at any moment, and every record counts exactly once.

Two queries read Kafka on two executors, one of windows and one of a processor, their state on HDFS
or on S3. At moments drawn from the seed the driver, an executor, a Python worker or the storage's
server gets SIGKILL. What comes out, and what is in state at the end, is compared with what plain
Python makes of the records.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any, TypeVar

import pytest
from cluster_app import QUERIES
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast.reading import open_root, verify
from processes import is_alive
from servers import Hdfs, Kafka, Minio, Server, SparkCluster, connector_jars

PHASES = ("read", "compute", "task", "write", "pack", "commit", "deliver", "delivered")
KINDS = ("server", "executor", "driver", "worker")
NAMES = [f"k{number}" for number in range(20)]
WINDOW_S = DELAY_S = 600
START_S = 1_700_000_000
RECORDS_A_KILL = 3000
PATIENCE_S = 240
ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")
Entry = dict[str, Any]
Record = tuple[int, str, int, int]
"""Partition of the topic, name, value, seconds."""


def _records(rnd: random.Random, count: int) -> list[Record]:
    """In the order they are produced: about one a second, no later than half a minute."""
    chosen = [rnd.randrange(len(NAMES)) for _ in range(count)]
    return [
        (name % 2, NAMES[name], rnd.randrange(100), START_S + number + rnd.randrange(-30, 1))
        for number, name in enumerate(chosen)
    ]


def _produce(spark: SparkSession, kafka: Kafka, topic: str, records: list[Record]) -> None:
    kafka.create_topic(topic, partitions=2)
    rows = [(partition, f"{name},{v},{time}") for partition, name, v, time in records]
    frame = spark.createDataFrame(rows, "partition int, value string").coalesce(1)
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", kafka.address)
    writer.option("topic", topic).save()


class Oracle:
    """What the queries must give and keep, from the records alone."""

    def __init__(self, records: list[Record]) -> None:
        offsets: Counter[int] = Counter()
        totals: Counter[tuple[str, int]] = Counter()
        counts: Counter[tuple[str, int]] = Counter()
        self.seen: dict[str, tuple[int, int]] = {}
        self.ordinals: Counter[Any] = Counter()
        for partition, name, v, seconds in records:
            n, total = self.seen.get(name, (0, 0))
            self.seen[name] = n + 1, total + v
            self.ordinals[name, offsets[partition], n + 1, total + v] += 1
            offsets[partition] += 1
            window = name, seconds - seconds % WINDOW_S
            totals[window] += v
            counts[window] += 1
        watermark = max(record[3] for record in records) - DELAY_S
        closed = {window for window in totals if window[1] + WINDOW_S <= watermark}
        self.windows = Counter((*window, totals[window], counts[window]) for window in closed)
        self.open = {window: totals[window] for window in totals if window not in closed}


class Application:
    """The application, started again whenever it ends, as a supervisor would."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        (folder / "app.json").write_text(json.dumps(settings))
        self._path = folder / "journal"
        self._path.touch()
        self._read = 0
        self.journal: list[Entry] = []
        self.attempts = self.failures = 0
        self._driver: subprocess.Popen[bytes]

    def start(self, what: str = "run") -> None:
        self.attempts += 1
        script = Path(__file__).parents[1] / "support" / "services" / "cluster_app.py"
        with (self.folder / "driver.log").open("ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, str(script), str(self.folder), str(self.attempts), what],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def look(self) -> list[Entry]:
        """The journal, as it is now."""
        with self._path.open() as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole)
        self.journal += [json.loads(line) for line in whole.splitlines()]
        return self.journal

    def wait_for(self, condition: Callable[[list[Entry]], T], what: str) -> T:
        """Wait for what is true; start the driver again if it ends by itself."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := condition(self.look())):
            assert time.monotonic() < deadline, f"{what} did not happen:\n{self.said()}"
            if self._driver.poll() is not None:
                self.failures += 1
                last = self.said().strip().splitlines()[-1]
                print(f"  the driver ended with {self._driver.returncode}: {last[:200]}")
                assert self.failures < 10, self.said()
                self.start()
            time.sleep(0.02)
        return found

    def finish(self) -> None:
        """Take in all the rest."""
        for _ in range(3):
            self.start("finish")
            if self._driver.wait(PATIENCE_S) == 0:
                return
        raise AssertionError(self.said())

    def kill(self) -> None:
        os.killpg(self._driver.pid, signal.SIGKILL)
        self._driver.wait()

    def close(self) -> None:
        if self._driver.poll() is None:
            self.kill()

    def said(self) -> str:
        return (self.folder / "driver.log").read_text(errors="replace")[-4000:]


class Killer:
    """Kills at moments drawn from the seed, each time waiting until the queries went on."""

    def __init__(self, app: Application, server: Server, rnd: random.Random) -> None:
        self._app, self._server, self._rnd = app, server, rnd
        self.moved: list[bool] = []

    def kill(self, number: int, kind: str) -> None:
        app, phase = self._app, "task" if kind == "worker" else self._rnd.choice(PHASES)
        self._wait_for_both_executors()
        seen = len(app.look())
        app.wait_for(
            lambda journal: any(entry["phase"] == phase for entry in journal[seen:]), phase
        )
        time.sleep(self._rnd.uniform(0, 0.15))
        lost = self._victim("worker" if kind == "worker" else "jvm")
        doing = app.look()[-1]
        seen = len(app.journal)
        started = time.monotonic()
        self._strike(kind, lost)
        self._wait_for_progress(seen)
        took = time.monotonic() - started
        if kind == "executor":
            self.moved.append(self._has_moved(lost, seen))
        step = f"{doing['phase']} of version {doing['version']} of {doing['query']}"
        title = self._server.name if kind == "server" else kind
        print(f"kill {number}: {title}, asked for {phase}, fell in {step}; went on in {took:.1f} s")

    def _strike(self, kind: str, lost: Entry) -> None:
        if kind == "driver":
            self._app.kill()
            self._app.start()
        elif kind == "server":
            self._server.kill()
            self._server.start()
        else:
            os.kill(lost["jvm"] if kind == "executor" else lost["worker"], signal.SIGKILL)

    def _wait_for_both_executors(self) -> None:
        def both_ran(journal: list[Entry]) -> bool:
            recent = [e for e in journal if e["attempt"] == self._app.attempts and "jvm" in e]
            return len({e["jvm"] for e in recent if is_alive(e["jvm"])}) >= 2

        self._app.wait_for(both_ran, "work in two executors")

    def _victim(self, what: str) -> Entry:
        """The newest task whose process, or whose executor's, is there; Spark ends workers, too."""

        def alive(journal: list[Entry]) -> list[Entry]:
            return [e for e in journal[-40:] if what in e and is_alive(e[what])]

        return self._app.wait_for(alive, f"a {what} at work")[-1]

    def _wait_for_progress(self, seen: int) -> None:
        """Each query delivers a version that begins after the kill."""

        def went_on(journal: list[Entry]) -> bool:
            since: dict[tuple[str, str], set[int]] = {}
            for entry in journal[seen:]:
                since.setdefault((entry["query"], entry["phase"]), set()).add(entry["version"])
            return all(
                since.get((query, "read"), set()) & since.get((query, "delivered"), set())
                for query in QUERIES
            )

        self._app.wait_for(went_on, "another version of each query")

    def _has_moved(self, lost: Entry, seen: int) -> bool:
        """Whether a partition of the lost executor ran in another one after it."""
        place = lost["query"], lost["partition"]
        after = [
            entry
            for entry in self._app.look()[seen:]
            if "jvm" in entry and (entry["query"], entry["partition"]) == place
        ]
        return any(entry["jvm"] != lost["jvm"] for entry in after)


def _settings(cluster: SparkCluster, kafka: Kafka, topic: str) -> dict[str, Any]:
    return {
        "source": {
            "kafka.bootstrap.servers": kafka.address,
            "subscribe": topic,
            "startingOffsets": "earliest",
        },
        "spark": {
            "spark.master": cluster.url,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.log.level": "ERROR",
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "spark.cores.max": "2",
            "spark.jars": ",".join(map(str, connector_jars())),
            # Spark's own client waits for a NameNode as long as Holdfast does.
            "spark.hadoop.dfs.client.retry.policy.enabled": "true",
            "spark.hadoop.dfs.client.retry.policy.spec": "1000,60",
        },
        "examples": str(ROOT / "examples"),
        "states": None,
        "sample": False,
    }


def _run(app: Application, server: Server, kinds: list[str], rnd: random.Random) -> None:
    """Kill what `kinds` says, one after the other, and bring the queries to their end."""
    app.start()
    try:
        killer = Killer(app, server, rnd)
        for number, kind in enumerate(kinds):
            killer.kill(number, kind)
        app.kill()
        app.finish()
    finally:
        app.close()
    moves = sum(killer.moved)
    print(f"{app.attempts} drivers, of which {app.failures} ended by themselves; {moves} moves")
    assert len({entry["jvm"] for entry in app.look() if "jvm" in entry}) >= 2
    assert moves == kinds.count("executor"), "each lost executor's partitions moved on"


def _check(
    spark: SparkSession, app: Application, oracle: Oracle, roots: str, options: dict[str, str]
) -> None:
    def delivered(name: str) -> Counter[Any]:
        return Counter(map(tuple, spark.read.parquet(str(app.folder / "out" / name)).collect()))

    assert delivered("windows") == oracle.windows
    assert delivered("ordinals") == oracle.ordinals
    windows, ordinals = (roots.format(name) for name in QUERIES)
    state = holdfast.read(windows, options=options).to_arrow().to_pylist()
    kept = {
        (row["name"], int(row["window_start"].replace(tzinfo=UTC).timestamp())): row["total"]
        for row in state
    }
    assert kept == oracle.open
    seen = holdfast.read(ordinals, store="seen", options=options).to_arrow().to_pylist()
    assert {row["name"]: (row["n"], row["total"]) for row in seen} == oracle.seen
    for root in (windows, ordinals):
        assert verify(open_root(root, options=options)).intact


def _kinds(rnd: random.Random, rounds: int) -> list[str]:
    kinds = [KINDS[number % len(KINDS)] for number in range(rounds)]
    rnd.shuffle(kinds)
    return kinds


def _seeded() -> random.Random:
    seed = int(os.environ.get("HOLDFAST_SEED") or random.randrange(10**9))
    print(f"seed {seed}")
    return random.Random(seed)


def _on_hdfs(
    spark: SparkSession, kafka: Kafka, cluster: SparkCluster, hdfs: Hdfs, folder: Path, rounds: int
) -> None:
    rnd = _seeded()
    records, topic = _records(rnd, RECORDS_A_KILL * rounds), f"on-hdfs-{rounds}"
    _produce(spark, kafka, topic, records)
    checkpoints = f"{hdfs.url}/kills-{rounds}"
    settings = _settings(cluster, kafka, topic) | {"checkpoints": checkpoints, "sample": True}
    app = Application(folder / "app", settings)
    _run(app, hdfs, _kinds(rnd, rounds), rnd)
    _check(spark, app, Oracle(records), f"{checkpoints}/{{}}/holdfast", {})
    rows = spark.read.parquet(str(app.folder / "out" / "sample")).select(
        F.col("value").cast("long")
    )
    values = sorted(row.value for row in rows.collect())
    assert values == list(range(len(values)))
    assert values


def _on_s3(
    spark: SparkSession,
    kafka: Kafka,
    cluster: SparkCluster,
    minio: Minio,
    folder: Path,
    rounds: int,
) -> None:
    rnd = _seeded()
    records, topic = _records(rnd, RECORDS_A_KILL * rounds), f"on-s3-{rounds}"
    _produce(spark, kafka, topic, records)
    states = f"s3a://state/kills-{rounds}"
    settings = _settings(cluster, kafka, topic)
    settings |= {"checkpoints": str(folder / "checkpoints"), "states": states}
    settings["spark"] |= {
        "spark.hadoop.fs.s3a.endpoint": minio.url,
        "spark.hadoop.fs.s3a.access.key": minio.key,
        "spark.hadoop.fs.s3a.secret.key": minio.secret,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
    }
    app = Application(folder / "app", settings)
    _run(app, minio, _kinds(rnd, rounds), rnd)
    _check(spark, app, Oracle(records), f"{states}/{{}}", minio.options)


@pytest.mark.services
@pytest.mark.timeout(1800)
def test_kills_lose_and_repeat_nothing_with_checkpoints_and_state_on_hdfs(
    spark: SparkSession, kafka: Kafka, cluster: SparkCluster, hdfs: Hdfs, tmp_path: Path
) -> None:
    _on_hdfs(spark, kafka, cluster, hdfs, tmp_path, rounds=6)


@pytest.mark.services
@pytest.mark.timeout(1800)
def test_kills_lose_and_repeat_nothing_with_state_on_s3(
    spark: SparkSession, kafka: Kafka, cluster: SparkCluster, minio: Minio, tmp_path: Path
) -> None:
    _on_s3(spark, kafka, cluster, minio, tmp_path, rounds=6)


@pytest.mark.soak
def test_thirty_kills_lose_and_repeat_nothing_on_hdfs(
    spark: SparkSession, kafka: Kafka, cluster: SparkCluster, hdfs: Hdfs, tmp_path: Path
) -> None:
    _on_hdfs(spark, kafka, cluster, hdfs, tmp_path, rounds=30)


@pytest.mark.soak
def test_thirty_kills_lose_and_repeat_nothing_on_s3(
    spark: SparkSession, kafka: Kafka, cluster: SparkCluster, minio: Minio, tmp_path: Path
) -> None:
    _on_s3(spark, kafka, cluster, minio, tmp_path, rounds=30)
