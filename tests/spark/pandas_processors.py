"""Processors of DataFrames that run through Spark's own and through Holdfast, unchanged."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql.streaming import StatefulProcessor

# Workers cannot import the modules of tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

OUTPUT = "id string, what string, n long, total double"
Frames = Iterator[pd.DataFrame]


def _frame(key: Any, what: Any, n: Any, total: Any) -> pd.DataFrame:
    return pd.DataFrame({"total": [total], "id": [key[0]], "n": [n], "what": [str(what)]})


class Totals(StatefulProcessor):
    """A running count and sum in one value."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("state", "n long, total double")

    def handleInputRows(self, key: Any, rows: Frames, timerValues: Any) -> Frames:
        n, total = self.state.get() if self.state.exists() else (0, 0.0)
        for frame in rows:
            assert list(frame.index) == list(range(len(frame)))
            n += len(frame)
            total += float(frame.v.sum())
        self.state.update((n, total))
        yield _frame(key, "total", n, total)


class Seeded(Totals):
    """The same, with totals to start from."""

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        n, total = self.state.get() or (0, 0.0)
        more = float(initialState["total"].sum())
        self.state.update((n + 100 * len(initialState), total + more))


class Columns(StatefulProcessor):
    """Says what it was given: every cell of it, and its type in pandas."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("state", "n long")

    def handleInputRows(self, key: Any, rows: Frames, timerValues: Any) -> Frames:
        frame = pd.concat(list(rows), ignore_index=True)
        frame["v"] = frame["v"].astype("float64")
        dtypes = [f"{name}: {frame[name].dtype}" for name in frame.columns]
        cells = sorted(str(row) for row in frame.itertuples(index=False, name=None))
        self.state.update((len(frame),))
        yield _frame(key, [*dtypes, *cells], len(frame), None)


class ListsAndMaps(StatefulProcessor):
    """A list that grows and goes, and a map of counts."""

    def init(self, handle: Any) -> None:
        self.items = handle.getListState("items", "v long")
        self.counts = handle.getMapState("counts", "v long", "n long")

    def handleInputRows(self, key: Any, rows: Frames, timerValues: Any) -> Frames:
        for frame in rows:
            values = sorted(int(v) for v in frame.v.dropna())
            self.items.appendList([(v,) for v in values])
            for v in values:
                n = self.counts.getValue((v % 6,))[0] if self.counts.containsKey((v % 6,)) else 0
                self.counts.updateValue((v % 6,), (n + 1,))
                if n > 3:
                    self.counts.removeKey((v % 6,))
        items = sorted(item[0] for item in self.items.get())
        if len(items) > 20:
            self.items.clear()
        yield _frame(key, items, len(items), None)
        pairs = sorted((own[0], value[0]) for own, value in self.counts.iterator())
        yield pd.DataFrame([[key[0], str(pairs), len(pairs), 0.5]])


class EventTimers(StatefulProcessor):
    """Counts until nothing has come for a while by the watermark, then says so and forgets."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.state = handle.getValueState("state", "n long, until long")

    def handleInputRows(self, key: Any, rows: Frames, timerValues: Any) -> Frames:
        n, until = self.state.get() or (0, 0)
        latest = until
        for frame in rows:
            n += len(frame)
            latest = max(latest, int(frame.ts.max().timestamp() * 1000) + 60_000)
        if latest != until:
            self.handle.deleteTimer(until)
            self.handle.registerTimer(latest)
        self.state.update((n, latest))
        listed = list(self.handle.listTimers())
        yield _frame(key, listed, n, timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Frames:
        held = self.state.get()
        self.state.clear()
        n = None if held is None else held[0]
        yield _frame(key, f"timer of {expiredTimerInfo.getExpiryTimeInMs()}", n, None)


CASES: dict[str, tuple[type[StatefulProcessor], str, list[str]]] = {
    "totals": (Totals, "None", ["state"]),
    "columns": (Columns, "None", ["state"]),
    "lists and maps": (ListsAndMaps, "None", ["items", "counts"]),
    "event timers": (EventTimers, "EventTime", ["state"]),
}


class Giving(StatefulProcessor):
    """Gives something for every key."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("state", "n long")

    def handleInputRows(self, key: Any, rows: Frames, timerValues: Any) -> Frames:
        yield self._given
