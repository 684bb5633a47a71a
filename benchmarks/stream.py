"""Managed state next to Spark's own: the same batches through each, in turn, in one run.

    python benchmarks/stream.py [--small] [--only many,few,sliding,small]

Every contender is a running query in a driver of its own that is fed one file at a time, when the
machine is quiet; the time of a batch is the `triggerExecution` Spark itself reports for it, its
output delivered to noop. Medians of steady batches; the floor is the same aggregation without any
state.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from charts import bars
from contenders import FLOOR, HDFS, OURS, ROCKS, Apart, Contender, Pipeline
from harness import RESULTS, Report, warm_memory

MILLION = 1_000_000
_MEMORY_GB = 16


def totals(frame: Any) -> Any:
    """A running total per user."""
    return frame.groupBy("user").agg(F.sum("v").alias("total"), F.count("*").alias("n"))


def sliding(frame: Any) -> Any:
    """Ten minutes by one, with a watermark."""
    marked = frame.withWatermark("ts", "1 minute")
    return marked.groupBy("user", F.window("ts", "10 minutes", "1 minute")).agg(F.sum("v"))


def write_file(path: Path, users: np.ndarray, rng: np.random.Generator, minute: int) -> Path:
    """One batch: a row for each of `users`, event times within a minute."""
    start = 1_700_000_000 + minute * 60
    times = (start * MILLION + rng.integers(0, 60 * MILLION, len(users))).astype(np.int64)
    table = pa.table(
        {
            "user": users,
            "v": rng.integers(0, 100, len(users)),
            "ts": pa.array(times).cast(pa.timestamp("us", tz="UTC")),
        }
    )
    pq.write_table(table, path)
    return path


class Bench:
    """Runs workloads, each with its own contenders, and reports their ratios."""

    contender: type[Contender] = Apart

    def __init__(self, folder: Path, scale: int, report: Report) -> None:
        self._folder = folder
        self._scale = scale
        self._report = report
        self._rng = np.random.default_rng(7)
        self._present: list[Contender] = []
        self.charts: dict[str, dict[str, float]] = {}

    def workload(
        self,
        title: str,
        names: list[str],
        pipeline: Pipeline,
        files: list[Path],
        warm: int,
        settings: Mapping[str, str] | None = None,
    ) -> dict[str, Contender]:
        """Feed every file to every contender in turn; the first `warm` do not count."""
        place = self._folder / title.replace(" ", "-").replace(",", "")
        found = {
            name: self.contender(name, place / name.replace(" ", "-"), pipeline, settings or {})
            for name in names
        }
        self._present += found.values()
        for contender in found.values():
            contender.start()
        for number, file in enumerate(files):
            for contender in found.values():
                contender.feed(file)
                if number < warm:
                    contender.times.clear()
        for contender in found.values():
            contender.stop()
            self._report.add(f"{title}: {contender.name}", contender.median, "s")
        self.charts.setdefault(title, {}).update({n: c.median for n, c in found.items()})
        return found

    def clear(self) -> None:
        """Have the contenders of a workload leave."""
        while self._present:
            self._present.pop().leave()

    def _files(self, stem: str, rows: int, users: int, count: int, preload: int = 0) -> list[Path]:
        files = []
        if preload:
            everyone = self._rng.permutation(preload)
            files.append(write_file(self._folder / f"{stem}-all.parquet", everyone, self._rng, 0))
        for number in range(count):
            drawn = self._rng.integers(0, users, rows)
            path = self._folder / f"{stem}-{number}.parquet"
            files.append(write_file(path, drawn, self._rng, number + 1))
        return files

    def many_users(self) -> None:
        """The running total of many users, and the first batch after a restart of it."""
        rows, users = MILLION // self._scale, 2 * MILLION // self._scale
        files = self._files("many", rows, users, 11, preload=users)
        title = f"{rows:,} rows of {users:,} users"
        steady, last = files[:-1], files[-1]
        found = self.workload(title, [HDFS, ROCKS, OURS, FLOOR], totals, steady, warm=4)
        ours = found[OURS].median
        add = self._report.add
        add("faster than HDFS-backed", found[HDFS].median / ours, "times", at_least=2)
        add("faster than RocksDB", found[ROCKS].median / ours, "times", at_least=4)
        add("as long as without state", ours / found[FLOOR].median, "times", at_most=1.8)
        first = {}
        for name in (HDFS, OURS):
            found[name].start()
            first[name] = found[name].feed(last)
            found[name].stop()
            add(f"first batch after a restart: {name}", first[name], "s")
        ratio = first[HDFS] / first[OURS]
        add("faster in the first batch after a restart", ratio, "times", at_least=3)

    def few_users(self) -> None:
        """Many rows of few users: nearly all work is Spark's own."""
        rows = MILLION // self._scale
        files = self._files("few", rows, 1_000, 14)
        title = f"{rows:,} rows of 1,000 users"
        found = self.workload(title, [HDFS, OURS], totals, files, warm=6)
        ratio = found[OURS].median / found[HDFS].median
        self._report.add("as long as native, few users", ratio, "times", at_most=1.1)

    def sliding_windows(self) -> None:
        """Each row in ten windows, with a watermark that closes them."""
        rows = 300_000 // self._scale
        files = self._files("sliding", rows, 20_000, 13)
        title = f"sliding windows, {rows:,} rows of 20,000 users"
        found = self.workload(title, [HDFS, OURS], sliding, files, warm=6)
        ratio = found[HDFS].median / found[OURS].median
        self._report.add("faster in sliding windows", ratio, "times", at_least=2)

    def small_batches(self) -> None:
        """Batches that are mostly overhead, and the objects each writes."""
        files = self._files("small", 1_000, 100_000, 42)
        found = self.workload("1,000 rows", [HDFS, OURS], totals, files, warm=18)
        ratio = found[OURS].median / found[HDFS].median
        self._report.add("as long as native, small batches", ratio, "times", at_most=1.15)
        root = found[OURS].folder / "checkpoint" / "holdfast"
        written = [p for p in root.rglob("*") if p.is_file()]
        written = [p for p in written if p.parent.name not in ("claims", "delivered")]
        merged = [path for path in written if path.suffix in (".merge", ".snapshot")]
        copies = [path for path in written if path.suffix == ".copy"]
        per_batch = (len(written) - len(merged) - len(copies) - 1) / len(files)
        self._report.add("state objects a small batch", per_batch, "objects", at_most=2)
        added = len(copies) / len(files)
        self._report.add("second copies a small batch", added, "objects", at_most=1)
        added = len(merged) / len(files)
        self._report.add("what merging in the background adds", added, "objects")


