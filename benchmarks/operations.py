"""What operations on a root cost, by the size of its state.

python benchmarks/operations.py [KEYS]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

import holdfast
from harness import Report, use_one_core, wait_for_quiet
from holdfast import admin

KEYS = 10_000_000
PARTITIONS = 4
TIMES = 7


def main() -> int:
    keys = int(sys.argv[1]) if len(sys.argv) > 1 else KEYS
    use_one_core()
    report = Report("Operations on the state of a root")
    with tempfile.TemporaryDirectory() as folder:
        root = filled(Path(folder, "root"), keys)
        wait_for_quiet()
        repairs(report, root, keys)
    report.write("operations")
    return 0 if report.all_hold else 1


def filled(root: Path, keys: int) -> Path:
    """A store of so many keys, as one snapshot for each partition and a few deltas."""
    with holdfast.open(
        root, key="k long", value="v long, note string", partitions=PARTITIONS
    ) as db:
        with db.update() as store:
            store.put_many(rows(0, keys))
        db.maintain(snapshot=True)
        for number in range(3):
            with db.update() as store:
                store.put_many(rows(number * 1000, 1000))
    return root


def rows(first: int, count: int) -> pa.Table:
    numbers = np.arange(first, first + count)
    return pa.table({"k": numbers, "v": numbers, "note": pa.repeat("a note", count)})


def repairs(report: Report, root: Path, keys: int) -> None:
    """One key set in place of another value: planned, and committed as a version."""
    planned, whole = [], []
    for number in range(TIMES):
        wanted = {"key": number * (keys // TIMES), "value": {"v": -1 - number}}
        started = time.perf_counter()
        plan = admin.repair(root, set=wanted)
        planned.append(time.perf_counter() - started)
        plan.run()
        whole.append(time.perf_counter() - started)
    what = f"repair one key of {keys:,}"
    report.add(f"{what}: plan it", statistics.median(planned), "s")
    report.add(f"{what}: plan and commit it", statistics.median(whole), "s", at_most=0.3)
    filtered = seconds(lambda: admin.repair(root, delete_where=f"k = {keys // 2}"))
    report.add(f"find one key of {keys:,} by a filter", filtered, "s")


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
