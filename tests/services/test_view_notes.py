"""Whose a view in a real database is, and how far it has come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cassandra import ReadFailure
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
from holdfast.views import ViewSchema, ViewSpec, open_view
from holdfast.views.view import BegunVersion, ViewProgress
from servers import Cassandra, DynamoDb

pytestmark = pytest.mark.services


def test_a_version_is_noted_in_the_place_of_the_one_before_alone(database: ViewDatabase) -> None:
    view, _ = _two_views(database, database.table("notes"))
    first = view.prepare("owner", "root")
    assert first == view.standing() == ViewProgress()
    one = ViewProgress(1, commit_id="one", filled=1)
    assert view.note(first, one) == view.standing() == one
    for before in (
        first,
        ViewProgress(1),
        ViewProgress(1, commit_id="other"),
        ViewProgress(0, False, "one"),
    ):
        assert view.note(before, ViewProgress(2, commit_id="two")) == one
    two = ViewProgress(2, commit_id="two", filled=1)
    assert view.note(one, two) == view.standing() == two
    assert view.note(two, ViewProgress(filled=1)) == view.standing() == ViewProgress(filled=1)
    view.add_encoded()
    assert view.standing() == ViewProgress(None, True, None, 1)


def test_a_version_is_begun_in_the_place_of_what_was_begun_alone(database: ViewDatabase) -> None:
    table = database.table("begun")
    view, other = _two_views(database, table)
    first = view.prepare("owner", "root")
    one = replace(first, begun=BegunVersion(1, "one"))
    assert view.note(first, one) == view.standing() == other.prepare("owner", "root") == one
    for before in (first, replace(first, begun=BegunVersion(1, "other"))):
        assert view.note(before, replace(first, begun=BegunVersion(2, "two"))) == one
    later = replace(one, begun=BegunVersion(2, "two"))
    assert other.note(one, later) == later
    shown = ViewProgress(1, commit_id="one", filled=1, begun=BegunVersion(1, "one"))
    assert view.note(one, shown) == shown
    assert view.standing() == replace(shown, begun=BegunVersion(2, "two"))
    database.drop(table)
    assert view.prepare("owner", "root") == view.standing() == ViewProgress()


def test_a_version_given_up_before_it_was_noted_is_refused_when_it_is_another(
    database: ViewDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = database.table("unnoted")
    with open_with_view(database, tmp_path, table) as db:
        put_totals(db, {"a": 1, "b": 1})
        kind = type(_two_views(database, table)[0])
        note = kind.note

        def crash(self: Any, before: ViewProgress, after: ViewProgress) -> ViewProgress:
            if after.through != before.through:
                raise KeyboardInterrupt
            return note(self, before, after)

        with monkeypatch.context() as patched:
            patched.setattr(kind, "note", crash)
            with pytest.raises(KeyboardInterrupt):
                put_totals(db, {"a": 2})
    assert database.totals(table) == {"a": (2, 2), "b": (1, 1)}
    (tmp_path / "versions" / "2").unlink()
    with holdfast.open(tmp_path) as db:
        put_totals(db, {"b": 5})
    with pytest.raises(InvalidArgument, match=r"has rows of version 2 of .* another version now"):
        open_with_view(database, tmp_path, table)
    with holdfast.open(tmp_path) as db:
        put_totals(db, {"c": 3})
    with open_with_view(database, tmp_path, table):
        assert database.totals(table) == {"a": (1, 3), "b": (5, 3), "c": (3, 3)}


def test_a_note_of_an_earlier_release_has_the_view_filled_once(
    database: ViewDatabase, tmp_path: Path
) -> None:
    table = database.table("earlier")
    with open_with_view(database, tmp_path, table) as db:
        put_totals(db, {"a": 1, "b": 1})
        put_totals(db, {"a": 2})
    database.forget_commit(table)
    with open_with_view(database, tmp_path, table) as db:
        assert database.totals(table) == {"a": (2, 2), "b": (1, 2)}
        put_totals(db, {"a": 3})
    assert database.totals(table) == {"a": (3, 3), "b": (1, 2)}


def test_the_table_of_notes_of_an_earlier_release_is_widened(
    cassandra: Cassandra, tmp_path: Path
) -> None:
    cassandra.create_keyspace("earlier")
    place = {"view": f"cassandra://{cassandra.address}/earlier/totals",
             "view_options": cassandra.options}  # fmt: skip
    with cassandra.cluster() as cluster:
        cluster.connect("earlier").execute(
            "CREATE TABLE holdfast_views (name text PRIMARY KEY, owner text, root text, "
            "columns text, has_encoded boolean, through bigint)"
        )
    for number in range(2):
        with holdfast.open(tmp_path, **TOTALS, **place) as db:
            put_totals(db, {"a": number})
    with cassandra.cluster() as cluster:
        found = cluster.connect("earlier").execute("SELECT * FROM holdfast_views").one()
    assert (found.through, found.filled, bool(found.commit_id)) == (2, 0, True)


def test_a_table_of_encoded_keys_that_was_dropped_is_filled_even_after_a_crash(
    database: ViewDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = database.table("halves")
    with open_with_view(database, tmp_path, table) as db:
        put_totals(db, {None: 1, "a": 1})
    database.drop(f"{table}_encoded")

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("holdfast.views.follower.Follower.follow", crash)
        with pytest.raises(KeyboardInterrupt):
            open_with_view(database, tmp_path, table)
    assert database.rows(f"{table}_encoded") == []
    with open_with_view(database, tmp_path, table):
        assert len(database.rows(f"{table}_encoded")) == 1


def test_a_view_is_made_anew_once_both_its_tables_are_dropped(
    database: ViewDatabase, tmp_path: Path
) -> None:
    table = database.table("both")
    with open_with_view(database, tmp_path, table) as db:
        put_totals(db, {"a": 1, None: 2})
    database.drop(table)
    with pytest.raises(InvalidArgument, match=rf"but a table '{table}_encoded'.*Drop it, or"):
        open_with_view(database, tmp_path, table)
    assert len(database.rows(f"{table}_encoded")) == 1
    database.drop(f"{table}_encoded")
    with open_with_view(database, tmp_path, table):
        assert database.totals(table) == {"a": (1, 1)}
        assert len(database.rows(f"{table}_encoded")) == 1


@pytest.mark.parametrize("by_another", [False, True])
def test_a_table_of_encoded_keys_that_could_not_be_made_is_made_by_the_next_commit(
    database: ViewDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_another: bool
) -> None:
    table = database.table("failed")

    def fail(*_: object, **__: object) -> None:
        raise Unavailable("There is no room for a table.")

    with (
        open_with_view(database, tmp_path, table) as db,
        open_with_view(database, tmp_path, table) as other,
    ):
        put_totals(db, {"a": 1})
        kind = type(_two_views(database, table)[0])
        with monkeypatch.context() as patched:
            patched.setattr(kind, "_create", fail)
            with pytest.raises(Unavailable, match="no room for a table"):
                put_totals(db, {None: 2})
        put_totals(other if by_another else db, {"": 3})
    assert len(database.rows(f"{table}_encoded")) == 2
    assert set(database.totals(table)) == {"a"}


def test_a_table_of_somebody_elses_is_refused_and_left_alone(
    database: ViewDatabase, tmp_path: Path
) -> None:
    table = database.table("foreign")
    database.create(table)
    before = database.rows(table)
    with pytest.raises(InvalidArgument, match="no view of Holdfast created it") as refused:
        open_with_view(database, tmp_path, table)
    assert refused.value.condition == "STATE_STORE_NOT_A_VIEW"
    assert database.rows(table) == before


def test_a_view_of_another_root_is_refused_until_its_table_is_dropped(
    database: ViewDatabase, tmp_path: Path
) -> None:
    table = database.table("other")
    with open_with_view(database, tmp_path / "first", table) as db:
        put_totals(db, {"a": 1})
        put_totals(db, {"a": 2})
    with pytest.raises(InvalidArgument, match=f"that of {tmp_path / 'first'}"):
        open_with_view(database, tmp_path / "second", table)
    assert database.totals(table) == {"a": (2, 2)}
    database.drop(table)
    with open_with_view(database, tmp_path / "second", table) as db:
        put_totals(db, {"b": 7})
    assert database.totals(table) == {"b": (7, 1)}


def test_a_view_that_another_state_claims_first_is_refused(
    database: ViewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    quicker, slower = _two_views(database, database.table("claimed"))
    claim = type(slower)._claim

    def overtaken(self: Any, *given: Any) -> bool:
        monkeypatch.undo()
        quicker.prepare("quicker", "there")
        return claim(self, *given)

    monkeypatch.setattr(type(slower), "_claim", overtaken)
    with pytest.raises(InvalidArgument, match="Another query has just claimed") as refused:
        slower.prepare("slower", "here")
    assert refused.value.condition == "STATE_STORE_NOT_A_VIEW"
    assert quicker.standing() == ViewProgress()


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_second_opener_leaves_the_note_of_a_view_at_work(
    database: ViewDatabase, monkeypatch: pytest.MonkeyPatch, is_dropped: bool
) -> None:
    table = database.table("twice")
    quicker, slower = _two_views(database, table)
    five = ViewProgress(5, commit_id="five", filled=1)
    if is_dropped:
        quicker.note(quicker.prepare("owner", "root"), five)
        database.drop(table)
    claim, six = type(slower)._claim, ViewProgress(6, commit_id="six", filled=6)

    def overtaken(self: Any, *given: Any) -> bool:
        monkeypatch.undo()
        assert quicker.note(quicker.prepare("owner", "root"), six) == six
        return claim(self, *given)

    monkeypatch.setattr(type(slower), "_claim", overtaken)
    assert slower.prepare("owner", "root") == six
    assert quicker.standing() == six


def test_a_view_that_became_another_states_is_left_alone(database: ViewDatabase) -> None:
    table = database.table("lost")
    view, other = _two_views(database, table)
    standing = view.prepare("owner", "root")
    database.drop(table)
    other.prepare("other", "elsewhere")
    with pytest.raises(InvalidArgument, match="that of elsewhere") as refused:
        view.note(standing, ViewProgress(1, commit_id="one"))
    assert refused.value.condition == "STATE_STORE_NOT_A_VIEW"
    assert other.standing() == ViewProgress()


def _two_views(database: ViewDatabase, table: str) -> tuple[Any, Any]:
    schema = ViewSchema(*(holdfast.types.parse_schema(TOTALS[part]) for part in ("key", "value")))
    spec = ViewSpec(database.location(table), schema, database.options)
    return open_view(spec), open_view(spec)


def test_a_root_that_went_back_is_refused(database: ViewDatabase, tmp_path: Path) -> None:
    table = database.table("back")
    with open_with_view(database, tmp_path, table) as db:
        put_totals(db, {"a": 1})
        put_totals(db, {"a": 2})
    newest = tmp_path / "versions" / "2"
    assert newest.exists()
    newest.unlink()
    with pytest.raises(InvalidArgument, match=r"shows version 2 of .* whose newest is 1"):
        open_with_view(database, tmp_path, table)
    assert database.totals(table) == {"a": (2, 2)}


def test_a_root_that_went_back_and_on_is_refused_or_filled(
    database: ViewDatabase, tmp_path: Path
) -> None:
    table = database.table("on")
    with open_with_view(database, tmp_path, table) as db:
        put_totals(db, {"a": 1, "b": 1})
        put_totals(db, {"a": 2})
    (tmp_path / "versions" / "2").unlink()
    with holdfast.open(tmp_path) as db:
        put_totals(db, {"b": None})
    with pytest.raises(InvalidArgument, match=r"shows version 2 of .* another version now"):
        open_with_view(database, tmp_path, table)
    assert database.totals(table) == {"a": (2, 2), "b": (1, 1)}
    with holdfast.open(tmp_path) as db:
        put_totals(db, {"c": 3})
    with open_with_view(database, tmp_path, table):
        assert database.totals(table) == {"a": (1, 3), "c": (3, 3)}


def test_a_table_that_is_dropped_may_come_back_with_other_types(
    database: ViewDatabase, tmp_path: Path
) -> None:
    table = database.table("types")
    for kind, first, second in (("double", 1.5, 2.5), ("long", 1, 2), ("string", "x", "y")):
        more = {"value": f"total {kind}"}
        with open_with_view(database, tmp_path / kind, table, **more) as db:
            for total in (first, second):
                with db.update() as store:
                    store.put(("a",), (total,))
        found = [database.decoded(f"total {kind}", row)["total"] for row in database.rows(table)]
        assert found == [second]
        database.drop(table)


def test_other_columns_are_refused_by_name(database: ViewDatabase, tmp_path: Path) -> None:
    table = database.table("columns")
    schema = ViewSchema(*(holdfast.types.parse_schema(TOTALS[part]) for part in ("key", "value")))
    open_view(ViewSpec(database.location(table), schema, database.options)).prepare("me", "here")
    other = ViewSchema(schema.keys, holdfast.types.parse_schema("total double, n long"))
    view = open_view(ViewSpec(database.location(table), other, database.options))
    with pytest.raises(InvalidArgument, match=r"'n' is only here.*'total' is double here and long"):
        view.prepare("me", "here")


def test_a_table_that_was_altered_is_refused_with_the_difference_and_left_alone(
    cassandra: Cassandra, tmp_path: Path
) -> None:
    database = InCassandra(cassandra)
    table = database.table("altered")
    with open_with_view(database, tmp_path / "db", table) as db:
        put_totals(db, {"Jade": 800})
    database.session.execute(f"ALTER TABLE {table} ADD age int")
    with pytest.raises(InvalidArgument, match=r"was changed since .* 'age' is not the view's"):
        open_with_view(database, tmp_path / "db", table)
    assert database.totals(table) == {"Jade": (800, 1)}
    database.session.execute(f"ALTER TABLE {table} DROP age")
    with open_with_view(database, tmp_path / "db", table) as db:
        put_totals(db, {"Jade": 900})
    assert database.totals(table) == {"Jade": (900, 2)}
    database.close()


def test_a_table_of_dynamodb_with_another_key_is_refused_with_the_difference_and_left_alone(
    dynamodb: DynamoDb, tmp_path: Path
) -> None:
    database = InDynamoDb(dynamodb)
    table = database.table("rekeyed")
    with open_with_view(database, tmp_path / "db", table) as db:
        put_totals(db, {"Jade": 800})
    keys = ("user", "N", "HASH"), ("day", "S", "RANGE")
    for other, difference in (
        (keys[:1], r"column 'user' is N HASH, not S HASH"),
        ((("user", "S", "HASH"), keys[1]), r"column 'day' is not the view's"),
        ((("id", "S", "HASH"),), r"column 'user' is missing; column 'id' is not the view's"),
    ):
        database.drop(table)
        database.client.create_table(
            TableName=table,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": name, "KeyType": role} for name, _, role in other],
            AttributeDefinitions=[
                {"AttributeName": name, "AttributeType": kind} for name, kind, _ in other
            ],
        )
        with pytest.raises(
            InvalidArgument, match=rf"was changed since .*: {difference}"
        ) as refused:
            open_with_view(database, tmp_path / "db", table)
        assert refused.value.condition == "STATE_STORE_SCHEMA_MISMATCH"
        assert database.rows(table) == []
    database.drop(table)
    with open_with_view(database, tmp_path / "db", table):
        assert database.totals(table) == {"Jade": (800, 1)}


def test_a_table_of_notes_that_is_somebody_elses_is_refused_and_left_alone(
    cassandra: Cassandra, tmp_path: Path
) -> None:
    database = InCassandra(cassandra)
    cassandra.create_keyspace("noted")
    columns = "id int PRIMARY KEY, name text"
    database.session.execute(f"CREATE TABLE noted.holdfast_views ({columns})")
    location = f"cassandra://{cassandra.address}/noted/totals"
    with pytest.raises(InvalidArgument, match=r"its primary key is 'id'.*Move that table") as found:
        holdfast.open(tmp_path, **TOTALS, view=location)
    assert found.value.condition == "STATE_STORE_NOT_A_VIEW"
    there = database.session.execute(
        "SELECT table_name, column_name FROM system_schema.columns WHERE keyspace_name = 'noted'"
    )
    assert sorted(tuple(row.values()) for row in there) == [
        ("holdfast_views", "id"), ("holdfast_views", "name"),
    ]  # fmt: skip
    database.close()


@pytest.mark.parametrize("by_nulls", [False, True])
def test_a_view_is_filled_however_many_tombstones_are_in_the_way(
    cassandra: Cassandra, by_nulls: bool
) -> None:
    database = InCassandra(cassandra)
    table = database.table("tombstones")
    # A null is a tombstone, and so is a row that went, unless it was all of its partition.
    count, names = (4_000, [f"c{n}" for n in range(30)]) if by_nulls else (102_000, ["total"])
    keys = holdfast.types.parse_schema("user string, day long")
    values = holdfast.types.parse_schema(", ".join(f"{name} long" for name in names))
    view = open_view(ViewSpec(database.location(table), ViewSchema(keys, values), {}))
    view.prepare("owner", "root")
    users = pa.array([f"user {number // 10}" for number in range(count)])
    nulls = {name: pa.nulls(count, pa.int64()) for name in names}
    rows = pa.table({"user": users, "day": range(count), **nulls})
    if by_nulls:
        view.apply(2, rows, None, has_encoded=False)
    else:
        view.apply(2, None, rows, has_encoded=False)
    one = rows.slice(0, 1)
    view.apply(3, one, None, has_encoded=False)
    with pytest.raises(ReadFailure):
        database.rows(table)
    assert view.remove_older(3, has_encoded=False) == (count - 1 if by_nulls else 0)
    assert view.remove_older(4, has_encoded=False) == 1
    database.close()
