"""Rows that leave views: what was stale, and what expired, in real databases."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from random_rows import random_row
from remotes import quick_folder
from view_databases import InCassandra, InDynamoDb, ViewDatabase, open_with_view

import holdfast
from holdfast.types import Schema, parse_schema
from holdfast.views import ViewSchema, ViewSpec, open_view
from holdfast.views.dynamodb import view as dynamodb_view
from servers import Cassandra, DynamoDb

pytestmark = pytest.mark.services
DAY_S = 86_400


# -- stale rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        "a boolean, b byte, c short, f float, g double, h decimal(10,2), i decimal(38,9), "
        "l binary, m date, n timestamp, o timestamp_ntz, p time, q interval day to second, "
        "r interval year to month",
        "a binary, b date",
        "a decimal(38,9), b double",
        "a timestamp, b time",
        "a interval day to second, b varchar(9)",
    ],
)
def test_stale_rows_go_whatever_the_type_of_their_key(database: ViewDatabase, key: str) -> None:
    """Their keys are read from the database, and given back to it."""
    table, keys = database.table("stale"), parse_schema(key)
    rows = _distinct(keys, 40)
    spec = ViewSpec(
        database.location(table), ViewSchema(keys, parse_schema("number int")), database.options
    )
    view = open_view(spec)
    view.prepare("owner", "root")
    view.add_encoded()
    view.apply(1, rows, None, has_encoded=True)
    assert _numbers(database, table) == set(range(40))
    view.apply(2, rows.slice(0, 15), None, has_encoded=True)
    assert view.remove_older(2, has_encoded=True) == 25
    assert _numbers(database, table) == set(range(15))
    assert view.remove_older(2, has_encoded=True) == 0


def _distinct(keys: Schema, count: int) -> pa.Table:
    """Rows of different keys as a store has them, some of which no primary key takes."""
    rnd = Random(23)
    with holdfast.open(f"memory://{keys.ddl()}", keys, "number int") as db:
        with db.update() as store:
            for number in range(2 * count):
                store.put(random_row(keys, rnd, nulls=0.05), (number,))
        rows = db.scan().slice(0, count)
    return rows.set_column(len(keys), "number", pa.array(range(count), pa.int32()))


def _numbers(database: ViewDatabase, table: str) -> set[int]:
    rows = [*database.rows(table), *database.rows(f"{table}_encoded")]
    return {database.decoded("number int", row)["number"] for row in rows}


# -- time to live --------------------------------------------------------------------------------


@pytest.fixture
def own_dynamodb() -> Iterator[DynamoDb]:
    """A server without other tables: beside some it was seen to leave items whose time is over."""
    with quick_folder() as folder, DynamoDb(folder) as server:
        yield server


def _expire(db: Any, until_ms: int) -> None:
    with db.update() as store:
        store.expire(until_ms)


def test_dynamodb_removes_the_marks_of_expired_rows_and_nothing_else(
    own_dynamodb: DynamoDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = InDynamoDb(own_dynamodb)
    table = database.table("marks")

    def items() -> dict[str, Any]:
        found = database.client.scan(TableName=table, ConsistentRead=True)["Items"]
        return {item["user"]["S"]: item for item in found}

    with open_with_view(database, tmp_path, table) as db:
        with db.update() as store:
            for place, user in enumerate("abcd"):
                store.put((user,), (place,), expires_ms=1000 * (place + 1))
        before = int(time.time())
        _expire(db, 2000)
        after = int(time.time())
        for user in "ab":
            mark = items()[user]
            assert mark.keys() == {"user", "_version", "_deleted", "_expires_at"}
            assert before <= int(mark["_expires_at"]["N"]) - 7 * DAY_S <= after
        assert database.totals(table).keys() == {"c", "d"}
        with db.update() as store:
            store.put(("b",), (7,))
        assert items()["b"].keys() == {"user", "total", "_version"}
        monkeypatch.setattr(dynamodb_view, "MARK_DAYS", 0)
        _expire(db, 3000)
        assert database.totals(table).keys() == {"b", "d"}
    ttl = database.client.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    assert ttl == {"TimeToLiveStatus": "ENABLED", "AttributeName": "_expires_at"}
    deadline = time.monotonic() + 120
    while "c" in items():
        assert time.monotonic() < deadline, "DynamoDB keeps a mark whose time is over"
        time.sleep(0.2)
    assert items().keys() == {"a", "b", "d"}


def test_cassandra_keeps_rows_until_the_version_that_drops_them(
    cassandra: Cassandra, tmp_path: Path
) -> None:
    database = InCassandra(cassandra)
    table = database.table("marks")
    read = f"SELECT user, TTL(total) AS ttl, WRITETIME(total) AS written FROM {table}"
    with open_with_view(database, tmp_path, table) as db:
        with db.update() as store:
            for place, user in enumerate("abc"):
                store.put((user,), (place,), expires_ms=1000 * (place + 1))
        _expire(db, 2000)
        assert list(database.session.execute(read)) == [{"user": "c", "ttl": None, "written": 1}]
        with db.update() as store:
            store.put(("b",), (7,))
        found = {row["user"]: row["written"] for row in database.session.execute(read)}
        assert found == {"b": 3, "c": 1}
    database.close()
