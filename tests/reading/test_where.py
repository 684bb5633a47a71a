"""Filters as text mean what SQL means by them; DuckDB is the judge."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

import holdfast
from holdfast.errors import InvalidArgument
from holdfast.ids import TIMERS
from holdfast.reading import parse_where
from holdfast.reading.meanings import key_meanings
from holdfast.types import MILLISECONDS, StructType, parse_schema

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ["Jade", "jaDe", "Kun", "100%", "a_c", "abc", "", "two\nlines", "東京", None]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> holdfast.LiveState:
    root = tmp_path_factory.mktemp("filtered")
    value = "name string, seen timestamp, day date, price decimal(9,2), n long"
    db = holdfast.open(root, key="id int", value=value, partitions=2)
    with db, db.update() as store:
        for number, name in enumerate(NAMES):
            at = START + timedelta(hours=7 * number, microseconds=number)
            cells = (at, at.date(), Decimal(number) / 4, number)
            store.put((number,), (name, *(cells if number else (None,) * 4)))
    return holdfast.read(root)


@pytest.mark.parametrize(
    "where",
    [
        "name like 'J%'",
        "name ilike 'ja_e'",
        "name not like '%a%'",
        "name like '%'",
        "name like 'two_lines'",
        "name like '東_' or name like ''",
        "name in ('Kun', 'abc', 'nobody')",
        "name not in ('Kun')",
        "n between 2 and 4 and not (n = 3)",
        "n not between 2 and 8",
        "price between 0.5 and 1.25",
        "price in (0.25, 1.5)",
        "seen between timestamp '2026-01-01 08:00:00' and timestamp '2026-01-02T00:00:00'",
        "seen >= '2026-01-02' and day <> date '2026-01-03'",
        "seen not between '2026-01-01 07:00:00.000001' and '2026-01-02'",
        "day in ('2026-01-02', '2026-01-03')",
        "day between '2026-01-02' and '2026-01-02'",
        "seen is null or day > date'2026-01-02'",
        "NOT name LIKE 'a%' AND n BETWEEN 1 AND 6",
    ],
)
def test_a_filter_chooses_the_rows_that_sql_chooses(state: holdfast.LiveState, where: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    rows = state.to_arrow()
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    connection.register("stored", rows)
    wanted = connection.sql(f"select id from stored where {where} order by id").fetchall()
    found = state.scan(columns=["id"], where=where).column("id").to_pylist()
    assert sorted(found) == [number for (number,) in wanted]
    assert 0 < len(found) < len(NAMES), where


def test_a_pattern_escapes_with_a_backslash_as_spark_does(state: holdfast.LiveState) -> None:
    found = state.scan(columns=["name"], where=r"name like '%\%' or name like 'a\_c'")
    assert sorted(found.column("name").to_pylist()) == ["100%", "a_c"]


def test_a_time_with_a_zone_is_that_moment(state: holdfast.LiveState) -> None:
    for text in ("2026-01-02T04:00:00.000004Z", "2026-01-02 13:00:00.000004+09:00"):
        assert state.scan(["n"], f"seen = '{text}'").to_pydict() == {"n": [4]}


@pytest.mark.parametrize(
    ("where", "hint"),
    [
        ("n like '1%'", "pattern in long, which is no text, at character 1"),
        ("name like 5", "pattern in quotes here, at character 11"),
        ("n between 1", "needs 'and' here, at character 12"),
        ("n not 5", "in, between or like after not, at character 7"),
        ("5 between 1 and 6", "compares no column"),
        ("seen > '2026-13-01'", "'seen' is not a time such as"),
        ("seen > timestamp", "no column 'timestamp'"),
    ],
)
def test_a_filter_that_cannot_be_read_says_where(
    state: holdfast.LiveState, where: str, hint: str
) -> None:
    with pytest.raises(InvalidArgument, match=hint):
        state.scan(where=where)


def test_the_times_of_timers_are_compared_as_times() -> None:
    keys = key_meanings(TIMERS, parse_schema("user string, expiry_ms long"))
    assert [field.meaning for field in keys] == [None, MILLISECONDS]
    columns = StructType(keys.fields)
    for text in ("'2026-01-01T00:00:00Z'", "timestamp '2026-01-01'", "1767225600000"):
        found = parse_where(f"expiry_ms > {text}", columns)
        assert str(found) == "(expiry_ms > 1767225600000)"
