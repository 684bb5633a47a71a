"""A copy is whole or is not opened, whatever fails, goes or is in the way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import sample_roots
import xxhash
from copies import MAKERS, RUNTIME, assert_unfinished, blobs, calls_of, clone, half_copied, opened

import holdfast
from holdfast import admin, reading
from holdfast.admin import copy_transfer, plan_copy
from holdfast.admin.copy_ends import check_places, choose_versions
from holdfast.backends.fsspec import FsspecStorage
from holdfast.backends.local import LocalStorage
from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.files.filenames import COPYING, data_file, delivered_path, outbox_path
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.storage import Storage, TooLarge
from holdfast.engine.versions.journal import Journal
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import (
    Conflict,
    Corruption,
    IllegalState,
    InvalidArgument,
    Unavailable,
    VersionNotFound,
)
from holdfast.standalone import open_on
from holdfast.testing.faults import Call, Crash, FaultyStorage, crash_at


@pytest.fixture
def shop(tmp_path: Path) -> LocalStorage:
    """Versions 0 to 4, a tag on 2."""
    return LocalStorage(sample_roots.shop(tmp_path / "shop"))


@pytest.fixture
def merged(tmp_path: Path) -> LocalStorage:
    """Versions 0 to 7, segments in files of their own, a snapshot with fallbacks."""
    return LocalStorage(sample_roots.merged_shop(tmp_path / "merged"))


def commit(storage: Storage, user: str, total: int) -> None:
    with open_on(storage, RUNTIME) as db, db.update() as store:
        store.put((user,), (total,))


# -- what is copied ------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["memory", "local"])
@pytest.mark.parametrize("at", ["memory", "local"])
@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_copy_holds_the_same_files_and_reads_the_same(
    tmp_path: Path, kind: str, at: str, to: str
) -> None:
    made = LocalStorage(MAKERS[kind](tmp_path / "made"))
    source: Storage = made if at == "local" else clone(made)
    target: Storage = LocalStorage(tmp_path / "copy") if to == "local" else MemoryStorage("copy")
    copying = plan_copy(source, target)
    assert blobs(target) == {}, "planning wrote something"
    copied = copying.run()
    assert blobs(target) == blobs(source)
    assert copied.versions == copying.plan.versions == tuple(opened(target))
    assert copied.written_files == copying.plan.files
    assert copied.written_bytes == copying.plan.size_bytes
    result = reading.verify(reading.Root(target))
    assert result.intact
    assert result.readable == copied.versions


def test_copy_is_gone_on_with_and_reads_old_versions(shop: LocalStorage) -> None:
    target = MemoryStorage("new")
    plan_copy(shop, target).run()
    commit(target, "Kun", 300)
    with open_on(target, RUNTIME) as db:
        assert (db.version, db.get(("Kun",)), db.at(2).get(("Jade",))) == (5, (300,), (800,))
        assert db.tags == {"two-users": 2}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ((), [1, 2, 3, 5, 8]),
        (("newest",), [8]),
        (("3",), [3]),
        (("2..5",), [2, 3, 5]),
        (("3..",), [3, 5, 8]),
        (("..2", "newest"), [1, 2, 8]),
        (("kept", "1"), [1, 5]),
        ((" 2 ", "2..3"), [2, 3]),
    ],
)
def test_versions_are_chosen_by_number_range_and_tag(
    wanted: tuple[str, ...], expected: list[int]
) -> None:
    assert choose_versions([1, 2, 3, 5, 8], {"kept": 5}, wanted, "totals") == expected


@pytest.mark.parametrize("wanted", ["4", "9..", "6..7", "lost", "..", "a..b", "1..x", ""])
def test_versions_that_are_not_there_are_refused_with_those_there_are(wanted: str) -> None:
    with pytest.raises(VersionNotFound, match=r"from 1 to 8, and the tags: kept"):
        choose_versions([1, 2, 3, 5, 8], {"kept": 5}, [wanted], "totals")


def test_some_versions_bring_only_their_files_and_tags(shop: LocalStorage) -> None:
    newest, tagged = MemoryStorage("newest"), MemoryStorage("tagged")
    assert plan_copy(shop, newest, ["newest"]).run().tags == {}
    assert opened(newest) == [4]
    assert plan_copy(shop, tagged, ["1..2"]).run().tags == {"two-users": 2}
    assert opened(tagged) == [1, 2]
    assert sum(path.startswith("packs/") for path in blobs(tagged)) == 2
    for target in (newest, tagged):
        assert reading.verify(reading.Root(target)).intact


def operations(storage: Storage) -> list[tuple[str, int, bool]]:
    lines = Journal(VersionLog(storage, RUNTIME)).lines()
    return [(line.entry.kind, line.entry.version, line.is_done) for line in lines]


def test_the_journal_comes_along_up_to_the_newest_version_that_is_copied(tmp_path: Path) -> None:
    source = LocalStorage(sample_roots.rolled_back_shop(tmp_path / "shop"))
    whole, earlier = MemoryStorage("whole"), MemoryStorage("earlier")
    plan_copy(source, whole).run()
    plan_copy(source, earlier, ["..4"]).run()
    assert operations(whole) == operations(source) == [("rollback", 5, True), ("tag", 4, True)]
    assert operations(earlier) == [("tag", 4, True)]
    root = reading.Root(whole)
    assert [root.manifest(version).lineage for version in root.versions] == [0] * 5 + [1, 1]
    with open_on(whole, RUNTIME) as db:
        assert (db.version, db.get(("Sankar",)), db.get(("Jade",))) == (6, (300,), (800,))
        assert db.at(4).get(("Kun",)) == (100,)


def test_a_copy_catches_up_across_a_rollback_and_with_the_journal_alone(
    shop: LocalStorage,
) -> None:
    copy = MemoryStorage("copy")
    plan_copy(shop, copy).run()
    admin.rollback(shop.location, 2).run()
    commit(shop, "Kun", 7)
    plan_copy(shop, copy).run()
    assert opened(copy) == [0, 1, 2, 3, 4, 5, 6]
    admin.tag(shop.location, "later", 6).run()
    path = next(p for p in blobs(shop) if p.startswith("operations/6-"))
    copying = plan_copy(shop, copy)
    assert not copying.plan.is_done
    copying.run()
    assert operations(copy) == operations(shop)
    damaged = MemoryStorage("damaged")
    damaged.create_if_absent(path, b"half")
    with pytest.raises(InvalidArgument, match="is not empty"):
        plan_copy(shop, damaged)


def test_a_damaged_entry_of_the_journal_at_the_target_is_written_again(
    shop: LocalStorage,
) -> None:
    admin.tag(shop.location, "later", 4).run()
    path = next(p for p in blobs(shop) if p.startswith("operations/"))
    half = half_copied(shop, 12)
    half.create_if_absent(path, b"x" * 20)
    plan_copy(shop, half).run()
    assert blobs(half) == blobs(shop)


def test_files_that_belong_to_the_place_or_to_nobody_stay_behind(shop: LocalStorage) -> None:
    stray = {
        "place": b"0" * 32,
        f"retiring/{'1' * 32}": b'{"versions": []}',
        "delivered/3": b"",
        f"packs/9-{'2' * 32}.pack": b"an attempt",
        "notes.txt": b"mine",
    }
    expected = blobs(shop)
    for path, data in stray.items():
        shop.create_if_absent(path, data)
    target = MemoryStorage("new")
    plan_copy(shop, target).run()
    assert blobs(target) == expected


def test_pieces_of_a_large_file_make_it_whole(
    merged: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_transfer, "_PIECE_BYTES", 100)
    target = MemoryStorage("new")
    plan_copy(merged, target).run()
    assert blobs(target) == blobs(merged)


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_files_too_large_for_memory_are_checked_in_parts(tmp_path: Path, kind: str) -> None:
    class Small(MemoryStorage):
        def read(self, path: str) -> pa.Buffer:
            if data_file(path) is not None:
                raise TooLarge(path)
            return super().read(path)

        def read_range(self, path: str, start: int, stop: int) -> pa.Buffer:
            return super().read(path)[start:stop]

    source, target = LocalStorage(MAKERS[kind](tmp_path / "made")), Small("small")
    plan_copy(source, target).run()
    again = MemoryStorage("again")
    plan_copy(target, again).run()
    assert blobs(again) == blobs(source)


def test_progress_ends_with_every_byte(merged: LocalStorage) -> None:
    told: list[tuple[int, int, str]] = []
    copying = plan_copy(merged, MemoryStorage("new"))
    copying.run(lambda *what: told.append(what))
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert told[-1][:2] == (copying.plan.size_bytes,) * 2


# -- going on ------------------------------------------------------------------------------------


def test_going_on_keeps_good_files_and_writes_damaged_ones_again(merged: LocalStorage) -> None:
    target = MemoryStorage("target")
    calls = calls_of(lambda to: plan_copy(merged, to, threads=1).run())
    commits = [c.number for c in calls if c.operation == "create_if_absent"]
    with pytest.raises(Crash):
        plan_copy(merged, FaultyStorage(target, crash_at(commits[1])), threads=1).run()
    path = next(path for path in blobs(target) if path.endswith(".delta"))
    data = bytearray(target.read(path))
    data[100] ^= 0xFF
    target.delete(path)
    target.create_if_absent(path, bytes(data))
    again = plan_copy(merged, target)
    assert again.plan.resumes
    manifests = len(opened(merged))
    assert again.plan.present_files == again.plan.files - manifests
    copied = again.run()
    left = again.plan.files - manifests - 1
    assert (copied.written_files, copied.kept_files) == (1 + manifests, left)
    assert blobs(target) == blobs(merged)


def test_a_finished_copy_is_left_as_it_is(merged: LocalStorage) -> None:
    target = FaultyStorage(MemoryStorage("target"))
    plan_copy(merged, target).run()
    before = len(target.calls)
    again = plan_copy(merged, target)
    assert again.plan.is_done
    copied = again.run()
    assert (copied.written_files, copied.versions) == (0, tuple(range(8)))
    assert not any(call.changes for call in target.calls[before:])


def test_a_copy_catches_up_with_what_was_committed_since(shop: LocalStorage) -> None:
    target = MemoryStorage("target")
    plan_copy(shop, target, ["2..3"]).run()
    commit(shop, "Kun", 300)
    copied = plan_copy(shop, target, ["3.."]).run()
    # The pack of the sample's version 4, that of version 5 with its second copy, two manifests.
    assert (copied.versions, copied.written_files) == ((3, 4, 5), 5)
    assert opened(target) == [2, 3, 4, 5]
    assert reading.verify(reading.Root(target)).intact


# -- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_a_damaged_source_is_named_and_nothing_is_committed(
    merged: LocalStorage, damage: str
) -> None:
    target = MemoryStorage("target")
    newest = VersionLog(merged, RUNTIME).load(7)
    path = next(p for p in sorted(newest.files()) if p.startswith("0/0/7-"))
    file = Path(merged.location) / path
    if damage == "flipped":
        sample_roots.flip_byte(file)
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:-10])
    else:
        file.unlink()
    with pytest.raises(Corruption, match=r"is damaged: .* It is part of version 7") as caught:
        plan_copy(merged, target).run()
    assert path in caught.value.message
    assert_unfinished(target)
    assert not any(p.startswith("versions/") and p != COPYING for p in blobs(target))
    assert path not in blobs(target)
    assert plan_copy(merged, target, ["..6"]).run().versions == tuple(range(7))
    assert reading.verify(reading.Root(target)).intact


def test_a_target_that_alters_what_is_written_is_told_from_a_damaged_source(
    merged: LocalStorage,
) -> None:
    class Careless(MemoryStorage):
        def store(self, path: str, data: pa.Buffer) -> None:
            altered = bytearray(data)
            altered[50] ^= 0xFF
            super().store(path, pa.py_buffer(bytes(altered)))

    with pytest.raises(Unavailable, match="does not give back 0/0/"):
        plan_copy(merged, Careless("careless"), threads=1).run()


def test_a_damaged_mark_is_refused(shop: LocalStorage) -> None:
    target = MemoryStorage("target")
    target.create_if_absent(COPYING, b"{}")
    with pytest.raises(Corruption, match="the copy cannot be resumed"):
        plan_copy(shop, target)


# -- a source in use ------------------------------------------------------------------------------


def meanwhile(storage: Storage, operation: str, work: Callable[[], object]) -> FaultyStorage:
    """A storage on which something happens once, before the first call of a kind."""
    done: list[bool] = []

    def plan(call: Call) -> None:
        if call.operation == operation and not call.path.startswith("versions/") and not done:
            done.append(True)
            work()

    return FaultyStorage(storage, plan)


def use(storage: Storage, commits: int, keep: int = 2) -> None:
    """A stream of commits that snapshots and retains little: old files soon go."""
    conf = StateStoreConf(
        min_deltas_for_snapshot=2,
        min_versions_to_retain=keep,
        grace_period_ms=0,
        merge_fanout=2,
        pack_threshold_bytes=0,
    )
    with open_on(storage, RUNTIME, conf=conf) as db:
        for total in range(commits):
            with db.update() as store:
                store.put(("Kun",), (total,))
            db.maintain()


def test_versions_that_retention_removes_meanwhile_are_left_out_and_told(
    shop: LocalStorage,
) -> None:
    use(shop, 12, keep=10)
    listed = opened(shop)
    newest = listed[-1]
    VersionLog(shop, RUNTIME).tag("newest", newest)
    target = meanwhile(MemoryStorage("other"), "open_writer", lambda: use(shop, 12))
    copied = plan_copy(shop, target, threads=1).run()
    assert set(copied.versions) == set(listed) - set(copied.vanished) == set(opened(target))
    assert copied.vanished
    assert {2, newest} <= set(copied.versions)
    assert copied.tags == {"two-users": 2, "newest": newest}
    assert reading.verify(reading.Root(target.inner)).intact


def test_a_copy_whose_newest_version_went_takes_the_newest_when_run_again(
    shop: LocalStorage,
) -> None:
    use(shop, 8)
    target = MemoryStorage("new")
    watched = meanwhile(target, "open_writer", lambda: use(shop, 12))
    with pytest.raises(VersionNotFound, match="Run the same copy again"):
        plan_copy(shop, watched, threads=1).run()
    assert_unfinished(target)
    copied = plan_copy(shop, target).run()
    assert copied.versions == tuple(opened(shop)) == tuple(opened(target))
    assert reading.verify(reading.Root(target)).intact


def test_copies_of_a_root_under_use_are_whole_or_say_why_not(
    merged: LocalStorage, tmp_path: Path
) -> None:
    stopping, whole, refused = threading.Event(), 0, []

    def writes() -> None:
        while not stopping.is_set():
            use(merged, 1, keep=4)

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(writes)
        for number in range(16):
            target = LocalStorage(tmp_path / f"live-{number // 2}")
            try:
                plan_copy(merged, target).run()
            except VersionNotFound:
                assert_unfinished(target)
            except InvalidArgument as error:
                refused.append(error.message)  # all that was copied before is gone at the source
            else:
                whole += 1
                assert reading.verify(reading.Root(target)).intact
        stopping.set()
        writer.result()
    assert whole
    assert all("does not have" in text or "are gone there" in text for text in refused)
    last = LocalStorage(tmp_path / "last")
    assert plan_copy(merged, last).run().versions == tuple(opened(merged))


def test_an_unfinished_copy_of_versions_that_are_all_gone_is_refused(merged: LocalStorage) -> None:
    target = MemoryStorage("new")
    with pytest.raises(Crash):
        plan_copy(merged, FaultyStorage(target, crash_at(12)), ["newest"], threads=1).run()
    use(merged, 8)
    with pytest.raises(InvalidArgument, match="versions that are gone there"):
        plan_copy(merged, target)


def test_an_unfinished_copy_goes_on_from_a_source_that_went_on(shop: LocalStorage) -> None:
    target = half_copied(shop, 12)
    commit(shop, "Kun", 300)
    copied = plan_copy(shop, target).run()
    assert copied.versions == (0, 1, 2, 3, 4, 5)
    assert blobs(target) == blobs(shop)


# -- output that waits ----------------------------------------------------------------------------


def with_outbox(storage: Storage) -> Manifest:
    """A version of a query after the newest, with rows that wait to be delivered."""
    log = VersionLog(storage, RUNTIME)
    newest = log.load(log.versions()[-1])
    path, body = outbox_path(newest.version + 1, "a" * 32), b"rows"
    storage.write(path, body)
    part = {"partition": 0, "rows": 1, "path": path, "offset": 0, "size": 4,
            "checksum": xxhash.xxh3_64_hexdigest(body)}  # fmt: skip
    return log.publish(following(newest, outbox=(part,)), 1, RUNTIME.monotonic_ms())


def following(newest: Manifest, **changes: object) -> Manifest:
    return replace(
        newest,
        version=newest.version + 1,
        parent=newest.version,
        parent_commit_id=newest.commit_id,
        commit_id=RUNTIME.new_id(),
        scope={"kind": "query", "id": "q"},
        **changes,  # type: ignore[arg-type]
    )


def test_output_that_waits_comes_along_and_is_checked(shop: LocalStorage) -> None:
    newest, target = with_outbox(shop), MemoryStorage("new")
    path = newest.outbox[0]["path"]
    shop.create_if_absent(delivered_path(5, "of another version 5"), b"")
    plan_copy(shop, target).run()
    assert bytes(target.read(path)) == b"rows"
    assert target.list("delivered") == []
    (Path(shop.location) / path).write_bytes(b"sows")
    with pytest.raises(Corruption, match=r"outbox/.*is damaged: its output"):
        plan_copy(shop, MemoryStorage("other")).run()


@pytest.mark.parametrize("is_old", [True, False])
def test_output_that_was_delivered_stays_behind_and_is_not_delivered_again(
    shop: LocalStorage, is_old: bool
) -> None:
    newest = with_outbox(shop)
    note = delivered_path(5, newest.commit_id)
    noted, before, live = MemoryStorage("noted"), MemoryStorage("before"), MemoryStorage("live")
    shop.create_if_absent(delivered_path(5, None) if is_old else note, b"")
    plan_copy(shop, noted).run()
    assert noted.size(note) == 0

    def deliver() -> None:
        VersionLog(shop, RUNTIME).publish(following(newest, outbox=()), 1, RUNTIME.monotonic_ms())
        shop.delete(newest.outbox[0]["path"])

    copied = plan_copy(shop, meanwhile(live, "open_writer", deliver), threads=1).run()
    assert (copied.versions[-1], copied.vanished) == (5, ())
    assert live.size(newest.outbox[0]["path"]) is None
    assert live.size(note) == 0
    plan_copy(shop, before, ["..5"]).run()
    assert before.size(note) == 0


# -- places that are refused ----------------------------------------------------------------------


def test_a_root_is_not_copied_to_itself_or_into_itself(shop: LocalStorage, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(shop.location)
    for place in (shop.location, tmp_path / "link"):
        with pytest.raises(InvalidArgument, match="is the root to copy from"):
            plan_copy(shop, LocalStorage(place))
    for place in (f"{shop.location}/copy", tmp_path):
        with pytest.raises(InvalidArgument, match="one inside the other"):
            plan_copy(shop, LocalStorage(place))


class Placed(MemoryStorage):
    """A storage that says it is somewhere else."""

    @property
    def location(self) -> str:
        return self._name


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("cassandra://h/ks/a", "cassandra://h:9042/ks/a"),
        ("cassandra://h1,h2/ks/a", "cassandra://H2,h1:9042/ks/a/"),
        ("s3://b/a", "s3a://b/a/"),
    ],
)
def test_one_place_under_two_names_is_one_place(here: str, there: str) -> None:
    with pytest.raises(InvalidArgument, match="is the root to copy from"):
        check_places(Placed(here), Placed(there))
    check_places(Placed(here), Placed(f"{there.rstrip('/')}b"))


def test_another_port_is_another_place() -> None:
    places = (Placed(f"cassandra://h:{port}/ks/a") for port in (9042, 9043))
    check_places(*places)


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("copy", "Remove it, or name another place"),
        ("s3://bucket/copy", "Remove it, or name another place"),
        ("cassandra://h/ks/copy", "Name another place; nothing else in that keyspace"),
        ("dynamodb://local/copy", "Drop the table copy-holdfast, or name another place"),
        ("dynamodb://local/copy/a", "Name another place; nothing else in the table copy-holdfast"),
    ],
)
def test_a_copy_that_nobody_can_finish_says_what_can_be_done_there(
    shop: LocalStorage, merged: LocalStorage, location: str, said: str
) -> None:
    half, damaged = Placed(location), Placed(location)
    for path, data in blobs(half_copied(merged, 20)).items():
        half.create_if_absent(path, data)
    damaged.create_if_absent(COPYING, b"{}")
    with pytest.raises(InvalidArgument, match="unfinished copy of another root") as refused:
        plan_copy(shop, half)
    assert said in str(refused.value)
    with pytest.raises(Corruption, match="the copy cannot be resumed") as refused_too:
        plan_copy(shop, damaged)
    assert said in str(refused_too.value)


def test_a_place_that_can_only_be_read_is_refused(shop: LocalStorage) -> None:
    with pytest.raises(InvalidArgument, match="can only be read") as caught:
        plan_copy(shop, FsspecStorage("memory://somewhere", {}))
    assert caught.value.condition == "STATE_STORE_READ_ONLY"


def test_a_place_without_state_is_nothing_to_copy(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="holds no Holdfast state"):
        plan_copy(LocalStorage(tmp_path / "empty"), MemoryStorage("new"))


def test_a_place_that_holds_something_else_is_refused(
    shop: LocalStorage, merged: LocalStorage
) -> None:
    other = MemoryStorage("other")
    other.create_if_absent("letters/1", b"dear")
    with pytest.raises(InvalidArgument, match="is not empty"):
        plan_copy(shop, other)
    with pytest.raises(InvalidArgument, match=r"ends with version 7, which .* does not have"):
        plan_copy(shop, merged)
    with pytest.raises(InvalidArgument, match="holds other state"):
        plan_copy(merged, shop)
    unfinished = half_copied(merged, 12)
    with pytest.raises(InvalidArgument, match="unfinished copy of another root"):
        plan_copy(shop, unfinished)
    with pytest.raises(IllegalState, match="unfinished copy"):
        plan_copy(unfinished, MemoryStorage("new"))


def test_a_copy_that_went_on_by_itself_is_refused_both_ways(shop: LocalStorage) -> None:
    copy = MemoryStorage("copy")
    plan_copy(shop, copy).run()
    commit(copy, "Kun", 1)
    with pytest.raises(InvalidArgument, match="continued on its own"):
        plan_copy(shop, copy)
    commit(shop, "Kun", 2)
    for source, target in ((shop, copy), (copy, shop)):
        with pytest.raises(InvalidArgument, match="holds other state"):
            plan_copy(source, target)


def test_a_tag_on_another_version_is_refused_and_a_half_copied_one_replaced(
    shop: LocalStorage,
) -> None:
    copy = MemoryStorage("copy")
    plan_copy(shop, copy).run()
    VersionLog(shop, RUNTIME).tag("best", 3)
    VersionLog(copy, RUNTIME).tag("best", 4)
    with pytest.raises(InvalidArgument, match="the tag 'best' on version 4"):
        plan_copy(shop, copy)
    calls = calls_of(lambda to: plan_copy(shop, to, threads=1).run())
    half = half_copied(shop, calls[-1].number)
    assert "tags/best" in blobs(half)
    log = VersionLog(shop, RUNTIME)
    log.untag("best")
    log.tag("best", 1)
    plan_copy(shop, half).run()
    assert VersionLog(half, RUNTIME).tags() == {"two-users": 2, "best": 1}


def test_a_writer_at_the_target_is_a_conflict_and_keeps_its_root(shop: LocalStorage) -> None:
    copy = MemoryStorage("copy")
    plan_copy(shop, copy, ["..3"]).run()
    log = VersionLog(copy, RUNTIME)
    theirs = replace(following(log.load(3)), scope={})

    def write() -> None:
        log.publish(theirs, 1_000_000, RUNTIME.monotonic_ms())

    with pytest.raises(Conflict, match=r"Version 4 .* was committed by another writer"):
        plan_copy(shop, meanwhile(copy, "open_writer", write), threads=1).run()
    assert opened(copy) == [0, 1, 2, 3, 4], "what its writer has can be opened again"


def test_of_two_copies_to_one_place_one_stops(shop: LocalStorage) -> None:
    place, half = MemoryStorage("place"), half_copied(shop, 12)
    late = plan_copy(shop, place)

    def begin_too() -> None:
        with pytest.raises(Conflict, match="has just begun"):
            late.run()

    plan_copy(shop, meanwhile(place, "open_writer", begin_too), threads=1).run()
    slow = plan_copy(shop, half)
    plan_copy(shop, half).run()
    with pytest.raises(Conflict, match="has ended meanwhile"):
        slow.run()
    assert blobs(place) == blobs(half) == blobs(shop)


def some_files_copied(source: Storage) -> MemoryStorage:
    """An unfinished copy that lacks most of its files."""
    calls = calls_of(lambda to: plan_copy(source, to, threads=1).run())
    return half_copied(source, [c.number for c in calls if c.operation == "open_writer"][2])


def test_a_run_that_was_taken_for_dead_stops_when_another_goes_on(merged: LocalStorage) -> None:
    half = some_files_copied(merged)

    def go_on_and_die() -> None:
        writers = [
            c.number
            for c in calls_of(lambda to: plan_copy(merged, to, threads=1).run())
            if c.operation == "open_writer"
        ]
        with pytest.raises(Crash):
            plan_copy(merged, FaultyStorage(half, crash_at(writers[-1])), threads=1).run()

    slow = plan_copy(merged, meanwhile(half, "open_writer", go_on_and_die), threads=1)
    with pytest.raises(Conflict, match="Another run has resumed the copy"):
        slow.run()
    assert_unfinished(half)
    plan_copy(merged, half).run()
    assert blobs(half) == blobs(merged)


def test_a_run_that_was_taken_for_dead_takes_nothing_from_a_copy_that_ended(
    merged: LocalStorage,
) -> None:
    half = some_files_copied(merged)
    gone: list[str] = []

    def end() -> None:
        plan_copy(merged, half).run()
        real = half.delete
        half.delete = lambda path: (gone.append(path), real(path))[1]  # type: ignore[method-assign]

    with pytest.raises(Conflict, match="has ended meanwhile"):
        plan_copy(merged, meanwhile(half, "open_writer", end), threads=1).run()
    assert not any(data_file(path) for path in gone)
    assert blobs(half) == blobs(merged)


def test_files_that_came_after_the_target_was_looked_at_are_kept(merged: LocalStorage) -> None:
    half = some_files_copied(merged)
    late = plan_copy(merged, half)
    outcomes = []

    def at_the_first_manifest(call: Call) -> None:
        if (call.operation, call.path) == ("create_if_absent", "versions/0") and not outcomes:
            outcomes.append(late.run())

    plan_copy(merged, FaultyStorage(half, at_the_first_manifest), threads=1).run()
    (copied,) = outcomes
    assert copied.written_files == len(opened(merged)), "manifests alone"
    assert blobs(half) == blobs(merged)


def test_an_unfinished_copy_is_not_looked_into_either(shop: LocalStorage, tmp_path: Path) -> None:
    place = LocalStorage(tmp_path / "half")
    faulty = FaultyStorage(place, crash_at(12))
    with pytest.raises(Crash):
        plan_copy(shop, faulty, threads=1).run()
    faulty.bury()
    for look in (reading.open_root, holdfast.open, holdfast.read):
        with pytest.raises(IllegalState, match="Run the same `holdfast copy` again"):
            look(place.location).info()  # type: ignore[operator, union-attr]
