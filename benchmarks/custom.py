"""Custom state next to Spark's own: the same processor class through each, in one run.

    python benchmarks/custom.py [--small] [--only rows|few|arrow|collections|timers]

Spark's own runs on RocksDB with changelog checkpointing; batches are fed a file at a time, as in
`stream.py`. Spark takes minutes for a large batch, so few of them are measured.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from harness import Report
from stream import MILLION, OURS, ROCKS, Bench, session

OUTPUT = "user long, total long, n long"
Feed = list[Path]


class Totals(StatefulProcessor):
    """A running total and count in one value."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("state", "total long, n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        held = self.state.get()
        total, n = held if held is not None else (0, 0)
        for row in rows:
            total += row.v
            n += 1
        self.state.update((total, n))
        yield Row(user=key[0], total=total, n=n)


class Collections(StatefulProcessor):
    """An append to a list and an update of a map for each row."""

    def init(self, handle: Any) -> None:
        self.items = handle.getListState("items", "v long")
        self.counts = handle.getMapState("counts", "v long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = 0
        for row in rows:
            n += 1
            self.items.appendValue((row.v,))
            own = (row.v % 10,)
            held = self.counts.getValue(own)
            self.counts.updateValue(own, ((held[0] if held else 0) + 1,))
        yield Row(user=key[0], total=0, n=n)


class Timers(StatefulProcessor):
    """A timer for each row, minutes after it; counts those that fire."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.fired = handle.getValueState("fired", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            at = int(row.ts.timestamp() * 1000)
            self.handle.registerTimer(at + (key[0] % 10 + 1) * 60_000)
        return iter([])

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        n = (self.fired.get() or (0,))[0] + 1
        self.fired.update((n,))
        yield Row(user=key[0], total=0, n=n)


def add(keys: pa.Table, rows: pa.Table, state: pa.Table, times: Any) -> tuple[pa.Table, pa.Table]:
    """What Totals does, for a chunk of keys at once."""
    sums = rows.group_by("_group").aggregate([("v", "sum"), ("v", "count")]).sort_by("_group")
    total = pc.add(pc.if_else(state["_exists"], state["total"], 0), sums["v_sum"])
    n = pc.add(pc.if_else(state["_exists"], state["n"], 0), sums["v_count"])
    output = pa.table({"user": keys["user"], "total": total, "n": n})
    return pa.table({"total": total, "n": n}), output


def by_rows(processor: type[StatefulProcessor], mode: str = "None") -> Callable[[Any], Any]:
    """A pipeline of one processor of rows."""

    def pipeline(frame: Any) -> Any:
        marked = frame.withWatermark("ts", "0 seconds") if mode == "EventTime" else frame
        return marked.groupBy("user").transformWithState(processor(), OUTPUT, "Update", mode)

    return pipeline


def by_arrow(frame: Any) -> Any:
    """The same totals by tables."""
    return frame.groupBy("user").transformWithStateInArrow(
        add, OUTPUT, "total long, n long", "Update"
    )


class CustomBench(Bench):
    """The workloads of custom state."""

    def rows(self) -> None:
        """A running total of many keys, by rows, and by tables."""
        rows = MILLION // self._scale
        files = self._files("rows", rows, 2 * rows, 3)
        title = f"{rows:,} rows of {2 * rows:,} keys"
        native = self.workload(f"{title}, by rows", [ROCKS], by_rows(Totals), files[:2], warm=1)
        ours = self.workload(f"{title}, by rows", [OURS], by_rows(Totals), files, warm=1)
        tables = self.workload(f"{title}, by tables", [OURS], by_arrow, files, warm=1)
        slow = native[ROCKS].median
        self._report.add("rows: faster than Spark", slow / ours[OURS].median, "times", at_least=25)
        ratio = slow / tables[OURS].median
        self._report.add("tables: faster than Spark's rows", ratio, "times", at_least=60)

    def few(self) -> None:
        """The same with a tenth of the keys."""
        rows = MILLION // 10 // self._scale
        files = self._files("few", rows, 2 * rows, 4)
        title = f"{rows:,} rows of {2 * rows:,} keys"
        self._compare(title, by_rows(Totals), files, "few rows: faster than Spark", 12)

    def collections(self) -> None:
        """Appends to lists and updates of maps."""
        rows = 50_000 // self._scale
        files = self._files("collections", rows, 2 * rows, 3)
        title = f"lists and maps, {rows:,} rows"
        self._compare(title, by_rows(Collections), files, "lists and maps: faster than Spark", 20)

    def timers(self) -> None:
        """Many timers registered, a tenth of them firing in each batch."""
        rows = 100_000 // self._scale
        files = self._files("timers", rows // 10, rows, 6, preload=rows)
        title = f"timers, {rows:,} registered"
        pipeline = by_rows(Timers, "EventTime")
        self._compare(title, pipeline, files, "timers: faster than Spark", 20, warm=3)

    def _compare(
        self, title: str, pipeline: Any, files: Feed, name: str, bar: float, warm: int = 1
    ) -> None:
        found = self.workload(title, [ROCKS, OURS], pipeline, files, warm=warm)
        ratio = found[ROCKS].median / found[OURS].median
        self._report.add(name, ratio, "times", at_least=bar)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a tenth of everything")
    parser.add_argument("--only", help="one workload: rows, few, collections or timers")
    options = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Workers cannot import a script's own modules.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    report = Report("Custom state: the same processor on Holdfast and on Spark's own, in one run")
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    spark = session()
    bench = CustomBench(spark, folder, 10 if options.small else 1, report)
    workloads = {
        "rows": bench.rows,
        "few": bench.few,
        "collections": bench.collections,
        "timers": bench.timers,
    }
    try:
        for name, run in workloads.items():
            if options.only in (None, name):
                run()
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if options.only is None:
        report.write("custom-small" if options.small else "custom")
    sys.exit(0 if report.all_hold else 1)


if __name__ == "__main__":
    main()
