"""What opening a store and a version of it costs, by its number of partitions.

python benchmarks/opening.py
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import holdfast
from harness import Report, use_one_core

PARTITIONS = (50, 100, 200, 400, 1000)
ROWS = 20_000
TIMES = 5


def main() -> int:
    use_one_core()
    report = Report("Opening a store of many partitions")
    with tempfile.TemporaryDirectory() as folder:
        costs = {count: measured(Path(folder, str(count)), count) for count in PARTITIONS}
    for count, (opening, looking) in costs.items():
        most = 0.3 if count == 1000 else None
        report.add(f"open {count:,} partitions", opening, "CPU s", at_most=most)
        report.add(f"at(version) of {count:,} partitions", looking, "CPU s", at_most=most)
    for place, name in enumerate(("open", "at(version)")):
        growth = costs[1000][place] / costs[100][place]
        report.add(f"{name}: 1,000 partitions over 100", growth, "ratio", note="linear is 10")
    report.write("opening")
    return 0 if report.all_hold else 1


def measured(root: Path, partitions: int) -> tuple[float, float]:
    """CPU seconds to open the store, and to open a version that it has not open."""
    rows = pa.table({"k": list(range(ROWS)), "v": list(range(ROWS))})
    with holdfast.open(root, key="k long", value="v long", partitions=partitions) as db:
        for _ in range(2):
            with db.update() as store:
                store.put_many(rows)
    opening, looking = [], []
    for _ in range(TIMES):
        started = time.process_time()
        db = holdfast.open(root)
        opening.append(time.process_time() - started)
        looking.append(cpu_seconds(lambda db=db: db.at(1)))  # type: ignore[misc]
        db.close()
    return statistics.median(opening), statistics.median(looking)


def cpu_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    sys.exit(main())
