"""The test driver does what Spark's TwsTester does: side by side, the same calls give the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="TwsTester came with Spark 4.2")
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.tws_tester import TwsTester

import holdfast
from holdfast.testing import StateTestDriver, WindowedQuery

SCHEMA = "id string, v long, ts timestamp"
OUTPUT = "id string, what string, n long"
START_MS = 1_700_000_000_000


def _at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _rows(key: str, *cells: tuple[int, int]) -> list[Row]:
    return [Row(id=key, v=v, ts=_at(START_MS + ms)) for v, ms in cells]


def _ms(row: Any) -> int:
    return int(row.ts.timestamp() * 1000)


class Ledger(StatefulProcessor):
    """A value, a list and a map; a negative number asks for a timer. Rows or DataFrames alike."""

    frames = False

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long")
        self.items = handle.getListState("items", "v long")
        self.counts = handle.getMapState("counts", "v long", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        found = [int(v) for frame in rows for v in frame.v] if self.frames else [r.v for r in rows]
        for v in found:
            if v < 0:
                self.handle.registerTimer(self.now(timerValues) - v)
                continue
            self.total.update((self.total.get()[0] + v if self.total.exists() else v,))
            self.items.appendValue((v,))
            before = self.counts.getValue((v,)) if self.counts.containsKey((v,)) else (0,)
            self.counts.updateValue((v,), (before[0] + 1,))
        yield self.row(key, str(sorted(self.handle_timers())), len(found))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        self.items.clear()
        yield self.row(key, "timer", expiredTimerInfo.getExpiryTimeInMs())

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        value = initialState.v.iloc[0] if self.frames else initialState.v
        self.total.update((int(value),))

    def handle_timers(self) -> list[int]:
        return list(self.handle.listTimers()) if self.clocked else []

    clocked = False

    def now(self, timerValues: Any) -> int:
        by_clock = timerValues.getCurrentProcessingTimeInMs()
        return int(max(by_clock, timerValues.getCurrentWatermarkInMs()))

    def row(self, key: Any, what: str, n: int) -> Any:
        if self.frames:
            return pd.DataFrame({"id": [key[0]], "what": [what], "n": [n]})
        return Row(id=key[0], what=what, n=n)


class ClockedLedger(Ledger):
    clocked = True


class FrameLedger(Ledger):
    frames = True


def _held(tester: TwsTester, key: str) -> list[Any]:
    value = tester.peekValueState("total", key)
    return [value, tester.peekListState("items", key), tester.peekMapState("counts", key)]


def _driven(driver: StateTestDriver, key: str) -> list[Any]:
    names = (("total", None), ("items", []), ("counts", {}))
    return [driver.state(name).get((key,), nothing) for name, nothing in names]


def _driver(processor: Any, **more: Any) -> StateTestDriver:
    return StateTestDriver(processor, "id", SCHEMA, OUTPUT, **more)


def test_rows_and_state_set_and_deleted_from_outside_give_what_spark_gives() -> None:
    tester, driver = TwsTester(Ledger()), _driver(Ledger())

    def both(key: str, *cells: tuple[int, int]) -> None:
        rows = _rows(key, *cells)
        assert driver.push(rows) == tester.test(key, rows)
        assert _driven(driver, key) == _held(tester, key)

    both("a", (1, 0), (2, 1), (2, 2))
    both("b", (7, 0))
    tester.updateValueState("total", "a", (100,))
    driver.set_state("total", "a", (100,))
    tester.updateListState("items", "a", [(9,), (8,)])
    driver.set_state("items", ("a",), [(9,), (8,)])
    tester.updateMapState("counts", "a", {(5,): (50,)})
    driver.set_state("counts", {"id": "a"}, {(5,): (50,)})
    assert _driven(driver, "a") == _held(tester, "a") == [(100,), [(9,), (8,)], {(5,): (50,)}]
    both("a", (5, 3), (1, 4))
    for name in ("total", "items", "counts"):
        tester.deleteState(name, "a")
        driver.delete_state(name, "a")
        assert _driven(driver, "a") == _held(tester, "a")
    assert _driven(driver, "b") == _held(tester, "b") == [(7,), [(7,)], {(7,): (1,)}]
    both("a", (4, 5))
    version = driver.version
    driver.delete_state("items", "nobody")
    assert driver.version == version, "nothing changed: no version"
    with pytest.raises(holdfast.InvalidArgument, match=r"'seen'.*'total' \(value\)"):
        driver.set_state("seen", "a", (1,))


def test_state_to_start_with_is_what_spark_starts_with() -> None:
    rows = [Row(id="a", v=7), Row(id="z", v=8)]
    tester = TwsTester(Ledger(), initialStateRow=[(row.id, row) for row in rows])
    driver = _driver(Ledger())
    driver.preload(rows, "id string, v long")
    given = _rows("a", (1, 0))
    assert driver.push(given) == tester.test("a", given)
    for key in ("a", "z"):
        assert _driven(driver, key) == _held(tester, key)


def test_frames_give_what_spark_gives() -> None:
    first = pd.DataFrame({"id": ["a"], "v": [7]})
    tester = TwsTester(FrameLedger(), initialStatePandas=[("a", first)])
    driver = _driver(FrameLedger(), form="pandas")
    driver.preload(first, "id string, v long")
    for key, values in (("a", [1, 2, 2]), ("b", [3]), ("a", [4])):
        times = pd.to_datetime([START_MS] * len(values), unit="ms")
        frame = pd.DataFrame({"ts": times, "v": values, "id": key})
        pd.testing.assert_frame_equal(driver.push(frame), tester.testInPandas(key, frame))
        assert _driven(driver, key) == _held(tester, key)
    assert list(driver.tick().columns) == ["id", "what", "n"]
    with pytest.raises(holdfast.InvalidArgument, match="no column 'v'"):
        driver.push(pd.DataFrame({"id": ["a"]}))


@pytest.mark.parametrize("mode", ["ProcessingTime", "EventTime"])
def test_timers_fire_as_spark_fires_them_when_time_is_moved(mode: str) -> None:
    is_event = mode == "EventTime"
    tester = TwsTester(ClockedLedger(), timeMode=mode, eventTimeExtractor=_ms if is_event else None)
    driver = _driver(ClockedLedger(), time_mode=mode, watermark=("ts", "10 seconds"), partitions=1)
    move, theirs = (
        (driver.set_watermark, tester.setWatermark)
        if is_event
        else (driver.set_clock, tester.setProcessingTime)
    )

    def both(key: str, *cells: tuple[int, int]) -> list[Row]:
        rows = _rows(key, *cells)
        given = driver.push(rows, idle=False)
        found = tester.test(key, rows)
        assert given == [row for row in found if row.n], "Spark calls no processor without rows"
        assert _driven(driver, key) == _held(tester, key)
        return list(given)

    def moved(ms: int) -> list[Row]:
        given = move(START_MS + ms)
        assert sorted(given) == sorted(theirs(START_MS + ms))
        return list(given)

    assert moved(0) == []
    both("a", (3, 10), (-5000, 20), (-2000, 30))
    both("b", (-2000, 10))
    assert moved(1999) == []
    assert len(moved(2000)) == 2
    assert [row.n for row in moved(9000)] == [START_MS + 5000]
    late = both("a", (1, 8999), (2, 9001))
    assert late[0].n == (1 if is_event else 2), "what is at or before the watermark is late"
    for refused in (move, theirs):
        with pytest.raises(Exception, match=r"cannot go back|must move forward"):
            refused(START_MS + 1)


def test_a_handle_of_a_key_calls_its_state_and_timers_and_runs_a_method() -> None:
    tester = TwsTester(ClockedLedger(), timeMode="ProcessingTime")
    driver = _driver(ClockedLedger(), time_mode="ProcessingTime")
    tester.handle.setGroupingKey("a")
    with driver.handle("a") as handle:
        for own in (handle, tester.handle):
            own.getValueState("total", "n long").update((5,))
            own.getListState("items", "v long").appendList([(1,), (2,)])
            own.getMapState("counts", "v long", "n long").updateValue((1,), (2,))
            own.registerTimer(60_000)
            own.registerTimer(70_000)
            own.deleteTimer(70_000)
            assert list(own.listTimers()) == [60_000]
        assert handle.getValueState("total").get() == (5,)
    assert _driven(driver, "a") == _held(tester, "a")
    assert driver.timers() == {("a",): [60_000]}
    version = driver.version
    with driver.handle("a") as handle:
        processor = ClockedLedger()
        processor.init(handle)
        given = list(
            processor.handleInputRows(("a",), iter(_rows("a", (4, 0))), handle.timerValues)
        )
    assert given == tester.test("a", _rows("a", (4, 0)))
    assert _driven(driver, "a") == _held(tester, "a")
    assert driver.version == version + 1
    with contextlib.suppress(ZeroDivisionError), driver.handle("a") as handle:
        handle.getValueState("total").clear()
        raise ZeroDivisionError
    assert driver.version == version + 1, "nothing of it was committed"
    assert driver.advance_clock("1 minute") == tester.setProcessingTime(60_000)
    assert _driven(driver, "a") == _held(tester, "a")
    with (
        pytest.raises(holdfast.InvalidArgument, match=r"no list variable 'total'"),
        driver.handle("a") as handle,
    ):
        handle.getListState("total")


def test_naive_times_of_rows_and_frames_are_of_the_drivers_zone() -> None:
    naive = datetime(2024, 4, 20, 12)
    marks = []
    for rows in ([("a", 1, naive)], pd.DataFrame({"id": "a", "v": 1, "ts": [naive]})):
        driver = _driver(Ledger(), watermark=("ts", 0), zone="Asia/Seoul")
        driver.push(rows)
        marks.append(driver.watermark_ms)
    assert marks == [int(datetime(2024, 4, 20, 3, tzinfo=UTC).timestamp() * 1000)] * 2


# -- what TwsTester has not --------------------------------------------------------------------


def add(keys: pa.Table, rows: pa.Table, state: pa.Table, times: Any) -> tuple[pa.Table, pa.Table]:
    sums = rows.group_by("_group").aggregate([("v", "sum")]).sort_by("_group")
    total = pc.add(pc.if_else(state["_exists"], state["n"], 0), sums["v_sum"])
    return pa.table({"n": total}), pa.table({"id": keys["id"], "n": total})


def test_a_function_of_arrow_tables_runs_on_state_that_was_set() -> None:
    driver = StateTestDriver(
        add, "id", "id string, v long", "id string, n long", form="arrow", state_schema="n long"
    )
    driver.set_state("state", "a", (10,))
    given = driver.push(pa.table({"id": ["a", "b", "a"], "v": [1, 2, 3]}))
    assert sorted(given.to_pylist(), key=str) == [{"id": "a", "n": 14}, {"id": "b", "n": 2}]
    assert driver.state() == driver.state("state") == {("a",): (14,), ("b",): (2,)}
    driver.delete_state("state", "a")
    assert driver.push([("a", 1)]).to_pylist() == [{"id": "a", "n": 1}]


def _session(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    if state.hasTimedOut:
        (n,) = state.get
        state.remove()
        yield pd.DataFrame({"id": [key[0]], "n": [n]})
        return
    n = (state.getOption or (0,))[0] + sum(int(frame.v.sum()) for frame in frames)
    state.update((n,))
    state.setTimeoutDuration(60_000)


def test_a_function_with_a_group_state_times_out_by_the_clock() -> None:
    driver = StateTestDriver(
        _session,
        "id",
        "id string, v long",
        "id string, n long",
        form="group_state",
        state_schema="n long",
        time_mode="ProcessingTimeTimeout",
    )
    driver.set_clock(1000)
    assert len(driver.push([("a", 1), ("b", 5), ("a", 2)])) == 0
    assert driver.state() == {("a",): (3,), ("b",): (5,)}
    assert driver.timers() == {("a",): [61_000], ("b",): [61_000]}
    driver.set_state("state", "a", (30,))
    assert driver.timers()["a",] == [61_000], "its timeout stays"
    driver.delete_state("state", "b")
    assert len(driver.advance_clock("1 minute")) == 0
    assert driver.advance_clock(1).to_dict("list") == {"id": ["a"], "n": [30]}
    assert driver.state() == driver.timers() == {}


def test_a_ttl_counts_from_the_moment_state_was_set_from_outside() -> None:
    class Passing(Ledger):
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "n long", 60_000)

    driver = _driver(Passing(), time_mode="ProcessingTime")
    driver.set_clock(1000)
    driver.set_state("total", "a", (1,))
    driver.advance_clock("30 seconds")
    driver.set_state("total", "b", (2,))
    driver.advance_clock("30 seconds")
    assert driver.state("total") == {("b",): (2,)}
    driver.advance_clock("29 seconds 999 milliseconds")
    assert driver.state("total") == {("b",): (2,)}
    driver.advance_clock("1 millisecond")
    assert driver.state("total") == {}


def test_what_does_not_fit_is_refused_with_what_to_do() -> None:
    driver = _driver(Ledger())
    driver.set_clock(1000)
    refused: list[tuple[str, Any]] = [
        ("cannot go back from 1000 ms to 999 ms", lambda: driver.set_clock(999)),
        ("cannot go back", lambda: driver.advance_clock("-1 seconds")),
        ("is not a duration", lambda: driver.advance_clock("soon")),
        ("no watermark to set", lambda: driver.set_watermark(1)),
        ("needs a watermark", lambda: _driver(Ledger(), time_mode="EventTime")),
        ("'at' is not a timestamp", lambda: _driver(Ledger(), watermark=("at", 0))),
        ("'v' is not a timestamp", lambda: _driver(Ledger(), watermark=("v", 0))),
        ("'arrow' or 'group_state' for a function", lambda: _driver(add)),
        ("'row' or 'pandas' for a Stateful", lambda: _driver(Ledger(), form="arrow")),
        ("needs the columns of its state", lambda: _driver(add, form="arrow")),
        ("leave state_schema out", lambda: _driver(Ledger(), state_schema="n long")),
        (
            "needs a watermark",
            lambda: _driver(
                _session, form="group_state", state_schema="n long",
                time_mode="EventTimeTimeout",
            ),
        ),
        (
            "timeout must be one of",
            lambda: _driver(
                _session, form="group_state", state_schema="n long", time_mode="EventTime"
            ),
        ),
        (
            "WindowedQuery cannot be set",
            lambda: StateTestDriver(
                WindowedQuery("id", aggs={"n": "count(*)"}), schema=SCHEMA
            ).set_state("default", "a", (1,)),
        ),
        (
            "has no handleInitialState",
            lambda: _driver(add, form="arrow", state_schema="n long").preload([("a", 1, None)]),
        ),
    ]  # fmt: skip
    for message, call in refused:
        with pytest.raises(holdfast.InvalidArgument, match=message):
            call()
    assert driver.set_clock(1000) == [], "the same moment again is none that goes back"
