"""Windowed queries run without Spark: the use cases, late data, crashes, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark")
from pyspark.sql import Row

import holdfast
from holdfast.testing import StateTestDriver, WindowedQuery
from weekly_spending import TRANSACTIONS

SCHEMA = "id string, ts timestamp, v long"
NOON = datetime(2024, 4, 20, 12, tzinfo=UTC)
TRADES = [
    ("apple", "10:10", 10),
    ("ibm", "10:16", 15),
    ("dell", "10:17", -8),
    ("apple", "10:22", -5),
    ("shell", "10:12", 18),
    ("asus", "10:25", 5),
    ("goggle", "10:27", 30),
]
PROFITS: dict[str, tuple[WindowedQuery, list[tuple[Any, ...]]]] = {
    "tumbling": (
        WindowedQuery(
            [], window=("ts", "5 minutes"), aggs={"profit": "sum(profit)"}, mode="complete"
        ),
        [("10:10", 28), ("10:15", 7), ("10:20", -5), ("10:25", 35)],
    ),
    "sliding": (
        WindowedQuery(
            [], window=("ts", "10 minutes", "5 minutes"), aggs={"profit": "sum(profit)"},
            mode="complete",
        ),
        [("10:05", 28), ("10:10", 35), ("10:15", 2), ("10:20", 30), ("10:25", 35)],
    ),
    "per id": (
        WindowedQuery(
            "id", window=("ts", "5 minutes"), aggs={"profit": "sum(profit)"}, mode="complete"
        ),
        [("10:10", "apple", 10), ("10:10", "shell", 18), ("10:15", "dell", -8),
         ("10:15", "ibm", 15), ("10:20", "apple", -5), ("10:25", "asus", 5),
         ("10:25", "goggle", 30)],
    ),
}  # fmt: skip


def _at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def _row(key: str, v: int | None, seconds: float) -> tuple[Any, ...]:
    return key, _at(seconds), v


def _driver(keys: Any = "id", **query: Any) -> StateTestDriver:
    query = {"window": ("ts", "1 minute"), "aggs": {"total": "sum(v)"}, **query}
    return StateTestDriver(WindowedQuery(keys, **query), schema=SCHEMA)


def _shown(rows: list[Any]) -> list[tuple[Any, ...]]:
    """Rows of windows by the second after noon that each window starts at."""
    return sorted(
        tuple(
            int((cell[0] - NOON).total_seconds()) if isinstance(cell, tuple) else cell
            for cell in row
        )
        for row in rows
    )


@pytest.mark.parametrize("batches", [1, 7])
@pytest.mark.parametrize("kind", PROFITS)
def test_seven_trades_in_one_batch_or_seven_give_the_printed_profits(
    kind: str, batches: int
) -> None:
    query, expected = PROFITS[kind]
    driver = StateTestDriver(query, schema="id string, ts timestamp, profit long")
    rows = [
        (name, datetime.strptime(f"20-04-2020 {time} +0000", "%d-%m-%Y %H:%M %z"), profit)
        for name, time, profit in TRADES
    ]
    size = len(rows) // batches
    for at in range(0, len(rows), size):
        given = driver.push(rows[at : at + size])
    shown = [(f"{row.window.start:%H:%M}", *(c for c in row if c != row.window)) for row in given]
    assert sorted(shown) == expected
    held = [(f"{start:%H:%M}", *key, total) for (*key, start, _), (total,) in _items(driver)]
    assert sorted(held) == expected
    assert driver.version == batches


def _items(driver: StateTestDriver) -> Iterator[Any]:
    return iter(driver.state().items())


@pytest.mark.parametrize("mode", ["append", "update"])
def test_jades_late_purchase_counts_and_the_finished_week_leaves(mode: str) -> None:
    query = WindowedQuery(
        "user",
        window=("date", "7 days"),
        aggs={"spent": "sum(shopping)"},
        watermark="2 days",
        mode=mode,
    )
    driver = StateTestDriver(query, schema="user string, shopping long, date timestamp")
    given, held = [], []
    for transaction in TRANSACTIONS:
        date = datetime.strptime(transaction["date"], "%d-%m-%Y").replace(tzinfo=UTC)
        rows = driver.push([(transaction["user"], transaction["shopping"], date)])
        given.append(sorted((f"{row.window.start:%d-%m}", row.user, row.spent) for row in rows))
        held.append(
            {user: (f"{start:%d-%m}", spent) for (user, start, _), (spent,) in _items(driver)}
        )
    first = [("16-04", "Sankar", 200)], [("16-04", "Jade", 800)]
    assert (
        given
        == {
            "append": [[], [], [*first[1], *first[0]], []],
            "update": [*first, [("23-04", "Sankar", 300)], [("23-04", "Kun", 100)]],
        }[mode]
    )
    assert held == [
        {"Sankar": ("16-04", 200)},
        {"Sankar": ("16-04", 200), "Jade": ("16-04", 800)},
        {"Sankar": ("23-04", 300)},
        {"Sankar": ("23-04", 300), "Kun": ("23-04", 100)},
    ]


def test_late_rows_are_dropped_and_counted_once_their_window_is_behind_the_watermark() -> None:
    driver = _driver(watermark="30 seconds")
    driver.push([_row("a", 1, 10)])
    assert _shown(driver.push([_row("a", 2, 89), _row("b", 5, 0)])) == [
        ("a", 60, 2),
        ("b", 0, 5),
    ]
    assert driver.watermark_ms == _at(59).timestamp() * 1000
    assert _shown(driver.push([_row("a", 4, 20), _row("a", 8, 90)])) == [("a", 0, 5), ("a", 60, 10)]
    assert driver.late_rows == 0
    assert driver.push([_row("a", 16, 59), _row("b", 32, 0)]) == [], "the minute ended at 60 s"
    assert driver.late_rows == 2
    assert _shown(driver.push([_row("a", 1, 61)])) == [("a", 60, 11)]
    assert len(driver.state()) == 1


@pytest.mark.parametrize("function", ["sum(v)", "collect_list(v)"])
@pytest.mark.parametrize("keys", ["id", []])
def test_a_row_is_late_once_when_it_is_for_all_its_windows(function: str, keys: Any) -> None:
    window = ("ts", "2 minutes", "30 seconds")
    driver = _driver(keys, window=window, aggs={"total": function}, watermark="0 seconds")
    driver.push([_row("a", 1, 300)])
    assert driver.push([_row("a", 1, 60), _row("b", 1, 179), _row("b", 1, 0)]) == []
    assert driver.late_rows == 3
    assert len(driver.push([_row("a", 1, 239)])) == 1, "one of its windows is not over"
    assert driver.late_rows == 3


def test_complete_mode_keeps_late_rows_and_all_windows() -> None:
    driver = _driver(watermark="0 seconds", mode="complete")
    driver.push([_row("a", 1, 600)])
    assert _shown(driver.push([_row("a", 2, 0)])) == [("a", 0, 2), ("a", 600, 1)]
    assert driver.late_rows == 0


def test_a_window_is_put_out_once_by_a_version_without_data_in_append_mode() -> None:
    driver = _driver(watermark="0 seconds", mode="append")
    assert driver.push([_row("a", 1, 0), _row("b", 2, 59)]) == []
    assert driver.version == 2, "the watermark moved on, but closed nothing"
    assert _shown(driver.push([_row("a", 4, 60)], idle=False)) == []
    assert _shown(driver.tick()) == [("a", 0, 1), ("b", 0, 2)]
    assert driver.tick() == []
    assert set(driver.state()) == {("a", _at(60), _at(120))}


def test_sessions_join_where_they_touch_and_close_behind_the_watermark() -> None:
    for mode, early, closed in (
        ("append", [], [("a", 0, 7)]),
        ("update", [("a", 0, 1), ("a", 60, 2)], []),
    ):
        driver = _driver(window=None, session=("ts", "30 seconds"), watermark="1 minute", mode=mode)
        assert _shown(driver.push([_row("a", 1, 0), _row("a", 2, 60)])) == early
        joined = driver.push([_row("a", 4, 30)])
        assert _shown(joined) == ([("a", 0, 7)] if mode == "update" else [])
        assert list(driver.state()) == [("a", _at(0), _at(90))]
        assert _shown(driver.push([_row("b", 1, 151)])) == closed + [("b", 151, 1)] * (
            mode == "update"
        )
        driver.push([_row("a", 9, 60)])
        assert driver.late_rows == 1
        assert list(driver.state()) == [("b", _at(151), _at(181))]


@pytest.mark.parametrize("step", ["task", "commit", "deliver"])
def test_a_crash_at_any_step_neither_loses_nor_repeats_a_row(step: Any) -> None:
    driver = _driver(watermark="10 seconds")
    driver.push([_row("a", 1, 0)])
    batch = [_row("a", 2, 1), _row("b", 3, 61)]
    assert driver.push(batch, crash=step) == []
    given = driver.recover()
    if step != "deliver":
        given += driver.push(batch)
    assert _shown(given) == [("a", 0, 3), ("b", 60, 3)]
    assert driver.state() == {("a", _at(0), _at(60)): (3,), ("b", _at(60), _at(120)): (3,)}


def test_state_of_any_version_can_be_read_as_partial_aggregates() -> None:
    driver = _driver([], window=None, aggs={"mean": "avg(v)", "n": "count(*)"})
    assert driver.push([_row("a", 1, 0), _row("b", 2, 0), _row("c", None, 0)]) == [
        Row(mean=1.5, n=3)
    ]
    driver.push([_row("a", 6, 0)])
    assert driver.state() == {(0,): (9.0, 3, 4)}
    assert driver.state(at=1) == {(0,): (3.0, 2, 3)}
    assert driver.state(at=0) == {}
    live = holdfast.read(driver.location)
    assert live.get((0,)) == (9.0, 3, 4)


def test_an_aggregate_over_all_rows_is_there_without_rows() -> None:
    every = ("sum(v)", "count(*)", "avg(v)", "min(v)", "first(v)", "stddev(v)", "collect_set(id)",
             "max_by(id, v)", "approx_count_distinct(id)")  # fmt: skip
    driver = _driver([], window=None, aggs={text: text for text in every})
    assert [list(row) for row in driver.push([])] == [
        [None, 0, None, None, None, None, [], None, 0]
    ]
    assert [list(row) for row in driver.push([_row("a", 4, 0), _row("b", 2, 0)])] == [
        [6, 2, 3.0, 2, 4, pytest.approx(2**0.5), ["a", "b"], "a", 2]
    ]


def test_rows_without_a_time_are_in_no_window_and_keys_may_be_null() -> None:
    driver = _driver(aggs={"n": "count(v)"})
    assert _shown(driver.push([(None, _at(1), 1), ("a", None, 1), (None, _at(2), None)])) == [
        (None, 0, 1)
    ]


def test_the_event_time_itself_may_be_a_key() -> None:
    driver = _driver("ts", window=None, watermark=("ts", "0 seconds"), mode="append")
    rows = driver.push([_row("a", 1, 0), _row("b", 2, 0), _row("c", 4, 5)])
    assert sorted(rows) == [Row(ts=_at(0), total=3), Row(ts=_at(5), total=4)]
    assert driver.state() == {}


def test_decimals_get_sparks_types() -> None:
    query = WindowedQuery([], aggs={"total": "sum(d)", "mean": "avg(d)"})
    driver = StateTestDriver(query, schema="d decimal(5,2)")
    (row,) = driver.push([(Decimal("1.00"),), (Decimal("1.00"),), (Decimal("0.00"),)])
    assert row == Row(total=Decimal("2.00"), mean=Decimal("0.666667"))
    assert holdfast.read(driver.location).value_schema.ddl() == (
        "total decimal(15,2), total_seen boolean, mean_sum decimal(15,2), mean_count long"
    )


def test_a_sum_that_does_not_fit_fails_the_batch_as_in_spark() -> None:
    driver = _driver([], window=None)
    driver.push([_row("a", 2**63 - 1, 0)])
    with pytest.raises(holdfast.ArithmeticOverflow):
        driver.push([_row("a", 1, 0)])
    assert driver.version == 1
    assert driver.push([_row("a", -1, 0)]) == [Row(total=2**63 - 2)]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"aggs": {"x": "percentile(v, 0.5)"}}, r"^percentile\(v, 0.5\) is not supported"),
        ({"aggs": {"x": "sum(v * 2)"}}, r"asks for 'v \* 2'"),
        ({"aggs": {"x": "sum(v) / count(v)"}}, "no aggregate function of columns"),
        ({"aggs": {"x": "count(distinct v)"}}, "asks for 'distinct v'"),
        ({"aggs": {"x": "sum(id)"}}, "it takes numbers, and an input is string"),
        ({"aggs": {"x": "max_by(id)"}}, "max_by takes 2 columns"),
        ({"aggs": {"x": "sum(v, true)"}}, "sum takes 1 column"),
        ({"aggs": {"x": "sum(w)"}}, "'w', which is none of the columns id, ts, v"),
        ({"aggs": {}}, "needs an aggregate"),
        ({"keys": "nobody"}, "'nobody' is not one of the columns"),
        ({"mode": "append"}, "Append mode needs a watermark"),
        ({"mode": "sometimes"}, "append, update or complete"),
        ({"window": ("v", "1 minute")}, "'v' is long"),
        ({"window": ("ts", "1 month")}, "'1 month' is not a duration"),
        ({"window": ("ts", "1 minute", "2 minutes")}, "slide is at most its length"),
        ({"window": ("ts", "1 minute", "1 minute", "60 seconds")}, "start offset less"),
        ({"session": ("ts", "1 minute")}, "not both"),
        ({"keys": [], "window": None, "session": ("ts", "1 minute")}, "needs keys"),
        ({"window": None, "watermark": "1 minute"}, "needs its column"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_cannot_be_run_is_refused_by_name(query: dict[str, Any], said: str) -> None:
    with pytest.raises(holdfast.InvalidArgument, match=said):
        _driver(**query)


def test_what_belongs_to_a_processor_is_refused_of_a_windowed_query() -> None:
    query = WindowedQuery("id", aggs={"n": "count(*)"})
    with pytest.raises(holdfast.InvalidArgument, match="of its own"):
        StateTestDriver(query, "id", SCHEMA)
    with pytest.raises(holdfast.InvalidArgument, match="needs schema"):
        StateTestDriver(query)
    with pytest.raises(holdfast.InvalidArgument, match="Push rows instead"):
        StateTestDriver(query, schema=SCHEMA).preload([])


def test_lengths_of_time_are_read_as_spark_writes_them() -> None:
    for text, ms in [
        ("90 seconds", 90_000),
        ("1 minute 30 seconds", 90_000),
        ("interval 1.5 minutes", 90_000),
        ("1 hour", 3_600_000),
        ("250 milliseconds", 250),
        ("2 WEEKS", 1_209_600_000),
    ]:
        driver = _driver(watermark=text)
        driver.push([_row("a", 1, 10**7)])
        assert driver.watermark_ms == _at(10**7).timestamp() * 1000 - ms


def test_a_large_batch_is_summed_up_in_no_time() -> None:
    driver = _driver([], window=None)
    assert driver.push([_row("a", n, 0) for n in range(20_001)]) == [Row(total=200_010_000)]
