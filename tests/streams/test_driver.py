"""A processor run without Spark: time, lists and maps with a TTL, timers, crashes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark")
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import holdfast
from holdfast.reading.find import open_root
from holdfast.streams.processors import states
from holdfast.testing import StateTestDriver

SCHEMA = "id string, v long, ts timestamp"
OUTPUT = "id string, what string"
START = datetime(2024, 4, 20, tzinfo=UTC)
DAY = 86_400_000


def _row(key: str, v: int, seconds: float = 0) -> tuple[Any, ...]:
    return key, v, START + timedelta(seconds=seconds)


class Everything(StatefulProcessor):
    """A value, a list and a map, each with a TTL; tells what they hold."""

    ttl: int | None = 1000

    def init(self, handle: Any) -> None:
        self.last = handle.getValueState("last", "v long", self.ttl)
        self.items = handle.getListState("items", "v long", ttlDurationMs=self.ttl)
        self.counts = handle.getMapState("counts", "v long", "n long", self.ttl)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.last.update((row.v,))
            self.items.appendValue((row.v,))
            n = self.counts.getValue((row.v,))
            self.counts.updateValue((row.v,), ((n[0] if n else 0) + 1,))
        yield Row(id=key[0], what=self.told())

    def told(self) -> str:
        items = [item[0] for item in self.items.get()]
        counts = sorted((k[0], v[0]) for k, v in self.counts.iterator())
        return str([self.last.get(), items, counts])


class Forever(Everything):
    """The same without an end."""

    ttl = None


def _driver(processor: Any, mode: str = "ProcessingTime", **more: Any) -> StateTestDriver:
    return StateTestDriver(processor, "id", SCHEMA, OUTPUT, time_mode=mode, **more)


def test_entries_end_one_by_one_when_the_clock_reaches_their_time() -> None:
    driver = _driver(Everything())
    driver.set_clock(10_000)
    driver.push([_row("a", 1)])
    driver.set_clock(10_600)
    (row,) = driver.push([_row("a", 2)])
    assert row.what == "[(2,), [1, 2], [(1, 1), (2, 1)]]"
    driver.set_clock(10_999)
    (row,) = driver.push([_row("a", 2)])
    assert row.what == "[(2,), [1, 2, 2], [(1, 1), (2, 2)]]"
    driver.set_clock(11_000)
    (row,) = driver.push([_row("a", 3)])
    assert row.what == "[(3,), [2, 2, 3], [(2, 2), (3, 1)]]", "what was put at 10,000 is over"
    driver.set_clock(20_000)
    (row,) = driver.push([_row("b", 1)])
    assert driver.state("last") == {("b",): (1,)}
    assert driver.state("items") == {("b",): [(1,)]}
    assert driver.state("last", at=1) == {("a",): (1,)}


class Calls(Everything):
    """Puts, asks or clears, by the number in its rows, with every method there is."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            (self.put, self.clear, lambda: None)[row.v]()
        yield Row(id=key[0], what=str(self.answers()))

    def put(self) -> None:
        self.last.update((1,))
        self.items.put([(1,), (2,)])
        self.items.appendValue((3,))
        self.items.appendList([(4,), (5,)])
        for v in (1, 2, 3):
            self.counts.updateValue((v,), (10 * v,))
        self.counts.removeKey((3,))

    def clear(self) -> None:
        for state in (self.last, self.items, self.counts):
            state.clear()

    def answers(self) -> list[Any]:
        counts = self.counts
        return [
            self.last.exists(), self.last.get(), self.items.exists(), list(self.items.get()),
            counts.exists(), counts.getValue((1,)), counts.getValue((3,)), counts.containsKey((2,)),
            sorted(counts.keys()), sorted(counts.values()), sorted(counts.iterator()),
        ]  # fmt: skip


_HELD = [
    True, (1,), True, [(1,), (2,), (3,), (4,), (5,)], True, Row(n=10), None, True,
    [(1,), (2,)], [(10,), (20,)], [((1,), (10,)), ((2,), (20,))],
]  # fmt: skip
_OVER = [False, None, False, [], False, None, None, False, [], [], []]
_PUT, _CLEAR, _ASK = 0, 1, 2


