"""Two states of the code in turn: does a change cost processor time?

    git worktree add ../before REVISION
    python benchmarks/pairs.py ../before/src src [--pairs 9] [--only many,sliding,...]

The workloads are those of `stream.py` and `custom.py`, with half as many rows or fewer, and fewer
batches. A pair is two drivers, each of which runs all workloads. The two take one batch each in
turn, so that what else the machine does, which makes processors slower as well, meets both alike.
What counts is the CPU time of the driver, its JVM and its workers, of all batches but the first
ones. The bar is the median of the ratios of the pairs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
from pyspark import cloudpickle

import custom
from custom import Collections, Timers, Totals, by_arrow, by_rows
from harness import Report
from processes import cpu_s
from stream import MILLION, sliding, totals, write_file

AT_MOST = 1.05
_CPU = "CPU seconds"
"""How an answer begins; a driver prints other lines as well."""


@dataclass(frozen=True)
class Workload:
    """Batches of random users for one pipeline."""

    pipeline: object
    rows: int
    users: int
    preload: int = 0
    """Users that have a row each in a batch before the others."""
    warm: int = 2
    measured: int = 6
    settings: Mapping[str, str] = field(default_factory=dict)


NO_TICKS = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}
WORKLOADS = {
    "many": Workload(totals, MILLION // 2, MILLION, preload=MILLION),
    "sliding": Workload(sliding, 150_000, 20_000),
    "small": Workload(totals, 1_000, 100_000, warm=6, measured=24),
    "rows": Workload(by_rows(Totals), MILLION // 4, MILLION // 2, warm=2, measured=4),
    "tables": Workload(by_arrow, MILLION // 2, MILLION),
    "collections": Workload(by_rows(Collections), 100_000, 200_000, warm=2, measured=4),
    "timers": Workload(by_rows(Timers, "EventTime"), 50_000, 50_000, settings=NO_TICKS),
}  # fmt: skip


def serve() -> None:
    """Run workloads in this process: each line read names one, which then takes a batch.

    The answer is the CPU time so far. A workload ends when another one is named.
    """
    # Workers cannot import a script's own modules.
    cloudpickle.register_pickle_by_value(custom)
    for name, lines in groupby(sys.stdin, str.strip):
        for _ in fed(WORKLOADS[name], lines):
            sys.stdout.write(f"{_CPU} {cpu_s()}\n")
            sys.stdout.flush()


def fed(workload: Workload, asked: Iterable[str]) -> Iterator[None]:
    """Takes a batch each time one is asked for."""
    from contenders import OURS, Contender

    rng = np.random.default_rng(7)
    with tempfile.TemporaryDirectory(prefix="holdfast-pairs-") as folder:
        contender = Contender(OURS, Path(folder), workload.pipeline, workload.settings)
        contender.start()
        for number, _ in enumerate(asked):
            users = rng.integers(0, workload.users, workload.rows)
            if number == 0:
                users = rng.permutation(workload.preload or workload.rows)
            path = write_file(Path(folder, f"{number}.parquet"), users, rng, number)
            contender.feed(path)
            yield
        contender.stop()


class Side:
    """A driver with the code of a folder."""

    def __init__(self, source: Path) -> None:
        paths = {"PYTHONPATH": str(source.resolve()), "PYSPARK_PYTHON": sys.executable}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            env={**os.environ, **paths},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._cpu_s = 0.0

    def batch(self, workload: str) -> float:
        """The CPU seconds since the batch before, once one more has been delivered."""
        print(workload, file=self._process.stdin, flush=True)
        for line in self._process.stdout or ():
            if line.startswith(_CPU):
                since, self._cpu_s = self._cpu_s, float(line.split()[-1])
                return self._cpu_s - since
        sys.exit(f"a run ended with exit code {self._process.wait()}")

    def end(self) -> None:
        """Stop the query and wait for its driver."""
        self._process.communicate()


def cost(workload: str, sides: Sequence[Side]) -> list[float]:
    """The CPU seconds of each side, which take a batch each in turn."""
    plan = WORKLOADS[workload]
    used = [0.0] * len(sides)
    for number in range(1 + plan.warm + plan.measured):
        for side in (0, 1) if number % 2 else (1, 0):
            spent = sides[side].batch(workload)
            if number > plan.warm:
                used[side] += spent
    return used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="*", type=Path, help="the code before, and after")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
        return
    report = Report("Processor time before and after a change, in pairs")
    ratios: dict[str, list[float]] = {workload: [] for workload in given.only.split(",")}
    for number in range(given.pairs):
        sides = [Side(source) for source in given.sources]
        for workload, known in ratios.items():
            before, after = cost(workload, sides)
            known.append(after / before)
            note = f"before {before:.2f} s, after {after:.2f} s"
            report.add(f"{workload}, pair {number + 1}", known[-1], "ratio", note=note)
        for side in sides:
            side.end()
    for workload, known in ratios.items():
        report.add(f"{workload}, median", statistics.median(known), "ratio", at_most=AT_MOST)
    report.write("pairs")
    sys.exit(0 if report.all_hold else 1)


if __name__ == "__main__":
    main()
