"""The storage that fails on purpose fails as it says, and a store on it stays right."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from oracle import Facade, FakeTime, Standalone, State, contents, opened
from seeds import seed_of

from holdfast.backends.local import LocalStorage
from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.storage import BlobNotFound
from holdfast.errors import Conflict, HoldfastError, Unavailable
from holdfast.testing.faults import (
    Crash,
    Fault,
    FaultyStorage,
    crash_at,
    faults_at,
    random_faults,
)


def test_calls_are_counted_with_their_operation_and_path() -> None:
    faulty = FaultyStorage(MemoryStorage())
    faulty.write("a/b", b"12")
    faulty.read("a/b")
    faulty.create_if_absent("c", b"")
    faulty.list("")
    faulty.size("c")
    faulty.delete("c")
    faulty.sweep(1.0)
    assert [(call.number, call.operation, call.path) for call in faulty.calls] == [
        (1, "open_writer", "a/b"),
        (2, "write", "a/b"),
        (3, "close", "a/b"),
        (4, "read", "a/b"),
        (5, "create_if_absent", "c"),
        (6, "list", ""),
        (7, "size", "c"),
        (8, "delete", "c"),
        (9, "sweep", ""),
    ]


@pytest.mark.parametrize(
    ("fault", "there"), [(Fault.CRASH_BEFORE, False), (Fault.CRASH_AFTER, True)]
)
def test_a_crash_ends_everything(fault: Fault, there: bool) -> None:
    faulty = FaultyStorage(MemoryStorage(), crash_at(1, fault))
    with pytest.raises(Crash):
        faulty.create_if_absent("x", b"1")
    with pytest.raises(Crash):
        faulty.read("x")
    assert faulty.is_dead
    assert (faulty.inner.size("x") is not None) == there


def test_a_torn_close_leaves_half_a_blob_and_a_torn_create_nothing() -> None:
    inner = MemoryStorage()
    with pytest.raises(Crash):
        FaultyStorage(inner, crash_at(3, Fault.CRASH_TORN)).write("x", b"123456")
    assert bytes(inner.read("x")) == b"123"
    with pytest.raises(Crash):
        FaultyStorage(inner, crash_at(1, Fault.CRASH_TORN)).create_if_absent("y", b"123456")
    assert inner.size("y") is None


def test_what_a_crashed_writer_left_is_kept_until_it_is_buried(tmp_path: Any) -> None:
    faulty = FaultyStorage(LocalStorage(tmp_path), crash_at(2, Fault.CRASH_TORN))
    with pytest.raises(Crash):
        faulty.write("x", b"123456")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"123"]
    assert faulty.inner.list("") == []
    faulty.bury()
    assert list(tmp_path.iterdir()) == []


def test_errors_pass_and_lost_replies_took_effect() -> None:
    faulty = FaultyStorage(MemoryStorage(), faults_at({1: Fault.ERROR, 2: Fault.LOST_REPLY}))
    with pytest.raises(Unavailable):
        faulty.create_if_absent("x", b"1")
    assert faulty.inner.size("x") is None
    with pytest.raises(Unavailable):
        faulty.create_if_absent("x", b"1")
    assert not faulty.create_if_absent("x", b"2")
    assert bytes(faulty.read("x")) == b"1"
    with pytest.raises(BlobNotFound):
        faulty.read("y")


def test_a_delay_sleeps_and_a_stale_listing_shows_the_one_before() -> None:
    slept: list[float] = []
    faulty = FaultyStorage(
        MemoryStorage(),
        faults_at({1: Fault.DELAY, 3: Fault.STALE}),
        delay_s=2.5,
        sleep=slept.append,
    )
    assert faulty.list("") == []
    assert slept == [2.5]
    faulty.inner.write("x", b"1")
    faulty.create_if_absent("y", b"1")
    assert faulty.list("") == []
    assert [blob.path for blob in faulty.list("")] == ["x", "y"]


CONF = StateStoreConf(
    min_deltas_for_snapshot=3,
    min_versions_to_retain=3,
    pack_threshold_bytes=2500,
    grace_period_ms=50,
    merge_fanout=2,
    maintenance_interval_ms=3_600_000,
)
PASSING = (Fault.ERROR, Fault.LOST_REPLY, Fault.STALE, Fault.DELAY, Fault.FULL)


@pytest.mark.parametrize("kind", [Standalone, Facade], ids=lambda kind: kind.name)
def test_a_store_on_a_storage_that_fails_now_and_then_stays_right(kind: Any) -> None:
    seed = seed_of("faults")
    failures = commits = 0
    for number in range(8):
        rng = Random(seed + number)
        inner = MemoryStorage()
        time = FakeTime()
        with opened(kind, inner, time, CONF):
            pass
        faulty = FaultyStorage(inner, sleep=lambda seconds: None)
        states = {0: State()}
        with opened(kind, faulty, time, CONF) as db:
            faulty.plan = random_faults(rng, 0.08, PASSING)
            for step in range(25):
                time.now_ms += 10
                before = len(states)
                failures += not attempted(db, inner, states, ("k", step % 7), (step, "v"))
                commits += len(states) - before
                if step % 4 == 0:
                    failures += not maintained(db)
        with opened(kind, inner, time, CONF) as db:
            for version in db.versions.versions():
                assert contents(db.read(version)) == states[version].visible()
            assert max(db.versions.versions(), default=0) == max(states)
    print(f"{kind.name}: {commits} versions in spite of {failures} failures")
    assert failures
    assert commits > 100


def maintained(db: Any) -> bool:
    try:
        db.maintain()
    except HoldfastError:
        return False
    return True


def attempted(db: Any, inner: Any, states: dict[int, State], key: Any, value: Any) -> bool:
    """Put a row and commit, trying again after no answer; take note of what came of it."""
    try:
        store = db.update()
        store.put(key, value)
        state = states[store.version].put(key, value)
    except HoldfastError:
        return False
    version = store.version + 1
    for _ in range(4):
        try:
            assert store.commit() == version
        except HoldfastError as error:
            if isinstance(error, Conflict) or isinstance(error.__cause__, Conflict):
                break  # a stale listing named an old version
        else:
            states[version] = state
            return True
    store.abort()
    if version not in states and inner.size(f"versions/{version}") is not None:
        states[version] = state  # every answer was lost
    return False
