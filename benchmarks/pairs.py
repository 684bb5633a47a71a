"""Two states of the code in turn: does a change cost processor time?

    git worktree add ../before REVISION
    python benchmarks/pairs.py ../before/src src [--pairs 9] [--only many,few,sliding,...]

The workloads are those of `stream.py` and `custom.py`, with half as many rows or fewer, and fewer
batches. A run is a driver of its own that feeds one query batch after batch. What counts is the CPU
time of the driver, its JVM and its workers, of all batches but the first ones; other work on the
machine matters little to it. The bar is the median of the ratios within pairs, whose order changes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pyspark import cloudpickle

import custom
from custom import Collections, Timers, Totals, by_arrow, by_rows
from harness import Report
from processes import cpu_s
from stream import MILLION, sliding, totals, write_file

AT_MOST = 1.05


@dataclass(frozen=True)
class Workload:
    """Batches of random users for one pipeline."""

    pipeline: object
    rows: int
    users: int
    preload: int = 0
    """Users that have a row each in a batch before the others."""
    warm: int = 2
    measured: int = 4
    settings: Mapping[str, str] = field(default_factory=dict)


NO_TICKS = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}
WORKLOADS = {
    "many": Workload(totals, MILLION // 2, MILLION, preload=MILLION),
    "sliding": Workload(sliding, 150_000, 20_000),
    "small": Workload(totals, 1_000, 100_000, warm=10, measured=20),
    "rows": Workload(by_rows(Totals), MILLION // 4, MILLION // 2, warm=1, measured=3),
    "tables": Workload(by_arrow, MILLION // 2, MILLION),
    "collections": Workload(by_rows(Collections), 100_000, 200_000, warm=1, measured=3),
    "timers": Workload(by_rows(Timers, "EventTime"), 50_000, 50_000, settings=NO_TICKS),
}  # fmt: skip


def one_run(name: str) -> float:
    """The CPU seconds of the measured batches of one workload, in this process."""
    from contenders import OURS, Contender

    # Workers cannot import a script's own modules.
    cloudpickle.register_pickle_by_value(custom)
    workload = WORKLOADS[name]
    rng = np.random.default_rng(7)
    with tempfile.TemporaryDirectory(prefix="holdfast-pairs-") as folder:
        contender = Contender(OURS, Path(folder), workload.pipeline, workload.settings)
        contender.start()

        def feed(number: int, users: np.ndarray) -> None:
            path = write_file(Path(folder, f"{number}.parquet"), users, rng, number)
            contender.feed(path)

        feed(0, rng.permutation(workload.preload or workload.rows))
        for number in range(1, workload.warm + workload.measured + 1):
            if number == workload.warm + 1:
                before = cpu_s()
            feed(number, rng.integers(0, workload.users, workload.rows))
        used = cpu_s() - before
        contender.stop()
    return used


def run_of(source: Path, workload: str) -> float:
    """The CPU seconds of a run with the code of a folder."""
    done = subprocess.run(
        [sys.executable, __file__, "--run", workload],
        env={**os.environ, "PYTHONPATH": str(source.resolve()), "PYSPARK_PYTHON": sys.executable},
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="*", type=Path, help="the code before, and after")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--run", choices=WORKLOADS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        print(one_run(given.run))
        return
    before, after = given.sources
    report = Report("Processor time before and after a change, in pairs")
    for workload in given.only.split(","):
        ratios = []
        for number in range(given.pairs):
            order = [before, after] if number % 2 else [after, before]
            used = {source: run_of(source, workload) for source in order}
            ratios.append(used[after] / used[before])
            note = f"before {used[before]:.2f} s, after {used[after]:.2f} s"
            report.add(f"{workload}, pair {number + 1}", ratios[-1], "ratio", note=note)
            print(workload, number + 1, note, f"{ratios[-1]:.3f}", file=sys.stderr, flush=True)
        report.add(f"{workload}, median", statistics.median(ratios), "ratio", at_most=AT_MOST)
    report.write("pairs")
    sys.exit(0 if report.all_hold else 1)


if __name__ == "__main__":
    main()
