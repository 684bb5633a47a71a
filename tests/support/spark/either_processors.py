"""Processors of rows and of DataFrames alike: each is written once and runs in both forms."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

# Workers cannot import the modules of tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

COLUMNS = ["id", "what", "n"]
OUTPUT = "id {key}, what string, n long"
DAY_MS = 86_400_000
Entry = tuple[int | None, str | None, int]
"""The cells of a row that the processors go by: v, s, and ts in ms."""


class Either(StatefulProcessor):
    """What the processors share: they read rows in one order, and tell what they hold."""

    def __init__(self, frames: bool = False) -> None:
        self.frames = frames

    def init(self, handle: Any) -> None:
        self.handle = handle

    def read(self, rows: Any) -> list[Entry]:
        """The rows by their cells, in an order of their own."""
        if self.frames:
            rows = (row for frame in rows for row in frame.itertuples(index=False))
        cells = [(_number(row.v), row.s, int(row.ts.timestamp() * 1000)) for row in rows]
        return sorted(cells, key=lambda cell: (cell[0] is None, cell[0], cell[1] or "~", cell[2]))

    def give(self, key: Any, what: Any, n: int | None = None, **more: Any) -> Any:
        """One row of output."""
        cells = {"id": key[0], "what": str(told(what)), "n": n, **more}
        if not self.frames:
            return Row(**cells)
        import pandas as pd

        return pd.DataFrame({name: [cell] for name, cell in cells.items()})


def _number(cell: Any) -> int | None:
    return None if cell is None or cell != cell else int(cell)


def told(cell: Any) -> Any:
    """A value in words that are the same wherever it comes from."""
    if isinstance(cell, datetime):
        moment = cell if cell.tzinfo else cell.astimezone()
        return moment.astimezone(UTC).isoformat()
    if isinstance(cell, (date, Decimal)):
        return str(cell)
    if isinstance(cell, (bytes, bytearray)):
        return bytes(cell).hex()
    if isinstance(cell, dict):
        return {key: told(cell[key]) for key in sorted(cell)}
    if isinstance(cell, tuple):
        return tuple(map(told, cell))
    if isinstance(cell, list):
        return list(map(told, cell))
    return cell


class Values(Either):
    """A running count that starts anew; a variable nothing is ever put in."""

    ttl: int | None = None

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long, last string", self.ttl)
        self.never = handle.getValueState("never", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        entries = self.read(rows)
        seen: list[Any] = [self.count.exists(), self.count.get()]
        n = (self.count.get() or (0,))[0] + len(entries)
        if n % 5 == 4:
            self.count.clear()
            seen += [self.count.exists(), self.count.get()]
        if n % 5 != 3:
            self.count.update((n, entries[0][1]))
            self.count.update((n, entries[-1][1]))
        yield self.give(key, [*seen, self.count.exists(), self.count.get()], n)
        yield self.give(key, [self.never.exists(), self.never.get()])


class Lists(Either):
    """A list that grows, is replaced and goes."""

    ttl: int | None = None

    def init(self, handle: Any) -> None:
        self.items = handle.getListState("items", "v long, s string", self.ttl)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        before = [self.items.exists(), list(self.items.get())]
        for v, s, _ in self.read(rows):
            turn = 0 if v is None else v % 5
            if turn == 4:
                self.items.clear()
            elif turn == 3:
                self.items.put([(v, s), (7, "put")])
            elif turn == 2:
                self.items.appendList([(v, s), (None, "appended")])
            else:
                self.items.appendValue((v, s))
        held = list(self.items.get())
        yield self.give(key, [*before, self.items.exists(), held], len(held))


class Maps(Either):
    """A map of counts by value, with every method."""

    ttl: int | None = None

    def init(self, handle: Any) -> None:
        self.counts = handle.getMapState(
            "counts", "s string, sign long", "n long, v long", self.ttl
        )

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        before = [self.counts.exists(), sorted(map(str, self.counts.iterator()))]
        for v, s, _ in self.read(rows):
            own = (s or "none", 0 if v is None else (v > 0) - (v < 0))
            n = self.counts.getValue(own)[0] if self.counts.containsKey(own) else 0
            self.counts.updateValue(own, (n + 1, v))
            if n == 2:
                self.counts.removeKey(own)
                before.append((self.counts.containsKey(own), self.counts.getValue(own)))
        keys = sorted(map(told, self.counts.keys()))
        values = sorted(map(str, self.counts.values()))
        if len(keys) > 6:
            self.counts.clear()
        self.counts.removeKey(("never", 0))
        yield self.give(key, [*before, keys, values, self.counts.exists()], len(keys))


class Types(Either):
    """Three variables of many types, with nulls; composite keys of a map."""

    def init(self, handle: Any) -> None:
        self.last = handle.getValueState(
            "last",
            "v int, x double, f float, d decimal(12,2), flag boolean, day date, at timestamp, "
            "raw binary, b byte, h short, vs array<long>, m map<string, array<int>>, "
            "st struct<a: int, b: string>",
        )
        self.all = handle.getListState(
            "all", "vs array<string>, nested map<string, map<string, int>>"
        )
        self.by = handle.getMapState("by", "day date, flag boolean", "sts array<struct<a: long>>")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        before = self.last.get()
        for v, s, ms in self.read(rows):
            self.last.update(self._cells(v, s, ms))
            self.all.appendValue(([s, None, "x"], {"e": {"a": v or 0, "b": 10}}))
            own = (date(2024, 2, 1) + timedelta(days=(v or 0) % 3), v is None)
            held = self.by.getValue(own)
            more = [] if held is None else [tuple(part) for part in held[0]]
            self.by.updateValue(own, ([*more, (v,)],))
        pairs = sorted(
            str(told((own, [tuple(p) for p in held[0]]))) for own, held in self.by.iterator()
        )
        yield self.give(key, [before, list(self.all.get()), pairs])

    def _cells(self, v: int | None, s: str | None, ms: int) -> tuple[Any, ...]:
        if v is None:
            return (None,) * 13
        at = datetime.fromtimestamp(ms / 1000, UTC).replace(microsecond=5)
        lists = {"a": [1, v], "b": []}
        return (
            v, v / 4, v / 2, Decimal(v) / 4, v > 0, date(2024, 2, 29) + timedelta(days=v),
            at.astimezone().replace(tzinfo=None), bytes([v % 7]), v, v, [v, None], lists, (v, s),
        )  # fmt: skip


class Lasting(Either):
    """A value, a list and a map with a TTL, one of each without; every method of each."""

    ttl = DAY_MS

    def init(self, handle: Any) -> None:
        self.parts = [
            self._part(handle, Values, "count", self.ttl),
            self._part(handle, Lists, "items", self.ttl),
            self._part(handle, Maps, "counts", self.ttl),
        ]
        self.plain = handle.getValueState("plain", "n long")

    def _part(self, handle: Any, kind: type[Any], name: str, ttl: int) -> Any:
        part = kind(self.frames)
        part.ttl = ttl
        part.init(handle)
        return part

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        held = list(rows)
        for part in self.parts:
            yield from part.handleInputRows(key, iter(held), timerValues)
        n = (self.plain.get() or (0,))[0] + 1
        self.plain.update((n,))
        yield self.give(key, "plain", n)


class Passing(Lasting):
    """The same with a TTL that is over in every batch after the one of the put."""

    ttl = 1


class EventTimers(Either):
    """Counts until nothing has come for a while by the watermark, then says so and forgets."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.state = handle.getValueState("state", "n long, until long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        n, until = self.state.get() or (0, 0)
        entries = self.read(rows)
        latest = max([until, *(ms + 60_000 for _, _, ms in entries)])
        if latest != until:
            self.handle.deleteTimer(until)
            self.handle.registerTimer(latest)
        n += len(entries)
        watermark = timerValues.getCurrentWatermarkInMs()
        if n % 3 == 0:
            self.handle.registerTimer(watermark)  # due at once
            self.handle.registerTimer(watermark + 1)
        self.state.update((n, latest))
        yield self.give(key, [sorted(self.handle.listTimers()), watermark], n)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        held = self.state.get()
        self.state.clear()
        moment = expiredTimerInfo.getExpiryTimeInMs()
        if held is not None and held[0] > 2:
            self.handle.registerTimer(moment + 120_000)
        yield self.give(key, [moment, held, sorted(self.handle.listTimers())])


