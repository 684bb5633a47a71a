"""The friendly door: open, update, look back, tag, and two people at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast
from holdfast import StateStoreConf, VersionedStore, admin
from holdfast.backends.local import LocalStorage
from holdfast.errors import (
    Closed,
    Conflict,
    Corruption,
    IllegalState,
    InvalidArgument,
    Unavailable,
    VersionNotFound,
)
from holdfast.reading import open_root

EAGER = {"min_deltas_for_snapshot": 3, "min_versions_to_retain": 2, "grace_period_ms": 0}


@pytest.fixture(params=[1, 3], ids=["one partition", "three partitions"])
def partitions(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def db(root: Path, partitions: int) -> Iterator[VersionedStore]:
    with holdfast.open(
        root, key="user string", value="total long", partitions=partitions
    ) as database:
        yield database


def put(db: VersionedStore, **totals: int) -> int:
    with db.update() as store:
        for user, total in totals.items():
            store.put((user,), (total,))
    return db.version


def state(reader: Any) -> dict[str, int]:
    rows = reader.scan().to_pydict()
    return dict(zip(rows["user"], rows["total"], strict=True))


def test_session_of_the_issue_works(db: VersionedStore) -> None:
    table = pa.table({"user": ["Ann", "Bob", "Ann"], "total": [1, 2, 3]})
    with db.update() as store:
        store.put(("Sankar",), (200,))
        assert store.get(("Sankar",)) == (200,)
        store.put_many(table)
        found = store.get_many(pa.table({"user": ["Bob", "nobody", "Ann"]}))
    assert found.to_pydict() == {
        "user": ["Bob", "nobody", "Ann"],
        "total": [2, None, 3],
        "_found": [True, False, True],
    }
    assert db.version == 1
    assert db.at(1).get(("Sankar",)) == (200,)
    assert state(db.at(1)) == {"Sankar": 200, "Ann": 3, "Bob": 2}
    db.tag("before-migration")
    assert db.tags == {"before-migration": 1}
    assert [info.version for info in db.history()] == [1, 0]


def test_update_commits_on_leaving_and_aborts_on_an_exception(db: VersionedStore) -> None:
    def fail() -> None:
        with db.update() as store:
            store.put(("a",), (2,))
            raise ZeroDivisionError

    put(db, a=1)
    with pytest.raises(ZeroDivisionError):
        fail()
    assert (db.version, db.get(("a",))) == (1, (1,))
    with db.update() as store:
        pass
    assert store.has_committed
    assert db.version == 2


def test_update_may_be_committed_or_aborted_by_hand(db: VersionedStore) -> None:
    with db.update() as store:
        store.put(("a",), (1,))
        assert store.commit() == 1
    assert db.version == 1
    with db.update() as store:
        store.put(("a",), (2,))
        store.abort()
    assert (db.version, db.get(("a",))) == (1, (1,))


def test_ended_update_takes_no_change(db: VersionedStore) -> None:
    committed, aborted = db.update(), db.update()
    committed.put(("a",), (1,))
    committed.commit()
    aborted.put(("a",), (2,))
    aborted.abort()
    for store in (committed, aborted):
        with pytest.raises(IllegalState, match="Cannot put after already committed or aborted"):
            store.put(("a",), (1,))
        with pytest.raises(IllegalState, match="Cannot remove after already committed or aborted"):
            store.remove(("a",))
        with pytest.raises(IllegalState, match="Cannot commit after already committed or aborted"):
            store.commit()
        store.abort()
    assert committed.get(("a",)) == (1,)
    assert committed.has_committed
    assert not aborted.has_committed
    with pytest.raises(Closed):
        aborted.get(("a",))


def test_many_keys_find_their_partition_by_row_and_by_batch(db: VersionedStore) -> None:
    users = [str(i) for i in range(500)]
    with db.update() as store:
        store.put_many(pa.table({"user": users, "total": range(500)}))
        assert [store.get((user,)) for user in users[:50]] == [(i,) for i in range(50)]
        store.remove_many(pa.table({"user": users[100:200]}))
        store.put(("100",), (-1,))
    reader = db.at(1)
    assert reader.metrics.num_keys == 401
    assert reader.get(("100",)) == (-1,)
    assert sorted(pair.key[0] for pair in reader.iterator()) == sorted(users[:101] + users[200:])
    asked = [*reversed(users), "nobody"]
    found = db.get_many(pa.table({"user": asked}))
    assert found["user"].to_pylist() == asked
    assert found["_found"].to_pylist() == [user in users[:101] + users[200:] for user in asked]


def test_scan_filters_and_picks_columns(db: VersionedStore) -> None:
    put(db, a=1, b=2, c=3)
    assert db.scan(["total"], pc.field("user") == "b").to_pydict() == {"total": [2]}
    assert db.scan(where=pc.field("total") > 9).num_rows == 0
    with pytest.raises(InvalidArgument, match="'nonsense'"):
        db.scan(["nonsense"])


def test_empty_store_and_empty_batch_are_fine(db: VersionedStore) -> None:
    assert db.version == 0
    assert db.scan().column_names == ["user", "total"]
    empty = pa.table({"user": pa.array([], pa.string()), "total": pa.array([], pa.int64())})
    with db.update() as store:
        store.put_many(empty)
        assert store.get_many(empty.select(["user"])).num_rows == 0
        store.remove_many(empty.select(["user"]))
    assert db.get(("a",)) is None


def test_partitioned_store_evicts_expires_and_updates(root: Path, partitions: int) -> None:
    with holdfast.open(
        root,
        key="at long, user string",
        value="total long",
        key_index_ordinal=0,
        partitions=partitions,
    ) as db:
        with db.update() as store:
            for at in range(10):
                store.put((at, "u"), (at,))
            store.put((50, "u"), (0,), expires_ms=5)
            assert store.evict(4) == 5
            assert store.expire(5) == 1
            batch = pa.table({"at": [7, 8], "user": ["u", "u"]})
            store.update_many(batch, lambda rows, found: pa.table({"total": rows["at"]}))
        assert sorted(db.scan()["at"].to_pylist()) == [5, 6, 7, 8, 9]
        assert sorted(pair.key[0] for pair in db.at(1).get_range(6, 7)) == [6, 7]


def test_prefixes_stay_together_in_one_partition(root: Path, partitions: int) -> None:
    with holdfast.open(
        root,
        key="user string, entry long",
        value="total long",
        num_cols_prefix_key=1,
        partitions=partitions,
    ) as db:
        with db.update() as store:
            for entry in range(20):
                store.put((f"u{entry % 4}", entry), (entry,))
        found = sorted(pair.key[1] for pair in db.at(1).prefix_scan(("u1",)))
        assert found == [1, 5, 9, 13, 17]


def test_old_versions_stay_as_they_were(db: VersionedStore) -> None:
    put(db, a=1)
    reader = db.at(1)
    put(db, a=2, b=2)
    assert [state(db.at(version)) for version in range(3)] == [{}, {"a": 1}, {"a": 2, "b": 2}]
    assert state(reader) == {"a": 1}


def test_version_that_is_not_there_is_not_found(db: VersionedStore) -> None:
    for version in (1, 99):
        with pytest.raises(VersionNotFound):
            db.at(version)
    with pytest.raises(VersionNotFound, match="'release'"):
        db.at("release")
    with pytest.raises(InvalidArgument):
        db.at(-1)


def test_tags_name_versions_and_outlive_retention(root: Path, partitions: int) -> None:
    with holdfast.open(
        root, key="user string", value="total long", partitions=partitions, conf=EAGER
    ) as db:
        put(db, a=1)
        db.tag("first")
        for total in range(2, 8):
            put(db, a=total)
            db.maintain()
        assert db.at("first").get(("a",)) == (1,)
        assert [info.version for info in db.history()] == [7, 6, 1]
        assert db.history()[-1].tags == ("first",)
        with pytest.raises(VersionNotFound):
            db.at(3)
        db.tag("newest", 7)
        db.tag("newest", 7)
        with pytest.raises(InvalidArgument, match="already names version 7"):
            db.tag("newest", 6)
        with pytest.raises(VersionNotFound):
            db.tag("gone", 3)
        for name in ("", "a/b", "../up", ".hidden"):
            with pytest.raises(InvalidArgument, match="cannot be used"):
                db.tag(name)
        db.untag("first")
        with pytest.raises(InvalidArgument, match="no tag 'first'"):
            db.untag("first")
        db.maintain()
        assert [info.version for info in db.history()] == [7, 6]
        assert db.get(("a",)) == (7,)


def test_history_tells_keys_bytes_and_changes(db: VersionedStore) -> None:
    put(db, a=1, b=2)
    put(db, b=3)
    newest, first, zero = db.history()
    assert [(i.version, i.num_keys, i.changed_rows) for i in (newest, first, zero)] == [
        (2, 2, 1), (1, 2, 2), (0, 0, 0),
    ]  # fmt: skip
    assert newest.size_bytes > first.size_bytes > zero.size_bytes == 0
    assert 0 < newest.written_bytes < newest.size_bytes
    assert newest.committed_at_ms >= first.committed_at_ms > 1_600_000_000_000


def test_former_names_in_a_history_work_and_say_the_new_ones(db: VersionedStore) -> None:
    put(db, a=1, b=2)
    newest = db.history()[0]
    with pytest.warns(DeprecationWarning, match="VersionInfo.size_bytes"):
        assert newest.bytes == newest.size_bytes
    with pytest.warns(DeprecationWarning, match="VersionInfo.changed_rows"):
        assert newest.changed == 2


def test_root_opens_again_without_schemas(db: VersionedStore, root: Path, partitions: int) -> None:
    put(db, a=1)
    db.close()
    with holdfast.open(root) as again:
        assert (again.version, again.partitions) == (1, partitions)
        assert again.key_schema.ddl() == "user string"
        assert again.value_schema.ddl() == "total long"
        assert again.get(("a",)) == (1,)
        assert put(again, a=2) == 2


def test_root_without_state_needs_schemas(root: Path) -> None:
    with pytest.raises(InvalidArgument, match="holds no Holdfast state") as caught:
        holdfast.open(root)
    assert caught.value.condition == "STATE_STORE_NOT_A_STORE"
    with pytest.raises(InvalidArgument, match="holds no Holdfast state"):
        holdfast.open(root, key="user string")
    assert not root.exists()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"key": "user string", "value": "total string"}, ["total", "long", "string"]),
        ({"key": "name string"}, ["user", "name"]),
        ({"partitions": 5}, ["partitions", "5"]),
        ({"key_index_ordinal": 0}, ["key_index_ordinal"]),
        ({"num_cols_prefix_key": 1}, ["num_cols_prefix_key"]),
    ],
)
def test_mismatch_with_the_stored_schema_is_readable(
    db: VersionedStore, root: Path, other: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        holdfast.open(root, **other)
    assert caught.value.condition == "STATE_STORE_SCHEMA_MISMATCH"
    assert [word for word in words if word not in str(caught.value)] == []
    assert str(root) in str(caught.value)


@pytest.mark.parametrize("partitions", [0, -1])
def test_number_of_partitions_starts_at_one(root: Path, partitions: int) -> None:
    with pytest.raises(InvalidArgument, match="partitions"):
        holdfast.open(root, key="k int", value="v int", partitions=partitions)
    assert not root.exists()


def test_unknown_setting_is_refused_by_name(root: Path) -> None:
    with pytest.raises(InvalidArgument, match="'compresion'"):
        holdfast.open(root, key="k int", value="v int", conf={"compresion": "lz4"})


def test_closed_store_opens_nothing(db: VersionedStore) -> None:
    put(db, a=1)
    db.close()
    db.close()
    for call in (
        db.update, lambda: db.at(1), lambda: db.get(("a",)), db.scan, db.history, db.refresh,
        db.maintain, lambda: db.tag("t"), lambda: db.untag("t"),
    ):  # fmt: skip
        with pytest.raises(Closed, match="is closed"):
            call()


def test_second_writer_of_a_version_gets_a_conflict_and_loses_only_its_update(
    db: VersionedStore, root: Path
) -> None:
    put(db, a=1)
    with holdfast.open(root) as other:
        mine, theirs = db.update(), other.update()
        mine.put(("a",), (2,))
        theirs.put(("a",), (3,))
        theirs.put(("b",), (3,))
        mine.commit()
        with pytest.raises(Conflict, match="another writer"):
            theirs.commit()
        assert not theirs.has_committed
        with pytest.raises(IllegalState):
            theirs.commit()
        with pytest.raises(Closed):
            theirs.get(("a",))
        assert state(db.at(2)) == {"a": 2}
        assert put(other, b=4) == 3
        assert state(other.at(3)) == {"a": 2, "b": 4}


def test_conflict_on_leaving_the_block_is_raised(db: VersionedStore, root: Path) -> None:
    def lose() -> None:
        with db.update() as store:
            store.put(("a",), (1,))
            with holdfast.open(root) as other:
                put(other, a=2)

    with pytest.raises(Conflict):
        lose()
    assert db.refresh() == 1
    assert db.get(("a",)) == (2,)


def test_handle_sees_others_versions_after_refresh_and_in_updates(
    db: VersionedStore, root: Path
) -> None:
    with holdfast.open(root) as other:
        put(other, a=1)
        assert db.version == 0
        assert db.refresh() == db.version == 1
        assert db.get(("a",)) == (1,)
        put(other, a=2)
        with db.update() as store:
            assert store.version == 2
            store.put(("b",), (1,))
    assert state(db) == {"a": 2, "b": 1}


def test_commit_without_an_answer_can_be_tried_again_or_aborted_without_loss(
    db: VersionedStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalStorage.create_if_absent

    def lose(self: LocalStorage, path: str, data: bytes) -> bool:
        real(self, path, data)
        raise Unavailable("the reply was lost")

    def refuse(self: LocalStorage, path: str) -> Any:
        raise Unavailable("no answer")

    store = db.update()
    store.put(("a",), (1,))
    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "create_if_absent", lose)
        patched.setattr(LocalStorage, "read", refuse)
        with pytest.raises(Unavailable):
            store.commit()
    store.abort()
    with holdfast.open(root) as again:
        assert again.get(("a",)) == (1,)


def test_threads_race_and_each_version_has_one_winner(root: Path, partitions: int) -> None:
    holdfast.open(root, key="user string", value="total long", partitions=partitions).close()
    barrier = threading.Barrier(4)
    won: list[int] = []

    def race() -> None:
        with holdfast.open(root) as handle:
            barrier.wait()
            for _ in range(10):
                try:
                    with handle.update() as store:
                        old = store.get(("n",))
                        store.put(("n",), ((0 if old is None else old[0]) + 1,))
                    won.append(store.version + 1)
                except Conflict:
                    continue

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with holdfast.open(root) as db:
        assert sorted(won) == list(range(1, db.version + 1))
        assert db.get(("n",)) == (db.version,)


def test_partitions_commit_in_one_manifest(db: VersionedStore, root: Path) -> None:
    put(db, **{f"u{i}": i for i in range(30)})
    assert sorted(path.name for path in (root / "versions").iterdir()) == ["0", "1"]
    assert len(list((root / "packs").glob("*.pack"))) == 1
    assert len(list((root / "packs").glob("*.pack.copy"))) == 1


def test_maintenance_compacts_and_changes_nothing(root: Path, partitions: int) -> None:
    with holdfast.open(
        root, key="user string", value="total long", partitions=partitions, conf=EAGER
    ) as db:
        for number in range(10):
            put(db, a=number, **{f"u{number}": number})
            db.maintain()
        assert state(db) == {"a": 9, **{f"u{n}": n for n in range(10)}}
        assert db.at(10).metrics.json()["numSegments"] <= 4 * partitions
    with holdfast.open(root) as again:
        assert state(again) == {"a": 9, **{f"u{n}": n for n in range(10)}}


def test_partition_that_cannot_be_merged_does_not_keep_the_others_from_maintenance(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    conf = {**EAGER, "pack_threshold_bytes": 0, "keep_copies": "off"}
    with holdfast.open(root, key="user string", value="total long", partitions=3, conf=conf) as db:
        for number in range(4):
            put(db, **{f"u{i}": number for i in range(30)})
        for delta in (root / "0" / "1").glob("*.delta"):
            delta.write_bytes(b"damaged")
        db.maintain()
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.message.startswith("Error performing snapshot and cleaning up HDFSBackedState")
    assert "part=1" in warning.message
    assert [len(list((root / "0" / str(n)).glob("*.snapshot"))) for n in range(3)] == [1, 0, 1]
    assert sorted(path.name for path in (root / "versions").iterdir()) == ["3", "4"]


def test_foreign_files_in_a_root_disturb_nobody_and_stay(root: Path, partitions: int) -> None:
    with holdfast.open(
        root, key="user string", value="total long", partitions=partitions, conf=EAGER
    ) as db:
        put(db, a=1)
        db.tag("first")
        foreign = [
            root / folder / name
            for folder in ("versions", "tags", "packs", "retiring", "0/0", ".")
            for name in (".DS_Store", "7.bak", "~lock", "kopie von 3", "nested/4")
        ]
        foreign.remove(root / "tags" / "7.bak")  # might be a damaged tag: refused, not ignored
        for path in foreign:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"\xff not ours")
        for number in range(2, 6):
            put(db, a=number)
            db.maintain()
        assert [info.version for info in db.history()] == [5, 4, 1]
        assert (db.tags, state(db.at("first"))) == ({"first": 1}, {"a": 1})
        assert all(path.exists() for path in foreign)


def test_damaged_newest_manifest_stops_writers_until_it_is_moved_away(
    db: VersionedStore, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        put(db, a=number)
    manifest = root / "versions" / "3"
    manifest.write_bytes(manifest.read_bytes()[:-1])
    with holdfast.open(root) as again:
        assert (again.version, state(again)) == (2, {"a": 1})
        assert [info.version for info in again.history()] == [2, 1, 0]
        assert str(manifest) in caplog.text
        for use in (again.update, again.maintain):
            with pytest.raises(Corruption, match="rollback CHECKPOINT --to intact"):
                use()
        manifest.rename(root / "versions" / "3.damaged")
        put(again, a=7)
        again.maintain()
        assert (again.version, state(again), state(again.at(2))) == (3, {"a": 7}, {"a": 1})


def test_maintenance_runs_in_the_background_and_ends_with_close(root: Path) -> None:
    def threads() -> int:
        return sum(t.name == "holdfast-maintenance" for t in threading.enumerate())

    before = threads()
    db = holdfast.open(
        root, key="user string", value="total long", conf={**EAGER, "maintenance_interval_ms": 5}
    )
    assert threads() == before
    put(db, a=1)
    assert threads() == before + 1
    db.close()
    assert threads() == before


def test_text_forms_fit_a_line(db: VersionedStore, root: Path, partitions: int) -> None:
    put(db, a=1)
    assert repr(db) == (
        f"VersionedStore[{root}, version=1, partitions={partitions}, key=(user string), "
        "value=(total long)]"
    )
    assert repr(db.at(1)) == f"StateReader[version=1,dir={root}]"
    assert repr(db.update()) == f"StateStore[version=1,dir={root}]"


def test_text_form_of_a_wide_schema_is_cut(tmp_path: Path) -> None:
    wide = ", ".join(f"column_{i} string" for i in range(60))
    with holdfast.open("memory://wide", key="k int", value=wide) as db:
        assert len(repr(db)) <= 200
        assert "…" in repr(db)
        assert "column_59" in db._repr_html_()


def test_notebook_form_is_a_table_with_escaped_text(db: VersionedStore) -> None:
    put(db, a=1, b=2)
    page = db._repr_html_()
    assert page.startswith("<table>")
    assert "<th>keys</th><td>2</td>" in page
    with holdfast.open("memory://<b>", key="`<i>` int", value="v int") as odd:
        assert "<b>" not in odd._repr_html_()
        assert "<i>" not in odd._repr_html_()


@pytest.mark.parametrize("form", ["path", "text", "uri"])
def test_root_is_taken_as_path_text_and_uri(root: Path, form: str) -> None:
    given: Any = {"path": root, "text": str(root), "uri": f"file://{root}"}[form]
    with holdfast.open(given, key="user string", value="total long") as db:
        put(db, a=1)
    with holdfast.open(root) as again:
        assert again.get(("a",)) == (1,)


def test_relative_root_stays_where_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with holdfast.open("here", key="user string", value="total long") as db:
        monkeypatch.chdir(tmp_path / "elsewhere")
        put(db, a=1)
    assert (tmp_path / "here" / "versions" / "1").exists()


def test_memory_root_is_shared_in_the_process() -> None:
    with holdfast.open("memory://database-test", key="user string", value="total long") as db:
        put(db, a=1)
    with holdfast.open("memory://database-test") as again:
        assert again.get(("a",)) == (1,)


def test_schemas_are_taken_as_arrow_and_json(tmp_path: Path) -> None:
    key = pa.schema([pa.field("user", pa.string())])
    value = {"type": "struct", "fields": [{"name": "total", "type": "long", "nullable": True}]}
    with holdfast.open(tmp_path / "a", key=key, value=value) as db:
        assert db.key_schema.ddl() == "user string"
    conf = StateStoreConf(compression="zstd")
    with holdfast.open(tmp_path / "b", key="user string", value="total long", conf=conf) as db:
        put(db, a=1)


def test_commits_are_logged(
    db: VersionedStore, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="holdfast"):
        put(db, a=1)
    assert f"Committed version 1 of {root}" in caplog.messages


def test_rows_come_back_as_dicts_go_in(db: VersionedStore) -> None:
    with db.update() as store:
        store.put({"user": "a"}, {"total": 1})
    assert db.get({"user": "a"}) == (1,)


def test_maintain_with_snapshot_merges_everything_whether_due_or_not(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "db", key="k long", value="v long", partitions=2) as db:
        for number in range(3):
            with db.update() as store:
                store.put_many(pa.table({"k": range(number, number + 20), "v": [number] * 20}))
        before = db.scan().sort_by("k")
        assert db.at(db.version).metrics.json()["numSegments"] == 6
        db.maintain(snapshot=True)
        with db.update():
            pass
        assert db.at(db.version).metrics.json()["numSegments"] == 2
        assert db.scan().sort_by("k") == before


@pytest.mark.parametrize("bound", ["evict", "expire"])
def test_a_merge_from_before_a_rollback_that_lowers_a_bound_is_not_used(
    tmp_path: Path, bound: str
) -> None:
    """It lacks rows that are back. A store in one process goes on across a rollback by another."""
    with holdfast.open(tmp_path, key="day int", value="n int", key_index_ordinal=0) as db:
        for version in (1, 2):
            with db.update() as store:
                for day in range(version, 10, 2):
                    store.put((day,), (version,), expires_ms=day)
        state = dict(db.at(2).iterator())
        with db.update() as store:
            assert getattr(store, bound)(5) == 5
        db.maintain(snapshot=True)
        admin.rollback(tmp_path, 2).run()
        assert db.refresh() == 4
        with db.update() as store:
            store.put((20,), (20,))
        assert dict(db.at(5).iterator()) == state | {(20,): (20,)}
        db.maintain(snapshot=True)
        with db.update() as store:
            store.put((21,), (21,))
        assert dict(db.at(6).iterator()) == state | {(20,): (20,), (21,): (21,)}
        kinds = [file.kind for chain in open_root(tmp_path).chains() for file in chain.segments]
        assert "snapshot" in kinds, "later merges are used again"
