"""Clean-up from outside: what goes, what stays, and that a writer beside it loses nothing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sites
from command_line import fails, run, run_json
from oracle import FakeTime
from sites import GRACE_MS, KEEP, blobs, clone, opened, planned, rows, site_of, write

import holdfast
from holdfast import admin
from holdfast.backends.memory import MemoryStorage
from holdfast.engine.files.filenames import done_path, operation_path
from holdfast.engine.storage import Storage
from holdfast.engine.versions.journal import Journal, OperationEntry
from holdfast.engine.versions.log import VersionLog
from holdfast.engine.versions.retention import Cleaner
from holdfast.errors import Corruption, InvalidArgument
from holdfast.reading import Root, verify
from holdfast.standalone import VersionedStore
from holdfast.testing.faults import CRASHES, Call, Crash, Fault, FaultyStorage, crash_at

HOUR_MS = 3_600_000


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage("a root")


@pytest.fixture
def time() -> FakeTime:
    return FakeTime(1)


def made(storage: Storage, time: FakeTime, versions: int = 8) -> dict[int, sites.Rows]:
    """A store with so many versions and a tag on 2; what each holds."""
    with opened(storage, time) as db:
        known: dict[int, sites.Rows] = {0: {}}
        wrote(db, known, *range(versions))
        db.tag("mine", 2)
    return known


def wrote(db: VersionedStore, known: dict[int, sites.Rows], *numbers: int) -> None:
    """Commit a version for each number, and keep what it holds."""
    for number in numbers:
        found = write(db, number)
        known[db.version] = found


def versions(storage: Storage) -> list[int]:
    return VersionLog(storage, FakeTime().runtime()).versions()


def journal(storage: Storage, time: FakeTime) -> list[OperationEntry]:
    return [line.entry for line in Journal(VersionLog(storage, time.runtime())).lines()]


def check(storage: Storage, known: dict[int, sites.Rows]) -> None:
    """Every version that is there reads as it was written, and has all its files."""
    with opened(storage, FakeTime()) as db:
        for version in versions(storage):
            assert rows(db, version) == known[version]
    assert verify(Root(storage)).intact


def test_a_plan_changes_nothing_and_says_what_its_run_removes(
    storage: MemoryStorage, time: FakeTime
) -> None:
    known = made(storage, time)
    time.now_ms += HOUR_MS
    before = blobs(storage)
    plan = planned(admin.gc, storage, time, reason="the disk is full")
    assert plan.todo.versions == [0, 1, 3, 4, 5]
    assert not plan.fences
    assert blobs(storage) == before
    done = plan.run()
    assert done.version is None
    assert done.detail["versions"] == [0, 1, 3, 4, 5]
    assert versions(storage) == [2, 6, 7, 8]
    check(storage, known)
    [entry] = journal(storage, time)
    assert (entry.kind, entry.version, entry.makes_version) == ("gc", 8, False)
    assert entry.reason == "the disk is full"
    assert entry.detail == {"versions": "0–1, 3–5", "files": 0, "size_bytes": 0}
    assert dict(plan.lines())["tags"] == "keep mine = 2"
    assert planned(admin.gc, storage, time).run().summary == "there was nothing to remove"
    assert len(journal(storage, time)) == 1


def test_files_and_bytes_in_the_plan_are_those_that_go(
    storage: MemoryStorage, time: FakeTime
) -> None:
    known = made(storage, time)
    with opened(storage, time) as db:
        db.maintain(snapshot=True)
        wrote(db, known, 9, 10)
        db.maintain(snapshot=True)
        wrote(db, known, 11, 12)
    time.now_ms += HOUR_MS
    storage.delete("tags/mine")
    plan, before = planned(admin.gc, storage, time), blobs(storage)
    plan.run()
    gone = {path: len(data) for path, data in before.items() if path not in blobs(storage)}
    files = {path: size for path, size in gone.items() if not path.startswith("versions/")}
    assert len(plan.json()["versions"]) == len(gone) - len(files) > 0
    assert plan.json()["files"] == len(files) > 0
    assert plan.json()["size_bytes"] == sum(files.values())
    check(storage, known)


def test_fewer_versions_than_the_writer_keeps_stay_if_that_is_asked_for(
    storage: MemoryStorage, time: FakeTime
) -> None:
    known = made(storage, time)
    time.now_ms += HOUR_MS
    assert planned(admin.gc, storage, time, keep=2).run().detail["versions"] == [0, 1, 3, 4, 5, 6]
    check(storage, known)
    with pytest.raises(InvalidArgument, match="At least 2 versions have to stay, not 1"):
        planned(admin.gc, storage, time, keep=1)


def test_a_version_stays_for_the_writers_grace_period_and_the_plan_says_so(
    storage: MemoryStorage, time: FakeTime
) -> None:
    known = made(storage, time)
    plan = planned(admin.gc, storage, time, keep=2)
    assert (plan.todo.versions, plan.grace_ms) == ([], GRACE_MS)
    assert sorted(plan.todo.waiting_versions) == [0, 1, 3, 4, 5, 6]
    assert dict(plan.lines())["waiting"].startswith("versions 0–1, 3–6, 0 files")
    plan.run()
    assert versions(storage) == list(known)
    time.now_ms = plan.todo.waiting_versions[0] - 100
    assert planned(admin.gc, storage, time, keep=2).todo.versions == []
    time.now_ms = plan.todo.waiting_versions[6]
    assert planned(admin.gc, storage, time, keep=2).todo.versions == [0, 1, 3, 4, 5, 6]


def merged(db: VersionedStore) -> list[str]:
    """Merge every partition of a store; the files that wait for its next commit."""
    for provider in db._providers:
        assert provider.do_snapshot(force=True)
    return sorted(db._waiting_files())


def test_merges_of_an_idle_writer_stay_and_its_next_version_reads_them(
    storage: MemoryStorage, time: FakeTime
) -> None:
    """The files are hours old, no version names them, and only the writer knows of them."""
    known = made(storage, time)
    with opened(storage, time) as db:
        waiting = merged(db)
        time.now_ms += 10 * HOUR_MS
        plan = planned(admin.gc, storage, time)
        assert sorted(plan.todo.spared_files) == waiting
        assert dict(plan.lines())["left"].startswith("2 files")
        plan.run()
        wrote(db, known, 20)
        assert set(waiting) <= db._manifest.files()
    check(storage, known)


def test_merges_that_can_be_committed_no_more_go(storage: MemoryStorage, time: FakeTime) -> None:
    made(storage, time)
    with opened(storage, time) as db:
        forgotten = merged(db)  # of a writer that died
    with opened(storage, time) as db:
        merged(db)
        write(db, 20)
        write(db, 21)
        merged(db)
        write(db, 22)
    time.now_ms += HOUR_MS
    planned(admin.gc, storage, time).run()
    assert not set(forgotten) & set(blobs(storage))


def test_what_is_prepared_for_the_next_version_stays_however_old_it_is(
    storage: MemoryStorage, time: FakeTime
) -> None:
    known = made(storage, time)
    with opened(storage, time) as db:
        update = db.update()
        update.put(("always",), (77,))
        for part in update._parts:
            part.commit()  # a task: it prepares
        time.now_ms += 10 * HOUR_MS
        planned(admin.gc, storage, time, keep=2).run()
        update.commit()
        known[db.version] = rows(db, db.version)
        assert known[db.version][("always",)] == (77,)
    check(storage, known)


def test_a_clean_up_at_any_moment_of_a_writers_life_costs_it_nothing(time: FakeTime) -> None:
    """A clean-up by others before each call of the storage, of a commit with merges in it."""
    start = MemoryStorage("start")
    known = made(start, time)
    time.now_ms += HOUR_MS

    def work(storage: Storage) -> dict[int, sites.Rows]:
        with opened(storage, FakeTime(7)) as db:
            found: dict[int, sites.Rows] = {}
            merged(db)
            wrote(db, found, 30)
            return found

    watched = FaultyStorage(clone(start))
    expected = known | work(watched)
    begun = next(call.number for call in watched.calls if call.operation == "open_writer")
    for number in range(begun, len(watched.calls) + 1):
        inner = clone(start)

        def clean(call: Call, at: int = number, inner: Storage = inner) -> Fault | None:
            if call.number == at:
                planned(admin.gc, inner, FakeTimeAt(time.now_ms + HOUR_MS), keep=2).run()
            return None

        assert known | work(FaultyStorage(inner, clean)) == expected
        check(inner, expected)
        newest = Root(inner).newest_readable()
        kinds = {ref.kind for _, _, entry in newest.partitions() for ref in entry.segments}
        assert "snapshot" in kinds, "the merges of the writer were of use"


class FakeTimeAt(FakeTime):
    """A clock that begins at a given time."""

    def __init__(self, now_ms: int) -> None:
        super().__init__()
        self.now_ms = now_ms


def left_behind(storage: Storage, time: FakeTime) -> dict[str, str]:
    """Traces of operations: their ids by what became of them."""
    found = Journal(VersionLog(storage, time.runtime()))
    site, ids = site_of(storage, time), {}
    for what, version in [("lost", 5), ("future", 9), ("done", 4), ("said", 3)]:
        entry = site.entry("rollback", version, None, {}, goes_back=True)
        found.begin(entry)
        ids[what] = entry.id
        if what == "done":
            found.done(entry)
    for what in ids:
        VersionLog(storage, time.runtime()).tag(f"rollback-{ids[what]}", 2)
    return ids


def test_traces_of_operations_that_ended_are_removed_after_the_grace_period(
    storage: MemoryStorage, time: FakeTime
) -> None:
    made(storage, time)
    ids = left_behind(storage, time)
    mine = {"mine": 2, "rollback-mine": 2, f"fork-{'e' * 32}": 2}
    for name in mine:
        VersionLog(storage, time.runtime()).tag(name, 2)
    young = planned(admin.gc, storage, time)
    assert (dict(young.findings.left_tags), young.findings.attempts) == ({}, ())
    time.now_ms += HOUR_MS
    done = planned(admin.gc, storage, time).run()
    ended = {ids[what] for what in ("lost", "said")}
    assert set(done.detail["attempts"]) == ended
    assert VersionLog(storage, time.runtime()).tags() == mine | {f"rollback-{ids['future']}": 2}
    left = {entry.id for entry in journal(storage, time) if entry.kind == "rollback"}
    assert left == {ids["future"], ids["done"]}


def test_an_attempt_whose_version_may_be_its_own_stays(
    storage: MemoryStorage, time: FakeTime
) -> None:
    """Its manifest was moved away, or is damaged: nobody can tell whose it was."""
    made(storage, time)
    entry = site_of(storage, time).entry("repair", 8, None, {})
    Journal(VersionLog(storage, time.runtime())).begin(entry)
    time.now_ms += HOUR_MS
    storage.write("versions/8.damaged", storage.read("versions/8"))
    storage.delete("versions/8")
    with opened(storage, time) as db:
        write(db, 40)  # version 8 again
    assert planned(admin.gc, storage, time).findings.attempts == ()
    storage.delete("versions/8.damaged")
    assert [e.id for e in planned(admin.gc, storage, time).findings.attempts] == [entry.id]


def test_the_journal_knows_that_an_operation_was_done_when_its_version_is_gone(
    storage: MemoryStorage, time: FakeTime
) -> None:
    """It crashed before it noted that, and only its manifest said so."""
    made(storage, time)
    site = site_of(storage, time)
    entry = site.entry("repair", 9, None, {})
    site.journal.begin(entry)
    newest = site.newest()
    log = VersionLog(storage, time.runtime())
    log.publish(
        replace(
            newest,
            version=9,
            parent=8,
            parent_commit_id=newest.commit_id,
            commit_id="c" * 32,
            operation=entry.json(),
        ),
        GRACE_MS,
        None,
    )
    with opened(storage, time) as db:
        for number in range(KEEP):
            write(db, number)
    time.now_ms += HOUR_MS
    Cleaner(log, time.runtime(), sites.CONF).clean()
    assert 9 not in versions(storage)
    assert storage.size(done_path(9, entry.id)) == 0
    planned(admin.gc, storage, time).run()
    assert storage.size(operation_path(9, entry.id)) is not None
    assert [line.is_done for line in Journal(log).lines()] == [True]


def test_a_damaged_tag_or_manifest_stops_it_before_anything_is_removed(
    storage: MemoryStorage, time: FakeTime
) -> None:
    made(storage, time)
    time.now_ms += HOUR_MS
    for path in ("tags/mine", "versions/4"):
        damaged = clone(storage)
        damaged.write(path, bytes(storage.read(path))[:-9] + b"x" * 9)
        before = blobs(damaged)
        with pytest.raises(Corruption):
            planned(admin.gc, damaged, time)
        assert blobs(damaged) == before


def cleaned(storage: Storage, time: FakeTime) -> None:
    planned(admin.gc, storage, time, keep=2).run()


def with_traces(time: FakeTime) -> tuple[MemoryStorage, dict[int, sites.Rows]]:
    """A root with something of everything to remove."""
    start = MemoryStorage("start")
    known = made(start, time)
    left_behind(start, time)
    with opened(start, time) as db:
        merged(db)
        wrote(db, known, 50, 51)
        merged(db)
        wrote(db, known, 52, 53)
    time.now_ms += HOUR_MS
    return start, known


def without_journal(storage: Storage) -> dict[str, bytes]:
    """The files of a root, entries that clean-up made left out."""
    own = {operation_path(e.version, e.id) for e in journal(storage, FakeTime()) if e.kind == "gc"}
    return {path: data for path, data in blobs(storage).items() if path not in own}


def test_a_crash_at_any_call_loses_nothing_and_the_next_run_ends_it(time: FakeTime) -> None:
    start, known = with_traces(time)
    watched = FaultyStorage(clone(start))
    cleaned(watched, FakeTimeAt(time.now_ms))
    expected = without_journal(watched.inner)
    assert set(expected) < set(blobs(start))
    for call in (call for call in watched.calls if call.changes):
        for fault in CRASHES:
            inner = clone(start)
            with pytest.raises(Crash):
                cleaned(FaultyStorage(inner, crash_at(call.number, fault)), FakeTimeAt(time.now_ms))
            check(inner, known)
            again = FaultyStorage(inner, crash_at(call.number // 2 + 1))
            with suppress(Crash):  # where less was left, it may be through before that
                cleaned(again, FakeTimeAt(time.now_ms))
            check(inner, known)
            cleaned(inner, FakeTimeAt(time.now_ms))
            cleaned(inner, FakeTimeAt(time.now_ms))
            assert without_journal(inner) == expected, f"{fault} at {call}"


def test_two_at_once_remove_the_same_and_nothing_else(time: FakeTime) -> None:
    start, known = with_traces(time)
    watched = FaultyStorage(clone(start))
    cleaned(watched, FakeTimeAt(time.now_ms))
    expected = without_journal(watched.inner)
    for number in range(1, len(watched.calls) + 1):
        inner = clone(start)

        def other(call: Call, at: int = number, inner: Storage = inner) -> Fault | None:
            if call.number == at:
                cleaned(inner, FakeTimeAt(time.now_ms))
            return None

        cleaned(FaultyStorage(inner, other), FakeTimeAt(time.now_ms))
        assert without_journal(inner) == expected
        check(inner, known)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "a 100% störe"
    conf: dict[str, Any] = {"min_versions_to_retain": 2, "grace_period_ms": 0}
    with holdfast.open(root, key="k string", value="v long", conf=conf) as db:
        for number in range(5):
            if number == 2:
                db.maintain(snapshot=True)
            with db.update() as update:
                update.put(("a",), (number,))
    return root


def test_the_command_line_shows_asks_and_cleans(store: Path) -> None:
    shown = run("gc", store, "--dry-run")
    assert "versions 1–3 of 5, 2 files" in shown
    assert "nothing was changed" in shown
    assert run_json("gc", store, "--dry-run")["versions"] == [1, 2, 3]
    assert "Add --yes" in fails("gc", store, code=2)
    assert "--keep" in fails("gc", store, "--keep", 1, code=2)
    assert run_json("gc", store, "--keep", 3, "--dry-run")["versions"] == [1, 2]
    assert "removed versions 1–3, 2 files (" in run("gc", store, "--yes", "--reason", "room")
    assert holdfast.reading.open_root(store).versions == (4, 5)
    assert "room" in run("history", store, "--operations")
    assert "nothing to remove" in run("gc", store, "--yes")
