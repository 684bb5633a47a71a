"""State comes to processors as PySpark gives it: structs as Rows, timestamps naive and local."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from holdfast.errors import IllegalState, InvalidArgument
from holdfast.streams.processors.forms import StateForm, rank
from holdfast.testing import StateTestDriver
from holdfast.types import parse_schema

LOCAL, SESSION = "America/New_York", "Asia/Kolkata"
MOMENT = datetime(2024, 1, 2, 3, 4, 5)
INSIDE = "s struct<b int, t timestamp>, l array<struct<c int>>, m map<string, struct<d int>>"
VALUE = (Row(b=2, t=MOMENT), [Row(c=3)], {"k": Row(d=4)}, MOMENT, [MOMENT])
SCHEMA = f"{INSIDE}, at timestamp, ats array<timestamp>"
ROWS = "id string, at timestamp"
KEPT = "v int NOT NULL, s struct<w: int NOT NULL> NOT NULL"


@pytest.fixture(autouse=True)
def _local_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A local time that is neither UTC nor that of the session."""
    monkeypatch.setitem(os.environ, "TZ", LOCAL)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class Kinds(StatefulProcessor):
    """Keeps the same in every kind of state, and notes what comes back."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.said = said

    def __deepcopy__(self, memo: Any) -> Kinds:
        return self

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", SCHEMA)
        self.list = handle.getListState("list", SCHEMA)
        self.map = handle.getMapState("map", "k int, at timestamp", SCHEMA)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.said["initial"] = initialState

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        said = self.said
        said["key"], said["rows"] = key, list(rows)
        for step in ("new", "stored"):
            if step == "new" and self.value.exists():
                continue
            if step == "new":
                self.value.update(VALUE)
                self.list.put([VALUE])
                self.map.updateValue((1, MOMENT), VALUE)
            said["value"], said["list"] = self.value.get(), list(self.list.get())
            said["got"] = self.map.getValue((1, MOMENT))
            said["contains"] = self.map.containsKey((1, MOMENT.astimezone(UTC)))
            said["pairs"] = list(self.map.iterator())
            said["keys"], said["values"] = list(self.map.keys()), list(self.map.values())
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 10)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        self.said["timer"] = key
        return iter(())


def _driver(said: dict[str, Any], **more: Any) -> StateTestDriver:
    return StateTestDriver(
        Kinds(said), "at", ROWS, "id string", time_mode="ProcessingTime", zone=SESSION, **more
    )


def test_every_kind_of_state_gives_rows_and_naive_local_timestamps() -> None:
    said: dict[str, Any] = {}
    driver = _driver(said)
    for _ in range(2):  # the second time out of the store
        driver.push([("a", MOMENT.replace(tzinfo=UTC))])
        assert said["value"] == VALUE
        assert type(said["value"]) is tuple
        assert said["list"] == [VALUE]
        assert said["got"] == VALUE
        assert said["got"].asDict()["at"] == MOMENT
        assert said["contains"]
        assert said["pairs"] == [((1, MOMENT), VALUE)]
        assert said["keys"] == [(1, MOMENT)]
        assert said["values"] == [VALUE]
        for cells in (said["value"], said["list"][0], said["got"], said["values"][0]):
            assert cells[0].asDict() == {"b": 2, "t": MOMENT}
            assert [cells[1][0].c, cells[2]["k"].d, cells[0].t.tzinfo] == [3, 4, None]


def test_rows_and_keys_have_the_sessions_zone_and_timers_the_form_of_state() -> None:
    said: dict[str, Any] = {}
    moment = MOMENT.replace(tzinfo=UTC)
    driver = _driver(said)
    driver.push([("a", moment)])
    zoned = moment.astimezone(ZoneInfo(SESSION))
    assert said["key"] == (zoned,)
    assert said["key"][0].utcoffset() == said["rows"][0].at.utcoffset() == timedelta(minutes=330)
    driver.advance_clock(11)
    assert said["timer"] == Row(at=moment.astimezone().replace(tzinfo=None))
    assert said["timer"].at.tzinfo is None


def test_keys_of_dataframes_are_naive_in_the_sessions_zone() -> None:
    said: dict[str, Any] = {}
    _driver(said, form="pandas").push([("a", MOMENT.replace(tzinfo=UTC))])
    assert said["key"] == (pd.Timestamp("2024-01-02 08:34:05"),)
    assert said["key"][0] == said["rows"][0]["at"][0]


def test_initial_state_has_the_form_of_rows() -> None:
    said: dict[str, Any] = {}
    driver = _driver(said)
    moment = MOMENT.replace(tzinfo=UTC)
    driver.preload([(moment, [moment])], schema="at timestamp, ats array<timestamp>")
    driver.push([("a", moment)])
    assert said["initial"] == Row(at=moment, ats=[moment])
    for cell in (said["initial"].at, said["initial"].ats[0]):
        assert cell.utcoffset() == timedelta(minutes=330)


def test_a_group_state_gives_rows_and_naive_local_timestamps() -> None:
    found = []

    def keep(key: Any, frames: Any, state: Any) -> Iterator[Any]:
        list(frames)
        found.append(state.getOption)
        state.update((Row(b=1, t=MOMENT), MOMENT, [MOMENT]))
        found.append(state.get)
        return iter(())

    driver = StateTestDriver(
        keep,
        "id",
        ROWS,
        "id string",
        state_schema="s struct<b int, t timestamp>, at timestamp, ats array<timestamp>",
        form="group_state",
        zone=SESSION,
    )
    for _ in range(2):
        driver.push([("a", MOMENT.replace(tzinfo=UTC))])
    kept = (Row(b=1, t=MOMENT), MOMENT, [MOMENT])
    assert found == [None, kept, kept, kept]
    assert found[2][0].asDict() == {"b": 1, "t": MOMENT}


def test_maps_iterate_in_the_order_of_their_keys() -> None:
    class Ordered(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.map = handle.getMapState("map", "n int, s string", "v int")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            for at, own in enumerate([(3, "c"), (-1, "b"), (3, None), (300, "a"), (None, "z")]):
                self.map.updateValue(own, (at,))
            keys, values = list(self.map.keys()), list(self.map.values())
            assert list(self.map.iterator()) == list(zip(keys, values, strict=True))
            yield Row(
                id=str(keys + [value.v if hasattr(value, "v") else value for value in values])
            )

    driver = StateTestDriver(Ordered(), "id", ROWS, "id string")
    expected = str(
        [(None, "z"), (-1, "b"), (3, None), (3, "c"), (300, "a"), (4,), (1,), (2,), (0,), (3,)]
    )
    for _ in range(2):
        (row,) = driver.push([("a", MOMENT.replace(tzinfo=UTC))])
        assert row.id == expected


def test_keys_of_all_kinds_have_an_order() -> None:
    far = np.datetime64("12000-01-01", "us")
    cells = [None, np.datetime64("-1000-01-01", "us"), datetime(1, 1, 1), datetime(2024, 1, 1), far]
    assert sorted(random.sample(cells, len(cells)), key=rank) == cells
    assert sorted([float("nan"), 2.0, None, -1.0], key=rank)[:3] == [None, -1.0, 2.0]


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("y", ("y",)),
        (("zz",), ("zz",)),
        ({"k": "zz"}, ("zz",)),
        (iter(["zz"]), ("zz",)),
    ],
)
def test_a_key_of_one_column_is_taken_as_spark_takes_it(given: Any, taken: Any) -> None:
    assert StateForm(parse_schema("k string")).take(given) == taken


@pytest.mark.parametrize("given", ["zz", "", 3, None, iter(["a", "b"])])
def test_what_does_not_give_one_cell_is_no_key_of_one_column(given: Any) -> None:
    with pytest.raises(InvalidArgument):
        StateForm(parse_schema("k string")).take(given)


def test_timestamps_of_pandas_and_those_that_come_twice_keep_their_moment() -> None:
    form = StateForm(parse_schema("at timestamp"))
    twice = datetime(2024, 11, 3, 1, 30)
    moments = [pd.Timestamp("2024-07-01 12:00"), twice, twice.replace(fold=1)]
    utc = [form.take((moment,))[0] for moment in moments]
    assert [moment.hour for moment in utc] == [16, 5, 6]
    assert [form.show((moment,))[0].fold for moment in utc] == [0, 0, 1]


class Scripted(StatefulProcessor):
    """Calls functions with what `init` got, and says what comes of them."""

    def __init__(self, *steps: Any, deletes: str = "") -> None:
        self.steps, self.deletes = steps, deletes

    def init(self, handle: Any) -> None:
        self.list = handle.getListState("list", "v int")
        self.gone = handle.getValueState("gone", "v int")
        self.kept = handle.getValueState(
            "kept", "v int NOT NULL, s struct<w: int NOT NULL> NOT NULL"
        )
        if self.deletes:
            handle.deleteIfExists(self.deletes)
            handle.deleteIfExists("never")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for step in self.steps:
            yield Row(id=str(step(self)))


def _scripted(*steps: Any, deletes: str = "") -> list[str]:
    driver = StateTestDriver(Scripted(*steps, deletes=deletes), "id", ROWS, "id string")
    return [row.id for row in driver.push([("a", MOMENT.replace(tzinfo=UTC))])]


@pytest.mark.parametrize("method", ["put", "appendList"])
@pytest.mark.parametrize("given", [[], (), iter(())])
def test_an_empty_list_is_refused_as_spark_refuses_it(method: str, given: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"clear\(\)") as caught:
        _scripted(lambda own: getattr(own.list, method)(given))
    assert caught.value.condition == "ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE"


def test_a_list_is_put_whole_from_any_iterable() -> None:
    assert (
        _scripted(
            lambda own: own.list.put([(9,)]),
            lambda own: own.list.put((value,) for value in (1, 2)),
            lambda own: own.list.appendList([(3,)]),
            lambda own: list(own.list.get()),
        )[-1]
        == "[(1,), (2,), (3,)]"
    )


@pytest.mark.parametrize("method", ["get", "exists", "clear"])
def test_a_variable_that_init_got_and_deleted_cannot_be_used(method: str) -> None:
    with pytest.raises(PySparkRuntimeError, match=r"^Error \w+ value state.*deleteIfExists"):
        _scripted(lambda own: getattr(own.gone, method)(), deletes="gone")
    assert _scripted(lambda own: own.list.exists(), deletes="gone") == ["False"]


def test_a_schema_without_nulls_keeps_values_and_refuses_null() -> None:
    assert (
        _scripted(lambda own: own.kept.update((1, (2,))), lambda own: own.kept.get())[-1]
        == "(1, Row(w=2))"
    )
    with pytest.raises(InvalidArgument, match="null"):
        _scripted(lambda own: own.kept.update((None, (2,))))


@pytest.mark.parametrize("form", ["row", "pandas"])
def test_a_processor_that_returns_none_fails_as_in_spark(form: str) -> None:
    class Silent(StatefulProcessor):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            list(rows)

    driver = StateTestDriver(Silent(), "id", ROWS, "id string", form=form)
    with pytest.raises(TypeError, match="'NoneType' object is not iterable"):
        driver.push([("a", MOMENT.replace(tzinfo=UTC))])


def test_an_expired_timer_for_which_none_is_returned_fails_as_in_spark() -> None:
    class Late(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
            return []

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            return None

    driver = StateTestDriver(Late(), "id", ROWS, "id string", time_mode="ProcessingTime")
    driver.push([("a", MOMENT.replace(tzinfo=UTC))])
    with pytest.raises(TypeError, match="handleExpiredTimer returned None"):
        driver.advance_clock(5)


def test_a_variable_that_only_a_worker_asks_for_is_named() -> None:
    class Fickle(StatefulProcessor):
        calls: list[int] = []  # noqa: RUF012 - shared by the copies of the processor

        def init(self, handle: Any) -> None:
            self.calls.append(1)
            handle.getValueState("always", "v int")
            if len(self.calls) > 2:
                handle.getValueState("sometimes", "v int")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            return []

    driver = StateTestDriver(Fickle(), "id", ROWS, "id string")
    rows = [("a", MOMENT.replace(tzinfo=UTC))]
    with pytest.raises(IllegalState, match="'sometimes'"):
        [driver.push(rows) for _ in range(3)]