Workloads = dict[str, Callable[[], None]]


def run_bench(
    description: str | None,
    title: str,
    stem: str,
    make: Callable[[Path, int, Report], tuple[Bench, Workloads]],
) -> None:
    """The frame of a benchmark: its options, its workloads, a page and a chart."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--small", action="store_true", help="a tenth of everything")
    parser.add_argument("--only", help="workloads by name, with commas between them")
    options = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    report = Report(title)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    bench, workloads = make(folder, 10 if options.small else 1, report)
    wanted = options.only.split(",") if options.only else list(workloads)
    if not set(wanted) <= set(workloads):
        parser.error(f"--only takes {', '.join(workloads)}")
    warm_memory(_MEMORY_GB)
    try:
        for name in wanted:
            workloads[name]()
            bench.clear()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.only is None:
        stem = f"{stem}-small" if options.small else stem
        report.write(stem)
        chart = bars("Seconds of a steady batch", list(bench.charts.items()))
        (RESULTS / f"{stem}.svg").write_text(chart)
    sys.exit(0 if report.all_hold else 1)


def _workloads(folder: Path, scale: int, report: Report) -> tuple[Bench, Workloads]:
    bench = Bench(folder, scale, report)
    return bench, {
        "many": bench.many_users,
        "few": bench.few_users,
        "sliding": bench.sliding_windows,
        "small": bench.small_batches,
    }


if __name__ == "__main__":
    run_bench(
        __doc__,
        "Managed state: Holdfast and Spark's own in one run, medians of steady batches",
        "stream",
        _workloads,
    )
