"""Crash at every call of the storage, reopen, compare with the oracle, crash again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import xxhash
from oracle import (
    KEY,
    VALUE,
    Facade,
    FakeTime,
    Standalone,
    State,
    contents,
    copy_of,
    keys_of,
    normal,
    opened,
    table_of,
)

from holdfast.backends.local import LocalStorage
from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.storage import Storage
from holdfast.testing.faults import CRASHES, Call, Crash, Fault, FaultyStorage, crash_at

KEEP = 3
EARNEST = 25
FIRST_CRASHES = 3
CONF = StateStoreConf(
    min_deltas_for_snapshot=3,
    min_versions_to_retain=KEEP,
    max_versions_to_retain_in_memory=1,
    pack_threshold_bytes=3000,
    grace_period_ms=0,
    merge_fanout=2,
    max_segments=4,
    maintenance_interval_ms=3_600_000,
)


@dataclass
class Run:
    """A scripted life of a store, and what it may rely on at each moment."""

    acknowledged: dict[int, State] = field(default_factory=lambda: {0: State()})
    attempted: tuple[int, State] | None = None
    removable: set[int] = field(default_factory=set)
    tags: dict[str, int] = field(default_factory=dict)
    process: int = 1

    @property
    def newest(self) -> int:
        return max(self.acknowledged)

    def copy(self) -> Run:
        return replace(
            self,
            acknowledged=dict(self.acknowledged),
            removable=set(self.removable),
            tags=dict(self.tags),
        )

    def script(self, db: Any) -> None:
        self.commit(db, [("put", (("a", 1), (1, "one"))), ("put", (("b", 2), (2, None)))])
        batch = [((f"k{i % 7}", i), (i, "x" * (i % 90))) for i in range(10, 70)]
        self.commit(db, [("put_many", batch), ("remove", ("a", 1))])
        self.abort(db)
        self.tag(db, "kept", 2)
        self.commit(db, [("remove_many", [key for key, _ in batch[:5]]), ("evict", 20)])
        self.commit(
            db, [("expiring", (("e", 500), (5, "soon"), 100)), ("put", (("b", 30), (3, "")))]
        )
        db.snapshot()
        self.commit(db, [("update_many", batch[20:40]), ("expire", 50)])
        self.clean(db)
        self.commit(db, [("expire", 100), ("put_many", batch[30:])])
        self.commit(db, [])
        self.clean(db)
        self.commit(db, [("put", (("last", 900), (9, "nine")))])

    def commit(self, db: Any, changes: list[tuple[str, Any]]) -> None:
        store = db.update()
        state = self.acknowledged[store.version]
        for verb, what in changes:
            state = change(store, state, verb, what)
        self.attempted = (store.version + 1, state)
        version = store.commit()
        self.acknowledged[version] = state
        self.attempted = None

    def abort(self, db: Any) -> None:
        store = db.update()
        store.put(("never", 1000), (0, None))
        store.abort()

    def tag(self, db: Any, name: str, version: int) -> None:
        db.tag(name, version)
        self.tags[name] = version

    def clean(self, db: Any) -> None:
        beyond = sorted(self.acknowledged)[:-KEEP]
        self.removable |= set(beyond) - set(self.tags.values())
        db.maintain()

    def check(self, kind: Any, storage: Storage) -> int:
        """Compare every version with the oracle and return the newest."""
        with opened(kind, storage, FakeTime(), CONF) as db:
            there = db.versions.versions()
            expected = dict(self.acknowledged)
            if self.attempted is not None and self.attempted[0] in there:
                expected[self.attempted[0]] = self.attempted[1]
            missing = set(expected) - set(there) - self.removable - {0}
            assert not missing, f"acknowledged versions are gone: {missing}"
            assert set(there) <= set(expected), "a version nobody committed"
            for version in there:
                compare(db.read(version), expected[version])
            found = db.versions.tags()
            assert self.tags.items() <= found.items()
            return max(there, default=0)

    def go_on(self, kind: Any, storage: Storage) -> None:
        """A new process takes over: it commits, maintains and reads."""
        self.process += 1
        newest = self.check(kind, storage)
        if self.attempted is not None and newest == self.attempted[0]:
            self.acknowledged[newest] = self.attempted[1]
        self.attempted = None
        with opened(kind, storage, FakeTime(self.process), CONF) as db:
            for number in range(2):
                self.commit(db, [("put", ((f"after{number}", 2000 + self.process), (number, "")))])
                self.clean(db)
        self.check(kind, storage)


def change(store: Any, state: State, verb: str, what: Any) -> State:
    """One change to a store and to the oracle."""
    if verb == "put":
        store.put(*what)
        return state.put(*what)
    if verb == "expiring":
        store.put(what[0], what[1], expires_ms=what[2])
        return state.put(*what)
    if verb == "remove":
        store.remove(what)
        return state.remove(what)
    if verb == "evict":
        store.evict(what)
        return state.evicted(what)
    if verb == "expire":
        store.expire(what)
        return state.expired(what)
    if verb == "remove_many":
        store.remove_many(keys_of(KEY, what))
        for key in what:
            state = state.remove(key)
        return state
    rows = table_of(KEY, VALUE, what)
    if verb == "put_many":
        store.put_many(rows)
    else:
        store.update_many(rows, lambda mine, found: mine.select(["v", "s"]))
    for key, value in what:
        state = state.put(key, value)
    return state


def compare(store: Any, state: State) -> None:
    expected = state.visible()
    assert contents(store) == expected
    assert store.metrics.num_keys == len(expected)
    keys = [row[0] for row in state.rows.values()]
    found = store.get_many(keys_of(KEY, keys))
    values = zip(found["v"].to_pylist(), found["s"].to_pylist(), strict=True)
    for key, there, value in zip(keys, found["_found"].to_pylist(), values, strict=True):
        assert there == (normal(key) in expected)
        if there:
            assert value == expected[normal(key)]


Remains = tuple[MemoryStorage, Run]
Work = Callable[[Storage, Run], None]


def life_of(kind: Any) -> Work:
    """The script, from an empty storage."""

    def work(storage: Storage, run: Run) -> None:
        with opened(kind, storage, FakeTime(process=1), CONF) as db:
            run.script(db)

    return work


def crashed(work: Work, start: Remains, number: int, fault: Fault) -> Remains:
    """What is left when the work dies at that call."""
    inner, run = copy_of(start[0]), start[1].copy()
    faulty = FaultyStorage(inner, crash_at(number, fault))
    with suppress(Crash):
        work(faulty, run)
    faulty.bury()
    return inner, run


def watched(work: Work, start: Remains) -> tuple[list[Call], list[Remains]]:
    """The calls of the work, and what there is before each of them and after the last."""
    inner, run = copy_of(start[0]), start[1].copy()
    remains: list[Remains] = []

    def look(call: Call) -> None:
        remains.append((copy_of(inner), run.copy()))

    faulty = FaultyStorage(inner, look)
    work(faulty, run)
    remains.append((copy_of(inner), run.copy()))
    return faulty.calls, remains


def all_remains(work: Work, start: Remains) -> Iterator[tuple[Call, Fault, Remains]]:
    """What each crash leaves: before each call, after it with the reply lost, and torn.

    A dead process does nothing more, so what a crash before a call leaves can be seen in one run
    that does not crash; after it the process has not heard of what the call did, and bytes of a
    blob that was not closed are not visible. Some are crashed in earnest all the same, and
    every call that makes a blob visible.
    """
    calls, remains = watched(work, start)
    for call, (before, run), (after, _) in zip(calls, remains, remains[1:], strict=False):
        yield call, Fault.CRASH_BEFORE, (before, run)
        yield call, Fault.CRASH_AFTER, (after, run)
        if call.operation in ("close", "create_if_absent"):
            torn = crashed(work, start, call.number, Fault.CRASH_TORN)
            yield call, Fault.CRASH_TORN, torn
        elif call.can_tear:
            yield call, Fault.CRASH_TORN, (before, run)
        if call.number % EARNEST == 0:
            for fault in CRASHES:
                yield call, fault, crashed(work, start, call.number, fault)


def fingerprint(storage: MemoryStorage, run: Run) -> str:
    digest = xxhash.xxh3_128()
    for path, blob in sorted(storage._blobs.items()):
        digest.update(path.encode() + b"\0")
        digest.update(blob)
    digest.update(
        repr(
            (run.process, run.newest, run.attempted is None, sorted(run.removable), run.tags)
        ).encode()
    )
    return digest.hexdigest()


@pytest.mark.parametrize("kind", [Standalone, Facade], ids=lambda kind: kind.name)
def test_every_acknowledged_version_survives_a_crash_at_any_call(kind: Any) -> None:
    operations: set[str] = set()
    seen: set[str] = set()
    count = 0
    for call, _, (inner, run) in all_remains(life_of(kind), (MemoryStorage(), Run())):
        count += 1
        operations.add(call.operation)
        state = fingerprint(inner, run)
        if state not in seen:
            seen.add(state)
            run.copy().go_on(kind, copy_of(inner))
    assert operations >= {"read", "list", "open_writer", "write", "close", "delete", "size"}
    print(
        f"\n{kind.name}: {call.number} calls, {count} crashes, {len(seen)} different remains, "
        "each reopened, compared and continued"
    )


@pytest.mark.parametrize("kind", [Standalone, Facade], ids=lambda kind: kind.name)
def test_recovery_survives_a_crash_at_any_of_its_own_calls(kind: Any) -> None:
    life = life_of(kind)
    calls, _ = watched(life, (MemoryStorage(), Run()))
    first = [call for call in calls if call.changes]
    total = distinct = 0
    for number, call in enumerate(first[len(first) // 3 :: max(1, len(first) // FIRST_CRASHES)]):
        how = (Fault.CRASH_AFTER, Fault.CRASH_TORN)[number % 2]
        start = crashed(life, (MemoryStorage(), Run()), call.number, how)
        seen: set[str] = set()
        recovery: Work = lambda storage, run: run.go_on(kind, storage)  # noqa: E731
        for _, _, (inner, run) in all_remains(recovery, start):
            total += 1
            state = fingerprint(inner, run)
            if state not in seen:
                seen.add(state)
                run.copy().go_on(kind, copy_of(inner))
        distinct += len(seen)
    print(f"\n{kind.name}: {total} second crashes, {distinct} different remains")


def test_a_local_disk_survives_a_sample_of_crashes(tmp_path: Path) -> None:
    calls, _ = watched(life_of(Standalone), (MemoryStorage(), Run()))
    ways = [(call, fault) for call in calls if call.changes for fault in CRASHES]
    chosen = ways[:: max(1, len(ways) // 30)]
    for call, fault in chosen:
        inner = LocalStorage(tmp_path / f"{call.number}-{fault.name}")
        faulty = FaultyStorage(inner, crash_at(call.number, fault))
        run = Run()
        with suppress(Crash):
            life_of(Standalone)(faulty, run)
        run.go_on(Standalone, inner)
        faulty.bury()
    print(f"\nlocal disk: {len(chosen)} crashes")