def test_every_method_of_every_kind_of_state_keeps_to_the_ttl() -> None:
    driver = _driver(Calls())

    def told(at_ms: int, *calls: int) -> str:
        driver.set_clock(at_ms, idle=False)
        (row,) = driver.push([_row("a", call) for call in calls], idle=False)
        return str(row.what)

    assert told(10_000, _PUT) == str(_HELD)
    assert told(10_999, _ASK) == str(_HELD)
    assert told(11_000, _ASK) == str(_OVER)
    assert told(11_000, _PUT) == str(_HELD), "put again"
    assert told(11_500, _CLEAR) == str(_OVER)
    assert told(11_500, _PUT) == str(_HELD)
    assert told(12_400, _PUT) == str(_HELD), "lasts anew"
    assert told(13_399, _ASK) == str(_HELD)
    assert told(13_400, _ASK) == str(_OVER)


def test_a_ttl_in_event_time_counts_from_the_calls_latest_row_against_the_watermark() -> None:
    driver = _driver(Everything(), "EventTime", watermark=("ts", 0))
    driver.push([_row("a", 1, 10), _row("a", 2, 12)])
    assert driver.state("items") == {("a",): [(1,), (2,)]}
    driver.push([_row("b", 1, 12.9)])
    assert ("a",) in driver.state("last")
    driver.push([_row("b", 2, 13)])
    assert driver.state("last") == {("b",): (2,)}, "12 s + 1 s is at the watermark"
    assert driver.state("items") == {("b",): [(1,), (2,)]}


def test_late_rows_are_dropped_in_event_time_only() -> None:
    for mode, rows in (("EventTime", 0), ("ProcessingTime", 1), ("None", 1)):
        driver = _driver(Forever(), mode, watermark=("ts", 0))
        driver.push([_row("a", 1, 100)])
        assert len(driver.push([_row("b", 1, 99)])) == rows


