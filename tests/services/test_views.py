"""Views in real databases: what a service reads there is what some committed version held."""

from __future__ import annotations

import math
import re
import threading
from pathlib import Path
from random import Random
from typing import Any

import boto3
import pyarrow as pa
import pytest
from cassandra.cluster import Session
from random_rows import ALL, random_row
from view_databases import (
    TOTALS,
    InCassandra,
    InDynamoDb,
    ViewDatabase,
    open_with_view,
    put_totals,
)

import holdfast
from holdfast.errors import InvalidArgument, Unavailable
from holdfast.types import Field, RowCodec, Schema, StructType
from holdfast.views import ViewSchema, ViewSpec, open_view
from holdfast.views.cassandra.statements import STATEMENTS_IN_FLIGHT
from holdfast.views.cells import plain_cells
from holdfast.views.keys import key_texts
from servers import Cassandra, DynamoDb

pytestmark = pytest.mark.services

KEYABLE = "bcdehijklmnopqr"
"""The columns of ALL whose types can be in a primary key of Cassandra."""


# -- rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["folder", "memory"])
def test_a_view_shows_the_newest_version_of_every_key(
    database: ViewDatabase, tmp_path: Path, place: str
) -> None:
    table = database.table("totals")
    root = tmp_path if place == "folder" else f"memory://{table}"
    with open_with_view(database, root, table) as db:
        put_totals(db, {"Sankar": 200, "Jade": 800})
        assert database.totals(table) == {"Sankar": (200, 1), "Jade": (800, 1)}
        put_totals(db, {"Sankar": 500, "Jade": None, "Kun": 100})
    assert database.totals(table) == {"Sankar": (500, 2), "Kun": (100, 2)}
    assert database.get(table, user="Jade") is None


def test_cells_of_every_type_come_back(database: ViewDatabase, tmp_path: Path) -> None:
    table, rnd = database.table("types"), Random(7)
    cells = [random_row(ALL, rnd) for _ in range(100)]
    with open_with_view(database, tmp_path, table, key="id long", value=ALL) as db:
        with db.update() as store:
            for number, row in enumerate(cells):
                store.put((number,), row)
        state = db.scan().sort_by("id")
    expected = [plain_cells(field.type, state.column(field.name)) for field in ALL]
    for number, row in enumerate(zip(*expected, strict=True)):
        found = database.get(table, id=number)
        assert found is not None
        decoded = database.decoded(ALL, found)
        for field, cell in zip(ALL, row, strict=True):
            assert _same(decoded[field.name], cell), field


