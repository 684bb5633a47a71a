"""Merging from outside: one version with the same state, or a request that the writer takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sample_roots
import sites
from command_line import fails, run, run_json
from oracle import FakeTime
from sites import blobs, clone, opened, planned, rows, write

import holdfast
from holdfast import admin
from holdfast.backends.local import LocalStorage
from holdfast.backends.memory import MemoryStorage
from holdfast.engine.files.filenames import REQUESTS, delivered_path, request_path
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.storage import Storage
from holdfast.engine.versions.journal import Journal, JournalLine
from holdfast.engine.versions.log import VersionLog
from holdfast.engine.versions.requests import leave_request
from holdfast.errors import Conflict, Corruption, IllegalState, InvalidArgument
from holdfast.reading import Root, verify
from holdfast.standalone import VersionedStore
from holdfast.testing.faults import CRASHES, Call, Crash, Fault, FaultyStorage, crash_at

HOUR_MS = 3_600_000
ID = "d" * 32


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage("a root")


@pytest.fixture
def time() -> FakeTime:
    return FakeTime(1)


def made(storage: Storage, time: FakeTime, versions: int = 5) -> sites.Rows:
    """A store with so many versions; what its newest one holds."""
    with opened(storage, time) as db:
        for number in range(versions):
            found = write(db, number)
    return found


def log_of(storage: Storage) -> VersionLog:
    return VersionLog(storage, FakeTime().runtime())


def newest(storage: Storage) -> Manifest:
    log = log_of(storage)
    return log.load(log.versions()[-1])


def kinds(storage: Storage) -> list[list[str]]:
    """The segments of each partition, newest first."""
    return [[ref.kind for ref in part.segments] for _, _, part in newest(storage).partitions()]


def journal(storage: Storage) -> list[JournalLine]:
    return Journal(log_of(storage)).lines()


def changes(storage: Storage, old: int, new: int) -> int:
    return Root(storage).store().diff(old, new).total


def test_every_partition_becomes_one_segment_in_a_version_without_changes(
    storage: MemoryStorage, time: FakeTime
) -> None:
    expected = made(storage, time)
    before = blobs(storage)
    plan = planned(admin.compact, storage, time, reason="reads are slow")
    assert plan.fences
    assert (plan.base, len(plan.partitions), plan.merged, plan.foreign) == (5, 2, 0, 0)
    assert blobs(storage) == before
    told: list[tuple[int, int]] = []
    done = plan.run(lambda at, total, path: told.append((at, total)))
    assert (done.version, done.detail) == (6, {"merged": 2, "left": 0})
    assert told[0] == (0, plan.size_bytes)
    assert told[-1] == (plan.size_bytes, plan.size_bytes)
    assert kinds(storage) == [["snapshot"], ["snapshot"]]
    with opened(storage, time) as db:
        assert rows(db, 6) == rows(db, 5) == expected
    assert changes(storage, 5, 6) == 0
    assert verify(Root(storage)).intact
    manifest = newest(storage)
    assert (manifest.lineage, manifest.delivered_through, manifest.counts) == (0, 6, False)
    [line] = journal(storage)
    assert line.is_done
    assert (line.entry.kind, line.entry.version, line.entry.reason) == (
        "compact",
        6,
        "reads are slow",
    )
    assert manifest.operation == line.entry.json()


def test_what_is_merged_already_makes_no_version(storage: MemoryStorage, time: FakeTime) -> None:
    made(storage, time)
    planned(admin.compact, storage, time).run()
    before = blobs(storage)
    plan = planned(admin.compact, storage, time)
    assert (plan.is_void, plan.merged) == (True, 2)
    assert plan.run().summary == "there was nothing to merge"
    assert planned(admin.compact, storage, time, request=True).run().version is None
    assert blobs(storage) == before


def test_a_partition_alone_can_be_chosen_and_one_that_is_not_there_is_refused(
    storage: MemoryStorage, time: FakeTime
) -> None:
    made(storage, time)
    before = kinds(storage)
    planned(admin.compact, storage, time, operator=0, store="default", partition=1).run()
    assert kinds(storage) == [before[0], ["snapshot"]]
    for choice in ({"partition": 2}, {"operator": 1}, {"store": "other"}):
        with pytest.raises(InvalidArgument, match="has nothing like that"):
            planned(admin.compact, storage, time, **choice)


def test_a_writer_beside_it_stops_with_conflict_and_the_next_one_continues(
    storage: MemoryStorage, time: FakeTime
) -> None:
    made(storage, time)
    with opened(storage, time) as db:
        update = db.update()
        update.put(("always",), (77,))
        planned(admin.compact, storage, time).run()
        with pytest.raises(Conflict):
            update.commit()
    with opened(storage, time) as db:
        found = write(db, 78)
        assert rows(db, 7) == found
    assert verify(Root(storage)).intact


def test_a_version_that_is_committed_after_the_plan_is_a_conflict(
    storage: MemoryStorage, time: FakeTime
) -> None:
    made(storage, time)
    plan = planned(admin.compact, storage, time)
    with opened(storage, time) as db:
        write(db, 9)
    with pytest.raises(Conflict, match="was at version 5 when this was planned"):
        plan.run()
    assert newest(storage).version == 6
    assert journal(storage) == []


def test_damage_is_named_and_no_version_is_made(storage: MemoryStorage, time: FakeTime) -> None:
    made(storage, time)
    path = sorted(p for p in blobs(storage) if p.endswith(".delta"))[0]
    for each in (path, f"{path}.copy"):
        storage.delete(each)
    with pytest.raises(Corruption, match=path.rpartition("/")[2]):
        planned(admin.compact, storage, time).run()
    assert newest(storage).version == 5
    assert [line.is_done for line in journal(storage)] == [False]
    storage.write("versions/5", b"damaged")
    with pytest.raises(Corruption):
        planned(admin.compact, storage, time)


def compacted(storage: Storage, time: FakeTime) -> None:
    planned(admin.compact, storage, time).run()


def test_a_crash_at_any_call_leaves_the_state_and_the_next_run_merges(time: FakeTime) -> None:
    start = MemoryStorage("start")
    expected = made(start, time)
    watched = FaultyStorage(clone(start))
    compacted(watched, FakeTime())
    for call in (call for call in watched.calls if call.changes):
        for fault in CRASHES:
            inner = clone(start)
            with pytest.raises(Crash):
                compacted(FaultyStorage(inner, crash_at(call.number, fault)), FakeTime())
            assert newest(inner).version in (5, 6)
            if newest(inner).version == 5:
                again = FaultyStorage(inner, crash_at(call.number))
                with pytest.raises(Crash):
                    compacted(again, FakeTime())
            compacted(inner, FakeTime())
            assert kinds(inner) == [["snapshot"], ["snapshot"]]
            assert newest(inner).version == 6
            with opened(inner, FakeTime()) as db:
                assert rows(db, 6) == rows(db, 5) == expected
            assert verify(Root(inner)).intact
            done = [line for line in journal(inner) if line.is_done]
            assert [line.entry.version for line in done] == [6]


def test_of_two_at_once_one_is_a_conflict_and_the_state_is_merged_once(time: FakeTime) -> None:
    start = MemoryStorage("start")
    expected = made(start, time)
    watched = FaultyStorage(clone(start))
    compacted(watched, FakeTime())
    outcomes = set()
    for number in range(1, len(watched.calls) + 1):
        inner = clone(start)

        def other(call: Call, at: int = number, inner: Storage = inner) -> Fault | None:
            if call.number == at:
                compacted(inner, FakeTime())
            return None

        try:
            compacted(FaultyStorage(inner, other), FakeTime())
            outcomes.add("done")  # or nothing was left to do
        except Conflict:
            outcomes.add("conflict")
        assert newest(inner).version == 6
        assert kinds(inner) == [["snapshot"], ["snapshot"]]
        with opened(inner, FakeTime()) as db:
            assert rows(db, 6) == expected
        assert verify(Root(inner)).intact
    assert "conflict" in outcomes


def test_merges_that_a_writer_cleans_away_meanwhile_are_left_out_and_told(
    storage: MemoryStorage, time: FakeTime
) -> None:
    """A writer that has not noticed the operation takes its files for those of a dead one."""
    expected = made(storage, time)
    time.now_ms += HOUR_MS
    db = opened(storage, time)

    def clean(call: Call) -> Fault | None:
        if call.operation == "size" and call.path.endswith(".snapshot"):
            db._cleaner.clean()
        return None

    done = planned(admin.compact, FaultyStorage(storage, clean), time).run()
    assert done.detail["left"] > 0
    assert "run it again" in done.summary
    db.close()
    with opened(storage, time) as db:
        assert rows(db, 6) == expected
    assert verify(Root(storage)).intact


# -- delivery --------------------------------------------------------------------------------------


def test_it_is_refused_over_a_version_that_the_sink_may_lack(tmp_path: Path) -> None:
    root = sample_roots.query(tmp_path / "a quéry")
    manifest = newest(LocalStorage(root))
    with pytest.raises(IllegalState, match="not known to have reached the sink"):
        admin.compact(root)
    assert admin.compact(root, request=True).partitions, "a request leaves that to the driver"
    LocalStorage(root).create_if_absent(delivered_path(2, manifest.commit_id), b"")
    done = admin.compact(root, operator=1).run()
    assert done.version == 3
    segments = {
        (operator, name): {len(part.segments) for part in store.partitions}
        for operator, stores in newest(LocalStorage(root)).operators.items()
        for name, store in stores.items()
    }
    assert segments == {(0, "default"): {2}, (1, "left"): {1}, (1, "right"): {1}}
    made = newest(LocalStorage(root))
    assert (made.batch, made.watermark) == (manifest.batch, manifest.watermark)
    assert admin.compact(root).run().version == 4, "its own version has nothing to deliver"


# -- requests --------------------------------------------------------------------------------------


def requests(storage: Storage) -> list[str]:
    return [blob.path for blob in storage.list(REQUESTS)]


def test_a_request_is_taken_by_the_writer_and_removed_with_the_version_that_has_the_merges(
    storage: MemoryStorage, time: FakeTime
) -> None:
    made(storage, time)
    with opened(storage, time) as db:
        plan = planned(admin.compact, storage, time, request=True, reason="by night")
        assert not plan.fences
        done = plan.run()
        assert (done.version, requests(storage)) == (None, [request_path(done.detail["request"])])
        [line] = journal(storage)
        assert (line.entry.makes_version, line.is_done) == (False, True)
        db.maintain()
        assert newest(storage).version == 5
        assert len(requests(storage)) == 1, "until a version has the merges"
        expected = write(db, 9)
        assert requests(storage) == []
        assert [each[-1] for each in kinds(storage)] == ["snapshot", "snapshot"]
        assert max(map(len, kinds(storage))) == 2
        assert rows(db, 6) == expected
    assert verify(Root(storage)).intact


def test_a_request_for_one_partition_leaves_the_others(
    storage: MemoryStorage, time: FakeTime
) -> None:
    made(storage, time)
    before = kinds(storage)
    planned(admin.compact, storage, time, request=True, partition=1).run()
    with opened(storage, time) as db:
        db.maintain()
        write(db, 9)
    assert requests(storage) == []
    assert kinds(storage)[1][-1] == "snapshot"
    assert kinds(storage)[0][-len(before[0]) :] == before[0]


def test_a_request_stays_until_a_writer_comes_and_survives_one_that_dies(
    storage: MemoryStorage, time: FakeTime
) -> None:
    made(storage, time)
    planned(admin.compact, storage, time, request=True).run()
    with opened(storage, time) as db:
        db.maintain()  # and no version follows
    assert len(requests(storage)) == 1
    time.now_ms += HOUR_MS
    planned(admin.gc, storage, time).run()
    assert len(requests(storage)) == 1, "clean-up leaves it"
    with opened(storage, time) as db:
        db.maintain()
        write(db, 9)
    assert requests(storage) == []
    assert [each[-1] for each in kinds(storage)] == ["snapshot", "snapshot"]


def test_a_request_that_was_overtaken_or_asks_for_what_is_not_there_is_removed(
    storage: MemoryStorage, time: FakeTime
) -> None:
    made(storage, time)
    planned(admin.compact, storage, time, request=True).run()
    planned(admin.compact, storage, time).run()
    leave_request(storage, ID, [(7, "other", 3)], 0)
    with opened(storage, time) as db:
        db.maintain()
    assert requests(storage) == []


def test_a_damaged_request_asks_for_nothing_and_one_of_a_later_release_stays(
    storage: MemoryStorage, time: FakeTime
) -> None:
    made(storage, time, versions=2)
    later = request_path("e" * 32)
    storage.write(request_path(ID), b'{"places": 7')
    storage.write(later, json.dumps({"format": 2, "places": "all"}).encode())
    storage.write(f"{REQUESTS}/notes.txt", b"of somebody else")
    with opened(storage, time) as db:
        db.maintain()
        write(db, 9)
    assert requests(storage) == [later, f"{REQUESTS}/notes.txt"]
    assert {kind for each in kinds(storage) for kind in each} == {"delta"}


def test_a_storage_that_fails_at_a_request_costs_no_commit(
    storage: MemoryStorage, time: FakeTime
) -> None:
    made(storage, time)
    planned(admin.compact, storage, time, request=True).run()
    failing = {"delete": True, "list": False}

    def fails_at_requests(call: Call) -> Fault | None:
        is_request = call.path.startswith(REQUESTS)
        return Fault.ERROR if is_request and failing.get(call.operation) else None

    with opened(FaultyStorage(storage, fails_at_requests), time) as db:
        failing["list"] = True
        db.maintain()
        failing["list"] = False
        db.maintain()
        expected = write(db, 9)
        assert rows(db, 6) == expected
        assert len(requests(storage)) == 1
        failing["delete"] = False
        db.maintain()
        write(db, 10)
    assert requests(storage) == []


# -- the command line ------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "a 100% störe"
    conf: dict[str, Any] = {"pack_threshold_bytes": 0}
    with holdfast.open(root, key="k string", value="v long", conf=conf) as db:
        for number in range(3):
            commit(db, number)
    return root


def commit(db: VersionedStore, number: int) -> None:
    with db.update() as update:
        update.put(("a",), (number,))


def test_the_command_line_shows_asks_and_merges(store: Path) -> None:
    shown = run("compact", store, "--dry-run")
    assert "1 partition of version 3: 3 segments" in shown
    assert "a driver that still runs stops with Conflict" in shown
    assert "Add --yes" in fails("compact", store, code=2)
    assert run_json("compact", store, "--dry-run")["partitions"][0]["segments"] == 3
    assert "without one, the next start does it" in run("compact", store, "--request", "--dry-run")
    assert "will be merged by whoever writes" in run("compact", store, "--request", "--yes")
    done = run("compact", store, "--partition", 0, "--yes", "--reason", "room")
    assert "1 partition merged into one segment each, as version 4" in done
    assert "nothing to merge" in run("compact", store, "--yes")
    assert "has nothing like that" in fails("compact", store, "--partition", 3, code=2)
    listed = run_json("history", store, "--operations")["operations"]
    assert [(each["kind"], each["version"], each["done"]) for each in listed] == [
        ("compact", 4, True),
        ("compact", 3, True),
    ]
