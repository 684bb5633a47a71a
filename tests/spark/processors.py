"""Processors that run through Spark's own transformWithState and through Holdfast, unchanged."""

from __future__ import annotations

import sys
from collections.abc import Iterator
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


class Lists(StatefulProcessor):
    """A list that grows, is replaced and goes."""

    def init(self, handle: Any) -> None:
        self.items = handle.getListState("items", "v long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        values = sorted(row.v for row in rows)
        if len(values) % 3 == 0:
            self.items.appendList([(v,) for v in values])
        elif values[0] % 5 == 0:
            self.items.put([(v,) for v in values[:2]])
        elif values[0] % 7 == 0:
            self.items.clear()
        else:
            self.items.appendValue((values[0],))
        held = [item[0] for item in self.items.get()]
        yield Row(id=key[0], what=str(sorted(held)), n=len(held), total=int(self.items.exists()))


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


class Several(StatefulProcessor):
    """Three variables at once, with types of many kinds."""

    def init(self, handle: Any) -> None:
        self.best = handle.getValueState("best", "v long, x double, flag boolean, name string")
        self.all = handle.getListState("all", "v long, x double")
        self.by = handle.getMapState("by", "name string, flag boolean", "vs array<long>")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda r: r.v):
            best = self.best.get()
            if best is None or best[0] < row.v:
                self.best.update((row.v, row.v / 4, row.v > 0, f"n{row.v}"))
            self.all.appendValue((row.v, row.v / 2))
            own = (f"n{row.v % 3}", row.v > 0)
            vs = self.by.getValue(own)
            self.by.updateValue(own, ([*(vs[0] if vs else []), row.v],))
        what = [list(self.best.get()), sorted(self.all.get()), sorted(map(str, self.by.iterator()))]
        yield Row(id=key[0], what=str(what), n=None, total=None)


class EventTimers(StatefulProcessor):
    """Counts until nothing has come for a while by the watermark, then says so and forgets."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.state = handle.getValueState("state", "n long, until long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, until = self.state.get() or (0, 0)
        latest = until
        for row in rows:
            n += 1
            latest = max(latest, int(row.ts.timestamp() * 1000) + 60_000)
        if latest != until:
            self.handle.deleteTimer(until)
            self.handle.registerTimer(latest)
        self.state.update((n, latest))
        listed = list(self.handle.listTimers())
        yield Row(id=key[0], what=str(listed), n=n, total=timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        held = self.state.get()
        self.state.clear()
        n = None if held is None else held[0]
        moment = expiredTimerInfo.getExpiryTimeInMs()
        if n is not None and n > 2:
            self.handle.registerTimer(moment + 120_000)
        yield Row(
            id=key[0], what=f"timer of {moment}", n=n, total=len(list(self.handle.listTimers()))
        )


class Silent(StatefulProcessor):
    """Keeps state and gives nothing; reads only some of its rows."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("state", "v long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self.state.update((len(key),))
        return iter([])


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


CASES: dict[str, tuple[type[StatefulProcessor], str]] = {
    "totals": (Totals, "None"),
    "resets": (Resets, "None"),
    "lists": (Lists, "None"),
    "maps": (Maps, "None"),
    "several variables": (Several, "None"),
    "event timers": (EventTimers, "EventTime"),
    "silent": (Silent, "None"),
}
