"""Roots in Cassandra and DynamoDB: whole providers, random lives, crashes at every statement."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from botocore.exceptions import ReadTimeoutError
from cassandra import OperationTimedOut
from made_providers import collide_keys, providers_at
from oracle import FakeTime, Standalone
from oracle import opened as opened_on
from remotes import Remote, opened
from seeds import seed_of
from test_crash_everywhere import CONF, Run
from test_state_machine import Life, live

import holdfast
from holdfast.backends import chunked
from holdfast.backends.chunked import ChunkedStorage
from holdfast.backends.root_rows import RootRows
from holdfast.engine.storage import Storage
from holdfast.errors import Conflict, HoldfastError, Unavailable
from holdfast.testing import MakeProvider, ProviderConformance
from holdfast.testing.faults import Crash
from servers import Cassandra, DynamoDb

pytestmark = pytest.mark.services
LOST: dict[str, Exception] = {
    "cassandra": OperationTimedOut(),
    "dynamodb": ReadTimeoutError(endpoint_url="somewhere"),
}


# -- the provider suite --------------------------------------------------------------------------


class DatabaseConformance(ProviderConformance):
    """The suite over a root in a database, with the cache before it as in a stream."""

    big_value_bytes = 10 << 20

    @pytest.fixture
    def root(self, request: pytest.FixtureRequest) -> Remote:
        raise NotImplementedError

    @pytest.fixture
    def make_provider(self, root: Remote, tmp_path: Path) -> MakeProvider:
        _, location, options = root
        self._root = root
        return providers_at(location, {"cache_location": str(tmp_path)}, options)

    def force_collisions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        collide_keys(monkeypatch)

    def list_files(self) -> list[str]:
        return [blob.path for blob in opened(self._root).list("")]


class TestOnCassandra(DatabaseConformance):
    @pytest.fixture
    def root(self, on_cassandra: Remote) -> Remote:
        return on_cassandra


class TestOnDynamoDb(DatabaseConformance):
    @pytest.fixture
    def root(self, on_dynamodb: Remote) -> Remote:
        return on_dynamodb


# -- random lives and crashes --------------------------------------------------------------------


def test_any_life_of_a_store_in_a_database_equals_its_oracle(on_database: Remote) -> None:
    server, location, options = on_database
    numbers = itertools.count()

    class DatabaseLife(Life):
        def new_storage(self) -> Storage:
            return opened((server, f"{location}/{next(numbers)}", options))

    live(DatabaseLife, seed_of("state machine"), lives=15, steps=25)


class CrashingRows:
    """Passes every call on, and dies at the change of a given number: after it, or in its midst.

    Changes are counted from 1; at 0 it dies before the first.
    """

    CHANGES = frozenset({
        "make", "note_directory", "create", "begin", "touch", "finish", "replace", "give_up",
        "remove", "forget", "put_chunks", "delete_chunks",
    })  # fmt: skip

    def __init__(self, inner: RootRows, at: int | None = None, *, torn: bool = False) -> None:
        self.inner, self._at, self._torn = inner, at, torn
        self.changes: list[str] = []
        self.begun: set[str] = set()
        self.is_dead = False
        self._lock = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name not in self.CHANGES:
            return self._alive(found) if callable(found) and name != "passes" else found
        return lambda *given: self._change(name, found, given)

    def _alive(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def alive(*given: Any) -> Any:
            self._die_if(self.is_dead)
            return call(*given)

        return alive

    def _change(self, name: str, change: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        with self._lock:
            self._die_if(self.is_dead or self._at == 0)
            if name == "make" and self.inner.exist():
                return None
            self.changes.append(name)
            is_last = len(self.changes) == self._at
            if name == "begin":
                self.begun.add(given[0].place.name)
            if is_last and self._torn and name == "put_chunks":
                upload, first, chunks = given
                given = upload, first, chunks[: len(chunks) // 2]
            if is_last and self._torn and name == "delete_chunks":
                given = given[0], given[1] // 2
            done = change(*given)
            self._die_if(is_last)
            return done

    def _die_if(self, is_time: bool) -> None:
        if is_time:
            self.is_dead = True
            raise Crash("the process is dead")


class ShortLife(Run):
    """Few changes, each of a kind: packs and segments, a tag, a merge, a clean-up."""

    def script(self, db: Any) -> None:
        batch = [((f"k{i % 7}", i), (i, "x" * (i % 90))) for i in range(10, 70)]
        self.commit(db, [("put_many", batch)])
        self.commit(db, [("put", (("a", 1), (1, "one")))])
        self.tag(db, "kept", 2)
        self.commit(db, [("evict", 20)])
        self.commit(db, [("update_many", batch[20:40])])
        self.clean(db)


def small_chunks(monkeypatch: pytest.MonkeyPatch, storage: ChunkedStorage) -> None:
    """Little fits into a row, and into a chunk."""
    monkeypatch.setattr(chunked, "INLINE_BYTES", 500)
    monkeypatch.setattr(chunked, "ANNOUNCED_CHUNKS", 2)
    monkeypatch.setattr(chunked, "_FLUSH_BYTES", 4000)
    monkeypatch.setattr(type(storage.rows), "chunk_bytes", 2000)


def died(remote: Remote, at: int | None, torn: bool) -> tuple[CrashingRows, Run]:
    """What is left of a short life that ends at that change."""
    storage, run = opened(remote), ShortLife()
    assert isinstance(storage, ChunkedStorage)
    storage.rows = rows = CrashingRows(storage.rows, at, torn=torn)  # type: ignore[assignment]
    with suppress(Crash), opened_on(Standalone, storage, FakeTime(process=1), CONF) as db:
        run.script(db)
    return rows, run


def check_nothing_unnamed_is_left(storage: ChunkedStorage, uploads: set[str]) -> None:
    """Every chunk of these uploads belongs to a blob one can see."""
    storage.sweep(0.0)
    rows = storage.rows
    assert rows.uploads(storage._directories("list", "")) == []
    named = {row.upload for blob in storage.list("") if (row := storage.look_up(blob.path))}
    for upload in uploads - named:
        assert set(rows.get_chunks(upload, range(6))) == {None}


def test_every_acknowledged_version_survives_a_crash_at_any_statement(
    on_database: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, location, options = on_database
    first = opened(on_database)
    assert isinstance(first, ChunkedStorage)
    small_chunks(monkeypatch, first)
    first.write("made", b"")  # tables are made once
    calls = died((server, f"{location}/whole", options), None, False)[0].changes
    assert len(calls) <= 60
    assert set(calls) >= {"create", "begin", "touch", "put_chunks", "finish", "remove", "forget"}
    ways = [(0, False)]
    for number, name in enumerate(calls, start=1):
        ways.append((number, False))
        if name in ("put_chunks", "delete_chunks"):
            ways.append((number, True))
    for at, torn in ways:
        remote = (server, f"{location}/{at}{'torn' if torn else ''}", options)
        rows, run = died(remote, at, torn)
        assert rows.is_dead
        storage = opened(remote)
        assert isinstance(storage, ChunkedStorage)
        run.go_on(Standalone, storage)
        check_nothing_unnamed_is_left(storage, rows.begun)
    print(f"\n{location.partition(':')[0]}: {len(calls)} statements, {len(ways)} crashes")


# -- writers that come too late ------------------------------------------------------------------


def test_an_upload_that_was_swept_cannot_be_finished(
    on_database: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = opened(on_database)
    assert isinstance(storage, ChunkedStorage)
    small_chunks(monkeypatch, storage)
    storage.write("kept", b"k" * 10_000)
    late = storage.open_writer("late")
    late.write(b"x" * 9000)
    assert storage.sweep(3600) == 0
    assert storage.sweep(0.0) == 1
    with pytest.raises(Unavailable, match="was cleaned up"):
        late.close()
    late.discard()
    gone = storage.open_writer("gone")
    gone.write(b"x" * 9000)
    assert storage.sweep(0.0) == 1
    with pytest.raises(Unavailable, match="was cleaned up"):
        gone.write(b"x" * 9000)
    assert [blob.path for blob in storage.list("")] == ["kept"]
    assert bytes(storage.read("kept")) == b"k" * 10_000


def test_a_name_is_free_again_after_its_large_blob_was_deleted(
    on_database: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = opened(on_database)
    assert isinstance(storage, ChunkedStorage)
    small_chunks(monkeypatch, storage)
    for number in range(3):
        assert storage.create_if_absent("a", b"%d" % number * 5000) is True
        assert storage.create_if_absent("a", b"other" * 5000) is False
        assert bytes(storage.read("a")) == b"%d" % number * 5000
        storage.delete("a")
    storage.write("a", b"1" * 5000)
    storage.write("a", b"2" * 5000)  # what an attempt that got no answer has left is replaced
    assert bytes(storage.read_range("a", 1990, 2010)) == b"2" * 20
    assert storage.sweep(0.0) == 0


@pytest.mark.parametrize(("before", "after"), [(10, 10), (5000, 5000), (10, 5000), (5000, 10)])
def test_a_blob_that_is_written_again_is_there_at_any_moment(
    on_database: Remote, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    storage = opened(on_database)
    assert isinstance(storage, ChunkedStorage)
    small_chunks(monkeypatch, storage)
    rows, old, new, found = storage.rows, b"o" * before, b"n" * after, []
    for at in itertools.count():
        storage.rows = rows
        storage.write(f"{at}", old)
        storage.rows = crashing = CrashingRows(rows, at)  # type: ignore[assignment]
        with suppress(Crash):
            storage.write(f"{at}", new)
        storage.rows = rows
        found.append(bytes(storage.read(f"{at}")))
        check_nothing_unnamed_is_left(storage, crashing.begun)
        if not crashing.is_dead:
            break
    assert found == sorted(found, reverse=True)
    assert (found[0], found[-1]) == (old, new)
    assert set(found) == {old, new}


def test_a_second_writer_is_fenced(on_database: Remote) -> None:
    _, location, options = on_database
    with (
        holdfast.open(location, "n long", "v long", options=options) as one,
        holdfast.open(location, options=options) as two,
    ):
        mine, theirs = one.update(), two.update()
        mine.put((1,), (1,))
        theirs.put((1,), (2,))
        theirs.commit()
        with pytest.raises(HoldfastError) as fenced:
            mine.commit()
        assert isinstance(fenced.value.__cause__ or fenced.value, Conflict)
    assert holdfast.read(location, options=options).get(1) == (2,)


@pytest.mark.parametrize("size", [10, 5000])
def test_an_answer_that_got_lost_is_found_out(
    on_database: Remote, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    storage = opened(on_database)
    assert isinstance(storage, ChunkedStorage)
    small_chunks(monkeypatch, storage)
    real, lost = storage.rows, []

    class Losing:
        """Carries out what makes a blob visible, once without an answer."""

        def __getattr__(self, name: str) -> Any:
            found = getattr(real, name)
            return self._losing(found) if name in ("create", "finish") else found

        @staticmethod
        def _losing(make: Callable[..., bool]) -> Callable[..., bool]:
            def losing(*given: Any) -> bool:
                made = make(*given)
                if not lost:
                    lost.append(made)
                    raise LOST[on_database[1].partition(":")[0]]
                return made

            return losing

    storage.rows = Losing()  # type: ignore[assignment]
    assert storage.create_if_absent("a", b"m" * size) is True
    assert storage.create_if_absent("a", b"o" * size) is False
    assert lost == [True]
    assert bytes(storage.read("a")) == b"m" * size


def test_a_version_is_given_up_by_deleting_its_row(on_database: Remote) -> None:
    server, location, options = on_database
    with holdfast.open(location, "n long", "v long", options=options) as db:
        for total in (1, 2):
            with db.update() as store:
                store.put((1,), (total,))
    _, _, folder = location.partition("storages/")
    if isinstance(server, Cassandra):
        with server.cluster() as cluster:
            cluster.connect("state").execute(
                "DELETE FROM holdfast_rows WHERE root = 'storages' AND directory = %s AND kind = 0 "
                "AND name = '2' IF EXISTS",
                (f"{folder}/versions",),
            )
    else:
        assert isinstance(server, DynamoDb)
        key = {"holdfast_place": {"S": f"directory:/{folder}/versions"},
               "holdfast_name": {"S": "blob:2"}}  # fmt: skip
        server.client().delete_item(TableName="storages-holdfast", Key=key)
    with holdfast.open(location, options=options) as db:
        assert (db.version, db.get((1,))) == (1, (1,))
        with db.update() as store:
            store.put((1,), (3,))
        assert (db.version, db.get((1,))) == (2, (3,))


def test_old_versions_leave_the_database_with_maintenance(
    on_database: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, location, options = on_database
    storage = opened(on_database)
    assert isinstance(storage, ChunkedStorage)
    small_chunks(monkeypatch, storage)
    storage.write("made", b"")
    before, taken = _count_rows(server), {}
    conf = {"min_versions_to_retain": 2, "min_deltas_for_snapshot": 2, "grace_period_ms": 0}
    rows = pa.table({"n": pa.array(range(500)), "v": pa.array(range(500))})
    with holdfast.open(location, "n long", "v long", options=options, conf=conf) as db:
        while db.version < 8:
            with db.update() as store:
                store.put_many(rows)
            db.maintain()
            if db.version in (1, 5, 8):
                taken[db.version] = _count_rows(server) - before
        assert [info.version for info in db.history()] == [8, 7]
    assert len(storage.list("versions")) == 2
    assert taken[1] > 5, "it has chunks"
    assert taken[8] <= taken[5] + taken[1] / 2


def _count_rows(server: Any) -> int:
    """The rows and chunks of all roots, by the database's own client."""
    if isinstance(server, Cassandra):
        with server.cluster() as cluster:
            session = cluster.connect("state")
            counts = [
                session.execute(f"SELECT count(*) FROM {table}", timeout=60).one()[0]
                for table in ("holdfast_rows", "holdfast_chunks")
            ]
            return sum(counts)
    pages = (
        server.client()
        .get_paginator("scan")
        .paginate(TableName="storages-holdfast", Select="COUNT", ConsistentRead=True)
    )
    return sum(page["Count"] for page in pages)


