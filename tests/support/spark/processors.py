"""Processors that run through Spark's own transformWithState and through Holdfast, unchanged."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

# Workers cannot import the modules of tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

OUTPUT = "id string, what string, n long, total long"


class Totals(StatefulProcessor):
    """A running count and sum in one value."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("state", "n long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total = self.state.get() if self.state.exists() else (0, 0)
        for row in rows:
            n += 1
            total += row.v
        self.state.update((n, total))
        yield Row(id=key[0], what="total", n=n, total=total)


class Resets(Totals):
    """The same, starting anew once the sum is large."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in super().handleInputRows(key, rows, timerValues):
            yield row
            if abs(row.total) > 60:
                self.state.clear()
                yield Row(id=key[0], what="reset", n=int(self.state.exists()), total=None)


class Maps(StatefulProcessor):
    """A map of counts by value, with every method."""

    def init(self, handle: Any) -> None:
        self.counts = handle.getMapState("counts", "v long", "n long, twice long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for v in sorted(row.v for row in rows):
            n = self.counts.getValue((v % 6,))[0] if self.counts.containsKey((v % 6,)) else 0
            self.counts.updateValue((v % 6,), (n + 1, 2 * n + 2))
            if n > 3:
                self.counts.removeKey((v % 6,))
        whole = sorted((k[0], v[0], v[1]) for k, v in self.counts.iterator())
        keys = self.counts.keys()
        assert sorted(k[0] for k in keys) == [k for k, _, _ in whole]
        assert sorted(v[0] for v in self.counts.values()) == sorted(n for _, n, _ in whole)
        if len(whole) > 5:
            self.counts.clear()
        yield Row(id=key[0], what=str(whole), n=len(whole), total=int(self.counts.exists()))


class Seeded(Totals):
    """Totals that start from what they are given."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.seeds = handle.getListState("seeds", "total long")

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        n, total = self.state.get() or (0, 0)
        self.state.update((n + 100, total + initialState.total))
        self.seeds.appendValue((initialState.total,))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        seeds = sorted(seed[0] for seed in self.seeds.get())
        for row in super().handleInputRows(key, rows, timerValues):
            yield Row(id=row.id, what=str(seeds), n=row.n, total=row.total)


class Changing(StatefulProcessor):
    """Totals whose variables change from run to run: `variables` are names and columns."""

    def __init__(self, gone: tuple[str, ...] = (), **variables: str) -> None:
        self.columns = variables
        self.gone = gone

    def init(self, handle: Any) -> None:
        for name in self.gone:
            handle.deleteIfExists(name)
        self.states = {name: handle.getValueState(name, c) for name, c in self.columns.items()}

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        held = {name: state.get() for name, state in sorted(self.states.items())}
        for row in rows:
            for name, state in self.states.items():
                columns = self.columns[name].split(", ")
                cells = (str(row.v) if c.endswith("string") else row.v for c in columns)
                state.update(tuple(cells))
        yield Row(id=key[0], what=str(held), n=None, total=None)


class Failing(Totals):
    """Totals that does not like one number."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        held = list(rows)
        if any(row.v == 7 for row in held):
            raise ValueError("seven")
        return super().handleInputRows(key, iter(held), timerValues)


class AlwaysLate(StatefulProcessor):
    """Has itself called for a moment in the past, whenever it is called."""

    def init(self, handle: Any) -> None:
        self._handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self._handle.registerTimer(1_000_000)
        return iter([])

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        self._handle.registerTimer(expiredTimerInfo.getExpiryTimeInMs() - 1)
        return iter([])


class Asking(Totals):
    """Says which query, run and batch it works for."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        info = self.handle.getQueryInfo()
        what = f"{info.getQueryId()} {info.getRunId()} {info.getBatchId()}"
        yield Row(id=key[0], what=what, n=0, total=0)


class Late(StatefulProcessor):
    """Gives rows of a time that is late once there is a watermark."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("state", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield Row(id=key[0], at=datetime.fromtimestamp(1, UTC))


class ClearsWhatIsNot(StatefulProcessor):
    """Keeps the number of a key for one batch; clears and forgets much that never was."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.kept = handle.getValueState("kept", "n long")
        self.never = handle.getValueState("never", "n long")
        self.brief = handle.getMapState("brief", "n long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        self.never.clear()
        self.brief.updateValue((1,), (1,))
        self.brief.clear()
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 3_600_000)
        for moment in list(self.handle.listTimers()):
            self.handle.deleteTimer(moment)
        if self.kept.exists():
            self.kept.clear()
        else:
            self.kept.update((len(list(rows)),))
        return iter(())