class Alarm(StatefulProcessor):
    """Rings after a while, and once more."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.rung = handle.getValueState("rung", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            now = timerValues.getCurrentProcessingTimeInMs()
            if row.v < 0:
                self.handle.deleteTimer(now - row.v)
            else:
                self.handle.registerTimer(now + row.v)
        return iter([])

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        n = (self.rung.get() or (0,))[0] + 1
        self.rung.update((n,))
        moment = expiredTimerInfo.getExpiryTimeInMs()
        if n == 1:
            self.handle.registerTimer(moment + 500)
        yield Row(id=key[0], what=f"{moment} of {sorted(self.handle.listTimers())}")


def test_timers_fire_at_their_moment_in_order_and_are_gone_afterwards() -> None:
    driver = _driver(Alarm())
    driver.set_clock(1000)
    assert driver.push([_row("a", 300), _row("a", 100), _row("b", 200), _row("c", 50)]) == []
    assert driver.timers() == {("a",): [1100, 1300], ("b",): [1200], ("c",): [1050]}
    assert driver.push([_row("c", -50)]) == []
    assert driver.set_clock(1099) == []
    assert driver.set_clock(1100) == [Row(id="a", what="1100 of [1100, 1300, 1600]")]
    given = sorted(driver.set_clock(1300))
    assert given == [
        Row(id="a", what="1300 of [1300, 1600]"),
        Row(id="b", what="1200 of [1200, 1700]"),
    ]
    assert driver.timers() == {("a",): [1600], ("b",): [1700]}
    assert len(driver.advance_clock(timedelta(seconds=1))) == 2
    assert driver.timers() == {}
    version = driver.version
    assert driver.advance_clock(5000) == []
    assert driver.version == version, "nothing is due: no version"


def test_a_timer_that_is_due_at_once_fires_after_the_rows_of_its_batch() -> None:
    driver = _driver(Alarm())
    driver.set_clock(1000)
    assert driver.push([_row("a", 0)]) == [Row(id="a", what="1000 of [1000, 1500]")]


@pytest.mark.parametrize("step", ["task", "commit", "deliver"])
def test_a_crash_loses_nothing_that_was_committed_and_repeats_what_was_not(step: Any) -> None:
    driver = _driver(Forever())
    driver.push([_row("a", 1)])
    assert driver.push([_row("a", 2)], crash=step) == []
    recovered = driver.recover()
    if step == "deliver":
        assert [row.what for row in recovered] == ["[(2,), [1, 2], [(1, 1), (2, 1)]]"]
    else:
        assert recovered == []
        assert driver.state("items") == {("a",): [(1,)]}
        driver.push([_row("a", 2)])
    assert driver.version == 2
    assert driver.state("items") == {("a",): [(1,), (2,)]}


def test_groups_larger_than_a_chunk_come_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.streams.processors import groups

    class Sizes(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.n = handle.getValueState("n", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            size = sum(1 for _ in rows)
            self.n.update(((self.n.get() or (0,))[0] + size,))
            yield Row(id=key[0], what=str(size))

    for rows_at_a_time in (1, 2, 3, 7, 100):
        monkeypatch.setattr(groups.GroupReader.__init__, "__defaults__", (None, rows_at_a_time))
        driver = StateTestDriver(Sizes(), "id", SCHEMA, OUTPUT, partitions=1)
        sizes = {"a": 5, "b": 1, "c": 9, "d": 2, "e": 1}
        given = driver.push([_row(key, v) for key, size in sizes.items() for v in range(size)])
        assert {row.id: int(row.what) for row in given} == sizes
        assert driver.state("n") == {(key,): (size,) for key, size in sizes.items()}


def test_what_a_processor_gives_wrongly_is_refused_without_its_value() -> None:
    class Wrong(Forever):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            yield self.given

    for given, message in [
        (("a", "secret"), "not a Row"),
        (Row(id=["secret"], what="b"), "column 'id'"),
    ]:
        processor = Wrong()
        processor.given = given
        with pytest.raises(holdfast.InvalidArgument, match=message) as caught:
            _driver(processor).push([_row("a", 1)])
        assert "secret" not in str(caught.value)


def test_other_columns_of_a_row_are_left_out_and_missing_ones_are_null() -> None:
    class Odd(Forever):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            yield Row(what="w", more=3)
            yield Row(id="i")

    assert _driver(Odd()).push([_row("a", 1)]) == [Row(id=None, what="w"), Row(id="i", what=None)]


def test_values_are_copies_so_that_changing_one_is_not_an_update() -> None:
    class Mutating(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.all = handle.getValueState("all", "vs array<long>")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            held = self.all.get()
            values = held[0] if held else []
            values += [row.v for row in rows]
            if len(values) < 3:
                self.all.update((values,))
                values.append(99)
            yield Row(id=key[0], what=str(self.all.get()))

    driver = _driver(Mutating())
    assert [r.what for v in (1, 2, 3) for r in driver.push([_row("a", v)])] == [
        "([1],)", "([1, 2],)", "([1, 2],)",
    ]  # fmt: skip


def test_state_to_start_with_is_given_before_the_first_rows() -> None:
    class Seeded(Forever):
        def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
            self.last.update((initialState.v,))

    driver = _driver(Seeded())
    driver.preload([("a", 7), ("z", 8)], schema="id string, v long")
    assert driver.state("last") == {("a",): (7,), ("z",): (8,)}
    driver.push([_row("a", 1)])
    with pytest.raises(holdfast.InvalidArgument, match="before the first rows"):
        driver.preload([("a", 7)], schema="id string, v long")


def test_a_moment_without_a_time_zone_is_one_of_the_process() -> None:
    class Moments(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.at = handle.getValueState("at", "at timestamp")
            self.all = handle.getMapState("all", "at timestamp", "at timestamp")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            naive = START.astimezone().replace(tzinfo=None)
            self.at.update((naive,))
            self.all.updateValue((naive,), (START,))
            held = self.at.get(), list(self.all.iterator()), self.all.containsKey((START,))
            yield Row(id=key[0], what=str(held == ((naive,), [((naive,), (naive,))], True)))

    assert [row.what for row in _driver(Moments()).push([_row("a", 1)])] == ["True"]


def test_an_append_and_an_update_write_that_entry_alone() -> None:
    driver = _driver(Forever())
    driver.push([_row("a", v) for v in range(500)])
    driver.push([_row("a", 7)])
    root = open_root(driver.location)
    for name in ("items", "counts"):
        store = root.store(0, name)
        written = [table.num_rows for table, _ in store.at(2).changes()]
        assert sum(written) == 1
    assert len(driver.state("items")["a",]) == 501


def test_a_row_without_an_event_time_counts_its_ttl_from_the_watermark() -> None:
    driver = _driver(Everything(), "EventTime", watermark=("ts", 0))
    driver.push([_row("b", 1, 100)])
    driver.push([("a", 1, None)])
    assert ("a",) in driver.state("last")
    driver.push([_row("b", 1, 101)])
    assert ("a",) not in driver.state("last")


def test_state_to_start_with_does_not_end_by_event_time_before_it_is_used() -> None:
    class Seeded(Everything):
        def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
            self.last.update((initialState.v,))

    driver = _driver(Seeded(), "EventTime", watermark=("ts", 0))
    driver.preload([("a", 7)], schema="id string, v long")
    driver.push([_row("b", 1, 100)])
    assert driver.state("last")["a",] == (7,)


def test_variables_may_be_kept_in_what_the_processor_was_made_with() -> None:
    class Kept(StatefulProcessor):
        def __init__(self) -> None:
            self.states: dict[str, Any] = {}

        def init(self, handle: Any) -> None:
            self.states["n"] = handle.getValueState("n", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            n = (self.states["n"].get() or (0,))[0] + 1
            self.states["n"].update((n,))
            yield Row(id=key[0], what=str(n))

    processor = Kept()
    driver = _driver(processor)
    assert processor.states == {}
    assert pickle.loads(pickle.dumps(processor.states)) == {}
    assert [row.what for _ in range(2) for row in driver.push([_row("a", 1)])] == ["1", "2"]


def test_collections_of_more_keys_than_are_held_at_a_time_are_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(states, "_KEYS_AT_A_TIME", 3)
    driver = _driver(Forever())
    for _ in range(2):
        given = driver.push([_row(f"k{n}", n) for n in range(20)])
    assert sorted(row.what for row in given) == sorted(
        f"[({n},), [{n}, {n}], [({n}, 2)]]" for n in range(20)
    )


def test_an_idle_stream_lets_go_of_entries_when_their_time_is_over() -> None:
    driver = _driver(Everything())
    driver.set_clock(10_000)
    driver.push([_row("a", 1), _row("b", 1)])
    driver.set_clock(10_500)
    driver.push([_row("b", 2)])
    assert driver.set_clock(10_999) == []
    assert driver.version == 2
    driver.set_clock(11_000)
    assert driver.version == 3, "a's entries, and b's first, are over"
    assert driver.state("last") == {("b",): (2,)}
    assert driver.state("items") == {("b",): [(2,)]}
    driver.set_clock(11_499)
    assert driver.version == 3
    driver.set_clock(20_000)
    assert driver.version == 4
    assert driver.state("items") == driver.state("counts") == driver.state("last") == {}
    driver.set_clock(90_000)
    assert driver.version == 4


def test_a_timer_registered_for_the_past_by_a_timer_fires_in_the_next_version() -> None:
    class Chain(Alarm):
        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[Row]:
            moment = expiredTimerInfo.getExpiryTimeInMs()
            if moment > 1000:
                self.handle.registerTimer(moment - 1)
            yield Row(id=key[0], what=str(moment))

    driver = _driver(Chain())
    driver.set_clock(1000)
    driver.push([_row("a", 3)])
    version = driver.version
    assert [row.what for row in driver.set_clock(5000)] == ["1003", "1002", "1001", "1000"]
    assert driver.version == version + 4
    assert driver.timers() == {}


def test_a_timer_that_always_registers_one_for_the_past_fails_and_does_not_hang() -> None:
    class Endless(Alarm):
        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[Row]:
            self.handle.registerTimer(expiredTimerInfo.getExpiryTimeInMs() - 1)
            return iter([])

    driver = _driver(Endless())
    driver.push([_row("a", 2000)])
    with pytest.raises(holdfast.IllegalState, match="registers one for the past each time"):
        driver.set_clock(2000)


def test_long_lists_are_held_for_fewer_keys_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "_KEYS_AT_FIRST", 2)
    monkeypatch.setattr(states, "_ENTRIES_AT_A_TIME", 20)
    held: list[int] = []
    load = states.ListState._load

    def counted(self: Any) -> Any:
        found = load(self)
        held.append(sum(len(entries) for entries in self._loaded.values()))
        return found

    monkeypatch.setattr(states.ListState, "_load", counted)
    driver = StateTestDriver(Forever(), "id", SCHEMA, OUTPUT, partitions=1)
    driver.push([_row(f"k{n}", v) for n in range(20) for v in range(5)])
    held.clear()
    given = driver.push([_row(f"k{n}", 5) for n in range(20)])
    assert {row.what.partition("], [")[0] for row in given} == {"[(5,), [0, 1, 2, 3, 4, 5"}
    assert held[0] <= 12, "it does not know yet how long they are"
    assert max(held) <= 25, "the entries wanted, and those of the batch"
    assert len(held) <= 7


def test_an_error_names_the_hash_of_its_key_for_rows_and_for_timers_alike() -> None:
    class Broken(Alarm):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            held = list(rows)
            if held[0].v == 0:
                raise ValueError("row")
            return super().handleInputRows(key, iter(held), timerValues)

        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[Row]:
            raise ValueError("timer")

    driver = _driver(Broken())
    driver.push([_row("a", 5)])
    notes = []
    for work in (lambda: driver.push([_row("a", 0)]), lambda: driver.set_clock(100)):
        with pytest.raises(ValueError, match=r"row|timer") as caught:
            work()
        notes += [note for note in caught.value.__notes__ if "key with the hash" in note]
    assert len(notes) == 2
    assert notes[0] == notes[1]