# -- bulk ----------------------------------------------------------------------------------------


def test_a_partition_is_loaded_in_bulk_and_keys_are_read_locally(
    on_database: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, location, options = on_database
    users = pa.table({"n": pa.array(range(50_000)), "v": pa.array(range(50_000))})
    written, fresh = ({"cache_location": str(tmp_path / name)} for name in ("written", "fresh"))
    with (
        holdfast.open(location, "n long", "v long", options=options, conf=written) as db,
        db.update() as store,
    ):
        store.put_many(users)
    asked: list[str] = []
    rows = type(opened(on_database).rows)  # type: ignore[attr-defined]
    for name in ("blob", "blobs", "get_chunks"):
        counted(monkeypatch, rows, name, asked)
    with holdfast.open(location, options=options, conf=fresh) as db:
        assert db.get((49_999,)) == (49_999,)
        loaded = len(asked)
        assert loaded < 20
        assert db.get_many(users.select(["n"])).column("v").to_pylist() == list(range(50_000))
        assert [db.get((n,)) for n in range(200)] == [(n,) for n in range(200)]
        assert len(asked) == loaded


def counted(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, asked: list[str]) -> None:
    """Note in `asked` every call of a method."""
    real = getattr(kind, name)

    def noting(self: Any, *given: Any) -> Any:
        asked.append(name)
        return real(self, *given)

    monkeypatch.setattr(kind, name, noting)