class ClockTimers(Either):
    """Timers that are over, due now, due in the next batch and due tomorrow."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.fired = handle.getValueState("fired", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        now = timerValues.getCurrentProcessingTimeInMs()
        for v, _, _ in self.read(rows):
            turn = 0 if v is None else v % 5
            self.handle.registerTimer(now + (-1000, 0, 1, DAY_MS, 2 * DAY_MS)[turn])
            if turn == 4:
                self.handle.deleteTimer(now + DAY_MS)
                self.handle.deleteTimer(12)
        listed = sorted(moment - now for moment in self.handle.listTimers())
        yield self.give(key, [moment for moment in listed if moment in (-1000, 0, 1)], len(listed))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        n = (self.fired.get() or (0,))[0] + 1
        self.fired.update((n,))
        now = timerValues.getCurrentProcessingTimeInMs()
        yield self.give(key, expiredTimerInfo.getExpiryTimeInMs() <= now, n)


class Seeded(Either):
    """Totals that start from what they are given, in a value, a list and a map."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long, total long")
        self.seeds = handle.getListState("seeds", "total long")
        self.by = handle.getMapState("by", "total long", "n long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        frame = initialState
        for seed in [int(v) for v in frame["total"]] if self.frames else [frame.total]:
            n, total = self.total.get() or (0, 0)
            self.total.update((n + 100, total + seed))
            self.seeds.appendValue((seed,))
            self.by.updateValue((seed % 3,), (1,))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        n, total = self.total.get() or (0, 0)
        for v, _, _ in self.read(rows):
            n, total = n + 1, total + (v or 0)
        self.total.update((n, total))
        seeds = sorted(seed[0] for seed in self.seeds.get())
        yield self.give(key, [total, seeds, sorted(own[0] for own, _ in self.by.iterator())], n)


class SeededTimers(Seeded):
    """The same, with timers for what they are given: due at once, and tomorrow."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        super().handleInitialState(key, initialState, timerValues)
        now = timerValues.getCurrentProcessingTimeInMs()
        self.handle.registerTimer(now)
        self.handle.registerTimer(now + DAY_MS)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        yield self.give(key, ["over", self.total.get(), len(list(self.handle.listTimers()))])


class Deleting(Either):
    """Asks for a variable and has it deleted, as well as one that never was."""

    def init(self, handle: Any) -> None:
        self.kept = handle.getValueState("kept", "n long")
        self.gone = handle.getValueState("gone", "n long")
        handle.deleteIfExists("gone")
        handle.deleteIfExists("never")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        n = (self.kept.get() or (0,))[0] + len(self.read(rows))
        self.kept.update((n,))
        yield self.give(key, "kept", n)


class Moments(Either):
    """Says which rows it got and what time it is: late rows come unless time is event time."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.least = handle.getValueState("least", "ms long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        entries = self.read(rows)
        least = min([*(self.least.get() or ()), *(ms for _, _, ms in entries)])
        self.least.update((least,))
        clock = timerValues.getCurrentProcessingTimeInMs()
        yield self.give(key, [clock > 0, timerValues.getCurrentWatermarkInMs(), entries], least)


class Silent(Either):
    """Keeps state and gives nothing; reads none of its rows."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("state", "v long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        self.state.update(((self.state.get() or (0,))[0] + len(key),))
        return iter([])


class Large(Either):
    """Values of many bytes, a list and a map of many entries."""

    def init(self, handle: Any) -> None:
        self.text = handle.getValueState("text", "s string")
        self.items = handle.getListState("items", "v long")
        self.by = handle.getMapState("by", "v long", "s string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        before = [len((self.text.get() or ("",))[0]), [item[0] for item in self.items.get()]]
        first = len(before[1]) + len(self.read(rows))
        self.text.update((f"{first} " * 200_000,))
        self.items.appendList([(v,) for v in range(first, first + 150)])
        for v in range(first, first + 120):
            self.by.updateValue((v,), (str(v) * 50,))
        yield self.give(key, [*before, sorted(own[0] for own, _ in self.by.iterator())], first)


class Columns(Either):
    """Says what it was given: every cell of it, and its type."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("state", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        held = list(rows)
        cells = [
            [f"{name} {type(cell).__name__} {told(cell)}" for name, cell in row.asDict().items()]
            for row in held
        ]
        self.state.update((len(held),))
        yield self.give(key, [type(cell).__name__ for cell in key], len(held))
        for row in sorted(cells):
            yield self.give(key, row)


COMPOSITE = (
    "id {key}, what string, n long, words array<string>, m map<string, string>, "
    "parts array<struct<a: int, b: double, c: array<string>>>, "
    "st struct<a: int, m: map<string, int>>"
)


class Composite(Either):
    """Output of nested types."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        n = (self.count.get() or (0,))[0] + len(self.read(rows))
        self.count.update((n,))
        parts = [self._struct(a=i, b=i * 1.5, c=[f"c{i}"] * i) for i in range(n % 4)]
        yield self.give(
            key, "composite", n,
            words=[f"w{i}" for i in range(n % 3)], m={f"k{i}": f"v{i}" for i in range(n % 3)},
            parts=parts, st=self._struct(a=n, m={"n": n}),
        )  # fmt: skip

    def _struct(self, **cells: Any) -> Any:
        return cells if self.frames else Row(**cells)


CHAINED = "id {key}, what string, n long, at timestamp"


class Chained(Either):
    """Gives each row on with its time, for a window after it."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        n = (self.count.get() or (0,))[0]
        for v, _, ms in self.read(rows):
            n += 1
            at = datetime.fromtimestamp(ms / 1000, UTC)
            yield self.give(key, v, n, at=at.replace(tzinfo=None) if self.frames else at)
        self.count.update((n,))
