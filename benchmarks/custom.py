"""Custom state next to Spark's own: the same processor class through each, in one run.

    python benchmarks/custom.py [--small] [--only rows,few,pandas,collections,timers,memory]

Spark's own runs on RocksDB with changelog checkpointing; batches are fed a file at a time, as in
`stream.py`. Spark takes minutes for a large batch, so few of them are measured.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import bytewax_flow
from contenders import OURS, ROCKS, Contender
from harness import Report
from stream import MILLION, Bench, Workloads, run_bench

OUTPUT = "user long, total long, n long"
HELD = "total long, n long"
_FAR_MS = 24 * 60 * 60_000
Feed = list[Path]


class Totals(StatefulProcessor):
    """A running total and count in one value."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("state", HELD)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        held = self.state.get()
        total, n = held if held is not None else (0, 0)
        for row in rows:
            total += row.v
            n += 1
        self.state.update((total, n))
        yield Row(user=key[0], total=total, n=n)


class Watched(Totals):
    """Notes the most memory its process ever had when it is closed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def close(self) -> None:
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._folder.mkdir(exist_ok=True)
        (self._folder / f"{kilobytes}").touch()


class PandasTotals(StatefulProcessor):
    """What Totals does, for DataFrames."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("state", HELD)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        held = self.state.get()
        total, n = held if held is not None else (0, 0)
        for frame in rows:
            total += int(frame["v"].sum())
            n += len(frame)
        self.state.update((total, n))
        yield pd.DataFrame({"user": [key[0]], "total": [total], "n": [n]})


def by_group(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
    """What Totals does, as a function with a GroupState."""
    total, n = state.getOption or (0, 0)
    for frame in frames:
        total += int(frame["v"].sum())
        n += len(frame)
    state.update((total, n))
    yield pd.DataFrame({"user": [key[0]], "total": [total], "n": [n]})


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
    """A timer for each row, of a tenth of the keys soon; counts those that fire."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.fired = handle.getValueState("fired", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            at = int(row.ts.timestamp() * 1000)
            self.handle.registerTimer(at + (60_000 if key[0] % 10 == 0 else _FAR_MS))
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


def by_rows(processor: Callable[[], StatefulProcessor], mode: str = "None") -> Callable[[Any], Any]:
    """A pipeline of one processor of rows."""

    def pipeline(frame: Any) -> Any:
        marked = frame.withWatermark("ts", "0 seconds") if mode == "EventTime" else frame
        return marked.groupBy("user").transformWithState(processor(), OUTPUT, "Update", mode)

    return pipeline


def by_arrow(frame: Any) -> Any:
    """The same totals by tables."""
    return frame.groupBy("user").transformWithStateInArrow(add, OUTPUT, HELD, "Update")


def by_pandas(frame: Any) -> Any:
    """The same totals by DataFrames."""
    return frame.groupBy("user").transformWithStateInPandas(
        PandasTotals(), OUTPUT, "Update", "None"
    )


def by_group_state(frame: Any) -> Any:
    """The same totals by a function with a GroupState."""
    return frame.groupBy("user").applyInPandasWithState(
        by_group, OUTPUT, HELD, "update", "NoTimeout"
    )


class CustomBench(Bench):
    """The workloads of custom state, one contender after the other in one driver."""

    contender = Contender

    def rows(self) -> None:
        """A running total of many keys, by rows, and by tables; Bytewax on the same work."""
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
        self._bytewax(rows, files, ours[OURS].median)

    def _bytewax(self, rows: int, files: Feed, seconds: float) -> None:
        took = bytewax_flow.seconds(files, self._folder / "bytewax") / len(files)
        self._report.add(f"{rows:,} rows: Bytewax, two workers", took, "s")
        ratio = took / seconds
        self._report.add("rows: faster than Bytewax", ratio, "times", at_least=2.5)

    def few(self) -> None:
        """The same with a tenth of the keys."""
        rows = MILLION // 10 // self._scale
        files = self._files("few", rows, 2 * rows, 4)
        title = f"{rows:,} rows of {2 * rows:,} keys"
        self._compare(title, by_rows(Totals), files, "few rows: faster than Spark", 12)

    def pandas(self) -> None:
        """The same by DataFrames: as a processor, and as a function with a GroupState."""
        rows = MILLION // 10 // self._scale
        files = self._files("pandas", rows, 2 * rows, 4)
        for title, pipeline, bar in (
            ("by DataFrames", by_pandas, 8),
            ("by a GroupState", by_group_state, 5),
        ):
            name = f"{title}: faster than Spark"
            self._compare(f"{rows:,} rows {title}", pipeline, files, name, bar)

    def memory(self) -> None:
        """A large batch of one partition."""
        rows = 5 * MILLION // self._scale
        files = self._files("memory", rows, rows // 2, 2)
        noted = self._folder / "noted"
        pipeline = by_rows(lambda: Watched(noted))
        one = {"spark.sql.shuffle.partitions": "1"}
        contender = Contender(OURS, self._folder / "memory", pipeline, one)
        contender.start()
        for file in files:
            contender.feed(file)
        contender.stop()
        self._report.add(f"{rows:,} rows in one partition", contender.times[-1], "s")
        most = max(int(path.name) for path in noted.iterdir()) * 1024 / 10**6
        self._report.add("most memory of its worker", most, "MB", at_most=1_000)

    def collections(self) -> None:
        """Appends to lists and updates of maps."""
        rows = 200_000 // self._scale
        files = self._files("collections", rows, 2 * rows, 4)
        title = f"lists and maps, {rows:,} rows"
        self._compare(title, by_rows(Collections), files, "lists and maps: faster than Spark", 20)

    def timers(self) -> None:
        """Many timers registered in each batch, and a tenth as many firing.

        Without batches of no data, in which they would fire beside the clock.
        """
        rows = 100_000 // self._scale
        files = self._files("timers", rows, rows, 5)
        title = f"timers, {rows:,} registered and {rows // 10:,} firing a batch"
        pipeline = by_rows(Timers, "EventTime")
        name = "timers: faster than Spark"
        settings = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}
        self._compare(title, pipeline, files, name, 20, warm=2, settings=settings)

    def _compare(
        self,
        title: str,
        pipeline: Any,
        files: Feed,
        name: str,
        bar: float,
        warm: int = 1,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Spark's own does as few batches as give a figure: it takes long."""
        few = files[: warm + 1]
        native = self.workload(title, [ROCKS], pipeline, few, warm, settings)[ROCKS]
        ours = self.workload(title, [OURS], pipeline, files, warm, settings)[OURS]
        self._report.add(name, native.median / ours.median, "times", at_least=bar)


def _workloads(folder: Path, scale: int, report: Report) -> tuple[Bench, Workloads]:
    bench = CustomBench(folder, scale, report)
    return bench, {
        "rows": bench.rows,
        "few": bench.few,
        "pandas": bench.pandas,
        "collections": bench.collections,
        "timers": bench.timers,
        "memory": bench.memory,
    }


if __name__ == "__main__":
    # Workers cannot import a script's own modules.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    run_bench(
        __doc__,
        "Custom state: the same processor on Holdfast and on Spark's own, in one run",
        "custom",
        _workloads,
    )
