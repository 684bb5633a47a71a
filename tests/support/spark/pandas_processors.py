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
        # By Spark, whether it is float64 is up to the nulls of other keys.
        if frame["narrow"].notna().all():
            frame["narrow"] = frame["narrow"].astype("int64")
        dtypes = [f"{name}: {frame[name].dtype}" for name in frame.columns]
        cells = sorted(str(row) for row in frame.itertuples(index=False, name=None))
        self.state.update((len(frame),))
        yield _frame(key, [*dtypes, *cells], len(frame), None)
        yield pd.DataFrame([[key[0], "by position", len(frame), 0.5]])


class Dtypes(StatefulProcessor):
    """Says what type an integer and a boolean have in pandas."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("state", "n long")

    def handleInputRows(self, key: Any, rows: Frames, timerValues: Any) -> Frames:
        for frame in rows:
            what = f"{frame['v'].dtype} {frame['flag'].dtype}"
            yield pd.DataFrame({"id": [key[0]], "what": [what]})


class Giving(StatefulProcessor):
    """Gives something for every key."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("state", "n long")

    def handleInputRows(self, key: Any, rows: Frames, timerValues: Any) -> Frames:
        yield self._given


class Sizes(Totals):
    """How many rows the DataFrames of a key have."""

    def handleInputRows(self, key: Any, rows: Frames, timerValues: Any) -> Frames:
        sizes = [len(frame) for frame in rows]
        yield pd.DataFrame({"id": [key[0]], "sizes": [sizes]})