def test_rows_go_to_cassandra_in_few_messages_of_which_few_are_on_their_way(
    cassandra: Cassandra, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, lock = InCassandra(cassandra), threading.Lock()
    sent = flying = most = 0
    plain = Session.execute_async

    def counted(self: Session, *given: Any, **more: Any) -> Any:
        nonlocal sent, flying, most
        with lock:
            sent, flying = sent + 1, flying + 1
            most = max(most, flying)

        def landed(_: object) -> None:
            nonlocal flying
            with lock:
                flying -= 1

        future = plain(self, *given, **more)
        future.add_callbacks(landed, landed)
        return future

    table = database.table("many")
    with open_with_view(database, tmp_path, table) as db:
        monkeypatch.setattr(Session, "execute_async", counted)
        put_totals(db, {f"user {number}": number for number in range(3000)})
        monkeypatch.undo()
    assert len(database.rows(table)) == 3000
    database.close()
    assert 1 < most <= STATEMENTS_IN_FLIGHT
    assert 3000 / 10 <= sent < 3000 / 5


def test_keys_of_every_type_are_found(database: ViewDatabase, tmp_path: Path) -> None:
    """All at once: in Cassandra they are the primary key, in DynamoDB they are encoded."""
    rnd = Random(11)
    fields = [field for field in ALL if len(field.name) == 1 and field.name in KEYABLE]
    keys = Schema(StructType(tuple(Field(f.name, f.type, f.nullable) for f in fields)))
    rows = [random_row(keys, rnd, nulls=0.02) for _ in range(60)]
    table = database.table("keys")
    with open_with_view(database, tmp_path, table, key=keys, value="number long") as db:
        with db.update() as store:
            for number, row in enumerate(rows):
                store.put(row, (number,))
        state = db.scan()
        found = {
            int(database.decoded("number long", row)["number"]): database.decoded(keys, row)
            for row in _all_rows(database, table)
        }
        for name, column in zip(keys.names, state.columns, strict=False):
            kind = next(field.type for field in keys if field.name == name)
            cells = plain_cells(kind, column)
            for number, cell in zip(state.column("number").to_pylist(), cells, strict=True):
                assert _same(found[number][name], cell), name
        with db.update() as store:
            for row in rows[::2]:
                store.remove(row)
        assert len(_all_rows(database, table)) == db.scan().num_rows


def _all_rows(database: ViewDatabase, table: str) -> list[dict[str, Any]]:
    rows = database.rows(table)
    try:
        return rows + database.rows(f"{table}_encoded")
    except Exception:  # there is none in this database
        return rows


@pytest.mark.parametrize(
    ("key", "cells"),
    [
        ("k string", [None, "", "x" * 2000, '"', "é\n", "plain"]),
        ("k double", [None, math.nan, math.inf, 1e300, 5e-324, 0.0, 1.5]),
        ("k binary", [None, b"", b"\x00\xff"]),
        ("k boolean", [None, True, False]),
        ("k array<int>", [None, [], [1, None, 2]]),
        ("k struct<a:int,b:string>", [None, (None, None), (1, "x")]),
    ],
)
def test_keys_that_a_database_cannot_hold_are_found_by_their_text(
    database: ViewDatabase, tmp_path: Path, key: str, cells: list[Any]
) -> None:
    table = database.table("odd")
    with open_with_view(database, tmp_path, table, key=key, value="total long") as db:
        with db.update() as store:
            for number, cell in enumerate(cells):
                store.put((cell,), (number,))
        assert len(_all_rows(database, table)) == len(cells)
        codec = RowCodec(db.key_schema)
        texts = key_texts(db.key_schema, codec.to_arrow([codec.encode((cell,)) for cell in cells]))
        by_text = {
            database.decoded("_key string", row)["_key"]: row
            for row in _all_rows(database, table)
            if "_key" in row
        }
        for number, (cell, text) in enumerate(zip(cells, texts, strict=True)):
            if text in by_text:
                assert database.decoded("total long", by_text[text])["total"] == number, cell
            else:
                assert cell is not None
        with db.update() as store:
            for cell in cells:
                store.remove((cell,))
        assert _all_rows(database, table) == []


def _documented(language: str, part: str) -> str:
    """The block of the docs that has `part` in it."""
    page = (Path(__file__).parents[2] / "docs" / "views.md").read_text()
    blocks = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    (found,) = (block for block in blocks if part in block)
    return str(found)


def test_the_documented_statements_find_what_they_say(
    database: ViewDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = database.table("documented")
    with open_with_view(database, tmp_path, table) as db:
        put_totals(db, {"Sankar": 500, None: 7})
        if isinstance(database, InCassandra):
            read = _documented("sql", '"_version"').replace("shop.totals", table)
            assert database.session.execute(read).one() == {"total": 500, "_version": 1}
            read = _documented("sql", "_encoded").replace("shop.totals", table)
            assert database.session.execute(read).one() == {"total": 7}
            return
        for name, option in {
            "AWS_ENDPOINT_URL": "endpoint_url",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }.items():
            monkeypatch.setenv(name, database.options[option])
        read = _documented("python", "get_item").replace('"totals"', repr(table))
        totals = []
        for change in ({}, {"Sankar": None}, {"Sankar": 9}):
            put_totals(db, dict(change))
            names: dict[str, Any] = {"boto3": boto3}
            exec(compile(read, "views.md", "exec"), names)  # noqa: S102
            totals.append(names["total"])
        assert totals == [500, None, 9]


# -- versions --------------------------------------------------------------------------------------


def test_a_replay_of_older_versions_changes_nothing(database: ViewDatabase, tmp_path: Path) -> None:
    table = database.table("replay")
    with open_with_view(database, tmp_path, table) as db:
        for number in range(1, 6):
            totals: dict[str | None, int | None] = {
                "a": number,
                "b": number if number % 2 else None,
            }
            put_totals(db, {**totals, None: number})
        before = database.rows(table), database.rows(f"{table}_encoded")
        assert database.totals(table) == {"a": (5, 5), "b": (5, 5)}
        spec = ViewSpec(
            database.location(table), ViewSchema(db.key_schema, db.value_schema), database.options
        )
    view = open_view(spec)
    for version in (4, 1, 3, 2, 5):
        rows = pa.table({"user": ["a", "b", None], "total": [version] * 3})
        if version % 2:
            view.apply(version, rows, None, has_encoded=True)
        else:
            view.apply(version, rows.slice(0, 1), rows.slice(1), has_encoded=True)
    assert (database.rows(table), database.rows(f"{table}_encoded")) == before


def test_a_late_write_does_not_bring_back_a_row_that_is_gone(
    database: ViewDatabase, tmp_path: Path
) -> None:
    table = database.table("late")
    schema = ViewSchema(*(holdfast.types.parse_schema(TOTALS[part]) for part in ("key", "value")))
    view = open_view(ViewSpec(database.location(table), schema, database.options))
    view.prepare("owner", "root")
    rows = pa.table({"user": ["a"], "total": pa.array([1], pa.int64())})
    view.apply(2, None, rows, has_encoded=False)
    view.apply(1, rows, None, has_encoded=False)
    assert database.rows(table) == []
    view.apply(3, rows, None, has_encoded=False)
    assert database.totals(table) == {"a": (1, 3)}


def test_evicted_and_expired_keys_leave_with_the_version_that_drops_them(
    database: ViewDatabase, tmp_path: Path
) -> None:
    table = database.table("windows")
    more = {"key": "user string, end long", "key_index_ordinal": 1, "partitions": 2}
    with open_with_view(database, tmp_path, table, **more) as db:
        with db.update() as store:
            for number in range(8):
                store.put((f"u{number}", number), (number,), expires_ms=1000 + number)
        assert len(database.rows(table)) == 8
        with db.update() as store:
            store.put(("u9", 9), (9,))
            store.put(("late", 1), (0,))
            store.evict(2)
        kept = _users(database, table)
        assert kept == {"u3", "u4", "u5", "u6", "u7", "u9"}
        with db.update() as store:
            store.expire(1005)
        assert _users(database, table) == {"u6", "u7", "u9"}
        assert _users(database, table) == set(db.scan().column("user").to_pylist())


def _users(database: ViewDatabase, table: str) -> set[str]:
    return {database.decoded("user string", row)["user"] for row in database.rows(table)}


def test_a_view_that_comes_later_or_lags_is_filled_and_stale_rows_go(
    database: ViewDatabase, tmp_path: Path
) -> None:
    table = database.table("lags")
    with holdfast.open(tmp_path, **TOTALS) as db:
        put_totals(db, {"a": 1, "b": 1, None: 1})
        put_totals(db, {"a": 2})
    with open_with_view(database, tmp_path, table):
        assert database.totals(table) == {"a": (2, 2), "b": (1, 2)}
    with holdfast.open(tmp_path) as db:
        put_totals(db, {"b": None, "c": 3, None: None})
        put_totals(db, {"a": 4})
    with open_with_view(database, tmp_path, table) as db:
        assert database.totals(table) == {"a": (4, 4), "c": (3, 4)}
        assert database.rows(f"{table}_encoded") == []
        put_totals(db, {"c": 5})
    assert database.totals(table) == {"a": (4, 4), "c": (5, 5)}


# -- what is refused -------------------------------------------------------------------------------


def test_an_unknown_option_is_refused_without_its_value(
    database: ViewDatabase, tmp_path: Path
) -> None:
    location = database.location(database.table("options"))
    with pytest.raises(InvalidArgument, match="has no option 'pasword'") as refused:
        holdfast.open(tmp_path, **TOTALS, view=location, view_options={"pasword": "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_a_missing_keyspace_is_named(cassandra: Cassandra, tmp_path: Path) -> None:
    location = f"cassandra://{cassandra.address}/nowhere/totals"
    with pytest.raises(InvalidArgument, match=r"no keyspace 'nowhere'.*CREATE KEYSPACE"):
        holdfast.open(tmp_path, **TOTALS, view=location)


def test_missing_credentials_are_refused_with_what_to_set(
    dynamodb: DynamoDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InvalidArgument, match="key and secret") as refused:
        holdfast.open(
            tmp_path / "root",
            **TOTALS,
            view="dynamodb://local/totals",
            view_options={"endpoint_url": dynamodb.url},
        )
    assert refused.value.condition == "STATE_STORE_ACCESS_DENIED"


def test_an_item_that_is_too_large_is_refused_before_anything_is_written(
    dynamodb: DynamoDb, tmp_path: Path
) -> None:
    database = InDynamoDb(dynamodb)
    table = database.table("large")
    with open_with_view(database, tmp_path, table, value="note string, total long") as db:
        with db.update() as store:
            store.put(("a",), ("small", 1))
        store = db.update()
        for number in range(50):
            store.put((f"u{number}",), ("small", 1))
        store.put(("b",), ("x" * 500_000, 2))
        with pytest.raises(InvalidArgument, match="its column 'note' alone has 500,004") as refused:
            store.commit()
        assert refused.value.condition == "STATE_STORE_VIEW_ROW_TOO_LARGE"
        assert "xxx" not in str(refused.value)
        assert _users(database, table) == {"a"}
        assert db.version == 2
        with db.update() as store:
            store.remove(("b",))
        assert len(_users(database, table)) == 51


def test_a_database_that_does_not_answer_fails_the_view_and_keeps_the_version(
    database: ViewDatabase, tmp_path: Path
) -> None:
    nowhere = {
        InCassandra: "cassandra://127.0.0.1:19/state/totals",
        InDynamoDb: "dynamodb://local/totals",
    }[type(database)]
    options = {**database.options}
    if "endpoint_url" in options:
        options["endpoint_url"] = "http://127.0.0.1:19"
    with holdfast.open(tmp_path, **TOTALS) as db:
        put_totals(db, {"a": 1})
    with pytest.raises(Unavailable, match="Nothing is lost"):
        holdfast.open(tmp_path, view=nowhere, view_options=options, conf={"retry_timeout_ms": 200})
    with holdfast.open(tmp_path) as db:
        assert db.get(("a",)) == (1,)


def _same(left: Any, right: Any) -> bool:
    """Equal, NaN with itself and −0.0 not with 0.0; maps in any order."""
    return _ordered(left) == _ordered(right)


def _ordered(cell: Any) -> str:
    if isinstance(cell, list):
        parts = [_ordered(part) for part in cell]
        is_map = bool(cell) and all(isinstance(part, tuple) and len(part) == 2 for part in cell)
        return f"[{','.join(sorted(parts) if is_map else parts)}]"
    if isinstance(cell, tuple):
        return f"({','.join(_ordered(part) for part in cell)})"
    return repr(cell)
