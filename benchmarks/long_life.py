"""A long life: many small batches of a stream, and many versions of a store. Does anything grow?

    python benchmarks/long_life.py stream [--count 10000]
    python benchmarks/long_life.py store [--count 100000]

The state has the same keys all the time, so nothing has a reason to grow. The last tenth of the
versions is compared with the first: CPU time, files, descriptors and private memory. The time by
the clock is reported only: other work on the machine is in it. A life begins after a warm-up of a
twentieth as many versions, in which the JVM takes its heap and retention gets its first versions.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast
from charts import lines
from harness import RESULTS, Report
from holdfast import stateful
from holdfast.conf import StateStoreConf
from processes import MiB, cpu_s, descriptors, files_below, jvm_mib, python_mib, size_of

LOOKS = 200
"""How often things are looked at in a life."""
WARM = 20
"""The part of a life that the warm-up is as long as."""
KEYS = 1000
AT_MOST = 1.15
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.streaming.stateStore.maintenanceInterval": "5s",
    "spark.holdfast.gracePeriod": "5s",
    "spark.holdfast.progress": "false",
}


@dataclass(frozen=True)
class Look:
    """What was seen after so many versions."""

    version: int
    version_ms: float
    """The time of one version since the look before."""
    cpu_ms: float
    """The CPU time of one version, of driver, JVM and workers."""
    files: int
    disk_mib: float
    descriptors: int
    python_mib: float
    jvm_mib: float


def looks(
    version: Callable[[], int], folder: Path, count: int, pause_s: float = 0
) -> Iterator[Look]:
    """A look every so many versions, until there are `count` after the warm-up.

    `version` gives the newest one, or makes it; between two calls it is left alone for `pause_s`.
    """
    warm = count // WARM
    while version() < warm:
        time.sleep(pause_s)
    before, since, cpu = version(), time.monotonic(), cpu_s()
    every = max(count // LOOKS, 1)
    while before < count + warm:
        while (now := version()) < min(before + every, count + warm):
            time.sleep(pause_s)
        passed_ms, used_ms = 1000 * (time.monotonic() - since), 1000 * (cpu_s() - cpu)
        state, made = files_below(folder), now - before
        yield Look(
            now, passed_ms / made, used_ms / made, len(state), sum(map(size_of, state)) / MiB,
            descriptors(), python_mib(), jvm_mib(),
        )  # fmt: skip
        before, since, cpu = version(), time.monotonic(), cpu_s()


def of_stream(count: int, folder: Path) -> list[Look]:
    """The looks at a stream with as many small batches as Spark can run."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("long life")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    query = (
        stateful(rows.select((F.col("value") % KEYS).alias("key")))
        .groupBy("key")
        .count()
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(folder / "cp"))
        .start()
    )
    found = shown(looks(lambda: query.version, folder, count, pause_s=0.05))
    query.stop()
    total = query.state().scan(columns=["count"]).column("count").to_numpy().sum()
    assert total == 100 * query.version, "rows were lost"
    spark.stop()
    return found


def of_store(count: int, folder: Path) -> list[Look]:
    """The looks at a store with retention, written to by this process alone."""
    conf = StateStoreConf.from_spark(SETTINGS)
    with holdfast.open(folder, "key long", "n long", conf=conf) as store:
        keys = pa.array(range(KEYS), pa.int64())

        def make_versions() -> int:
            with store.update() as update:
                start = 10 * store.version % KEYS
                update.put_many(pa.table({"key": keys[start : start + 10], "n": keys[:10]}))
            return store.version

        return shown(looks(make_versions, folder, count))


def shown(found: Iterator[Look]) -> list[Look]:
    """The looks, some of them printed as they come."""
    kept = []
    for look in found:
        kept.append(look)
        if len(kept) % 10 == 0:
            print(look, flush=True)
    return kept


FIGURES: dict[str, tuple[str, Callable[[Look], float]]] = {
    "CPU time of a version": ("ms", lambda look: look.cpu_ms),
    "files": ("files", lambda look: look.files),
    "disk": ("MiB", lambda look: look.disk_mib),
    "descriptors": ("open", lambda look: look.descriptors),
    "private memory of Python processes": ("MiB", lambda look: look.python_mib),
    "private memory of the JVM": ("MiB", lambda look: look.jvm_mib),
}


def told(report: Report, found: list[Look]) -> None:
    """Compare the last tenth with the first."""
    tenth = max(len(found) // 10, 1)
    for name, part in (("first", found[:tenth]), ("last", found[-tenth:])):
        time_ms = statistics.median(look.version_ms for look in part)
        report.add("a version by the clock", time_ms, "ms", note=f"{name} tenth")
    for name, (unit, figure) in FIGURES.items():
        was, now = (
            statistics.median(map(figure, part)) for part in (found[:tenth], found[-tenth:])
        )
        if was:
            report.add(name, now, unit, note="last tenth")
            report.add(f"{name}: last tenth to the first", now / was, "ratio", at_most=AT_MOST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["stream", "store"])
    parser.add_argument("--count", type=int)
    given = parser.parse_args()
    kinds = {"stream": (of_stream, 10_000), "store": (of_store, 100_000)}
    run, default = kinds[given.kind]
    count = given.count or default
    report = Report(f"A long life: {count:,} versions of a {given.kind}")
    with tempfile.TemporaryDirectory(prefix="holdfast-life-") as folder:
        found = run(count, Path(folder))
    told(report, found)
    report.write(f"soak-life-{given.kind}")
    series = {
        f"{name} ({unit})": [(float(look.version), float(figure(look))) for look in found]
        for name, (unit, figure) in FIGURES.items()
    }
    chart = lines(f"{count:,} versions of a {given.kind}", "versions", series)
    (RESULTS / f"soak-life-{given.kind}.svg").write_text(chart)
    sys.exit(0 if report.all_hold else 1)


if __name__ == "__main__":
    main()
