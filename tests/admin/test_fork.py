"""A fork is a query, or a store, of its own: neither it nor the original sees the other."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import fails, run, run_json
from copies import assert_unfinished, blobs
from forks import Ends, Faults, check_fork
from made_up_streams import QUERY, made_up_stream, offsets_text, state_of

import holdfast
from holdfast import admin, reading
from holdfast.admin import fork_run, source_logs
from holdfast.admin.source_logs import copy_source_logs
from holdfast.backends.local import LocalStorage
from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.files.filenames import COPYING
from holdfast.engine.files.manifest_codec import decode, encode
from holdfast.engine.storage import Storage
from holdfast.engine.versions.journal import Journal
from holdfast.errors import (
    Conflict,
    Corruption,
    HoldfastError,
    IllegalState,
    InvalidArgument,
    Unavailable,
    VersionNotFound,
)
from holdfast.testing.faults import Crash, Fault

NEVER = StateStoreConf(min_versions_to_retain=50)
AT_ONCE = StateStoreConf(min_versions_to_retain=2, grace_period_ms=0)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "a store"
    with holdfast.open(root, key="k string", value="v long", partitions=2, conf=NEVER) as db:
        for number in range(5):
            put(db, f"key {number}", number)
    return root


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    made_up_stream(tmp_path / "cp", batches=5)
    return tmp_path / "cp"


def put(db: holdfast.VersionedStore, key: str, value: int) -> None:
    with db.update() as update:
        update.put((key,), (value,))


def keys(root: Path, version: int | None = None) -> list[str]:
    state = holdfast.read(root)
    table = (state if version is None else state.at(version)).to_arrow()
    return sorted(row["k"] for row in table.to_pylist())


def journal(root: Path) -> list[tuple[str, bool]]:
    lines = Journal(reading.open_root(root).log).lines()
    return [(line.entry.kind, line.is_done) for line in lines]


def files(folder: Path) -> dict[str, bytes]:
    return blobs(LocalStorage(folder))


# -- a store ---------------------------------------------------------------------------------------


def test_a_forked_store_has_the_version_and_both_go_on_by_themselves(
    store: Path, tmp_path: Path
) -> None:
    new = tmp_path / "fork"
    plan = admin.fork(store, new, at=3, reason="to try the fix")
    assert (plan.version, plan.fences, plan.moves_bytes) == (3, False, False)
    assert not new.exists()
    result = plan.run()
    assert result.version is None
    assert result.detail["version"] == 4
    assert result.detail["written_files"] == 0
    assert keys(new) == keys(store, 3)
    with holdfast.open(new) as fork, holdfast.open(store) as original:
        assert (fork.version, original.version) == (4, 5)
        put(fork, "of the fork", 1)
        put(original, "of the original", 1)
    assert keys(new) == [*keys(store, 3), "of the fork"]
    assert "of the fork" not in keys(store)
    assert journal(store) == journal(new) == [("fork", True)]
    assert reading.open_root(store).tags == {}


def test_a_local_fork_shares_every_file_and_each_side_removes_its_own(
    store: Path, tmp_path: Path
) -> None:
    new = tmp_path / "fork"
    admin.fork(store, new, at=2).run()
    shared = [path for path in new.rglob("*") if path.is_file() and path.stat().st_nlink == 2]
    needed = reading.open_root(new).manifest(3).files()
    assert needed <= {path.relative_to(new).as_posix() for path in shared}
    assert all(path.samefile(store / path.relative_to(new)) for path in shared)
    for root in (store, new):
        with holdfast.open(root, conf=AT_ONCE) as db:
            for number in range(6):
                put(db, f"key {number}", 0)
                db.maintain()
        assert reading.open_root(root).versions[0] > 5
        assert reading.verify(reading.open_root(store)).intact
        assert reading.verify(reading.open_root(new)).intact
    shutil.rmtree(store)
    assert reading.verify(reading.open_root(new)).intact


def test_second_copies_come_along(store: Path, tmp_path: Path) -> None:
    new = tmp_path / "fork"
    admin.fork(store, new, at=2).run()
    for path in new.rglob("*.pack"):
        path.unlink()
    assert keys(new) == ["key 0", "key 1"]


def test_a_fork_of_a_fork_is_one_as_well(store: Path, tmp_path: Path) -> None:
    admin.fork(store, tmp_path / "one", at=3).run()
    admin.fork(tmp_path / "one", tmp_path / "two").run()
    assert reading.open_root(tmp_path / "two").versions == (5,)
    assert keys(tmp_path / "two") == keys(store, 3)


def test_another_kind_of_root_gets_checked_bytes(store: Path) -> None:
    MemoryStorage.forget("forked here")
    plan = admin.fork(store, "memory://forked here", at="3")
    assert plan.moves_bytes
    assert plan.run().detail["adopted_files"] == 0
    assert reading.verify(reading.open_root("memory://forked here")).intact
    assert holdfast.read("memory://forked here").get("key 2") == (2,)


def test_a_damaged_file_is_not_copied(store: Path) -> None:
    MemoryStorage.forget("damaged fork")
    for path in (*store.rglob("*.pack"), *store.rglob("*.pack.copy")):
        path.write_bytes(path.read_bytes()[:-40] + b"\0" * 40)
    with pytest.raises(Corruption, match=r"is damaged.*by --at"):
        admin.fork(store, "memory://damaged fork", at=3).run()
    assert_unfinished(MemoryStorage.named("damaged fork"))


@pytest.mark.parametrize("name", ["with blanks", "%20 %", "ünïcödé ☃", "a'b\"c", "#?&"])
def test_odd_names_are_names(stream: Path, tmp_path: Path, name: str) -> None:
    new = tmp_path / name / "cp of it"
    admin.fork(stream, new, at=2).run()
    assert state_of(new) == state_of(stream, 2)
    assert (new / "offsets" / "1").read_text() == offsets_text(1)
    admin.fork(new, tmp_path / f"{name} again").run()
    assert state_of(tmp_path / f"{name} again") == state_of(stream, 2)


# -- a query ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 3, 5])
def test_a_forked_query_has_an_id_and_a_checkpoint_of_its_own(stream: Path, version: int) -> None:
    ends = Ends.of(stream)
    before = blobs(ends.checkpoint)
    result = ends.plan(version).run()
    check_fork(ends, version)
    assert result.detail["query_id"] == json.loads(bytes(ends.folder.read("metadata")))["id"]
    assert result.detail["query_id"] in result.summary
    assert blobs(ends.checkpoint) == before


def test_a_fork_before_the_first_batch_begins_with_it(stream: Path, tmp_path: Path) -> None:
    new = tmp_path / "fork"
    plan = admin.fork(stream, new, at=0)
    assert "none so far" in dict(plan.lines())["batch"]
    plan.run()
    assert not (new / "offsets").exists()
    assert not (new / "commits").exists()
    assert state_of(new) == {}
    assert json.loads((new / "metadata").read_text())["id"] != QUERY


def test_the_source_of_a_fork_differs_by_its_journal_alone(stream: Path, tmp_path: Path) -> None:
    before = files(stream)
    admin.fork(stream, tmp_path / "fork", at=2).run()
    after = files(stream)
    new = [path for path in after if path not in before]
    assert [path.partition("/operations/")[0] for path in new] == ["holdfast", "holdfast"]
    assert {path: after[path] for path in before} == before


def test_the_state_of_a_fork_may_be_elsewhere(stream: Path, tmp_path: Path) -> None:
    new, state = tmp_path / "fork", tmp_path / "state of it"
    plan = admin.fork(stream, new, at=2, state_location=state)
    assert f"stateLocation to {state}" in plan.run().summary
    assert not (new / "holdfast").exists()
    assert state_of(state) == state_of(stream, 2)
    again = tmp_path / "again"
    with pytest.raises(InvalidArgument, match=r"whose checkpoint is elsewhere.*--checkpoint"):
        admin.fork(state, again)
    admin.fork(state, again, checkpoint=new).run()
    assert state_of(again) == state_of(stream, 2)
    assert (again / "offsets" / "1").read_text() == offsets_text(1)


def test_where_spark_has_removed_entries_those_of_the_versions_are_taken(
    stream: Path, tmp_path: Path
) -> None:
    for log in ("offsets", "commits"):
        for batch in range(4):
            (stream / log / str(batch)).unlink()
    admin.fork(stream, tmp_path / "fork", at=3).run()
    assert (tmp_path / "fork/offsets/1").read_text() == offsets_text(1)
    assert (tmp_path / "fork/offsets/2").read_text() == offsets_text(2)
    assert "nextBatchWatermarkMs" in (tmp_path / "fork/commits/2").read_text()


def test_a_plan_says_what_comes_again_and_what_is_not_delivered(
    stream: Path, tmp_path: Path
) -> None:
    (stream / "in" / "4 %.json").unlink()
    plan = admin.fork(stream, tmp_path / "fork", at=3)
    lines = dict(plan.lines())
    assert lines["version"].startswith("3 of ")
    assert lines["version"].endswith("begins with version 4")
    assert lines["batch"] == 'the fork begins with 3, after {"logOffset": 2}'
    assert "2 files come again" in lines["source 0"]
    assert "1 are gone" in lines["source 0"]
    assert "delivers what comes after version 3" in lines["sink"]
    assert "linked" in lines["files"]
    assert plan.json()["inputs"][0]["standing"] == "gone"
    assert plan.is_delivered
    assert admin.fork(stream, tmp_path / "fork").is_delivered
    (stream / "commits" / "4").unlink()
    newest = admin.fork(stream, tmp_path / "fork")
    assert not newest.is_delivered
    assert "the original delivers it, the fork does not" in dict(newest.lines())["sink"]
    newest.run()
    made = reading.open_root(tmp_path / "fork").manifest(6)
    assert (made.outbox, made.delivered_through) == ((), 6)


def test_batch_ids_go_on_where_the_version_had_none_of_its_own(
    stream: Path, tmp_path: Path
) -> None:
    path = stream / "holdfast" / "versions" / "3"
    path.write_bytes(encode(replace(decode(path.read_bytes(), "3"), numbering=None)))
    admin.fork(stream, tmp_path / "fork", at=3).run()
    made = reading.open_root(tmp_path / "fork").manifest(4)
    assert made.numbering == {"first": 1, "last": 3}


def test_a_version_without_offsets_cannot_be_forked(stream: Path, tmp_path: Path) -> None:
    path = stream / "holdfast" / "versions" / "3"
    manifest = decode(path.read_bytes(), "3")
    path.write_bytes(encode(replace(manifest, batch={**manifest.batch, "offsets": None})))
    with pytest.raises(InvalidArgument, match="does not say how far its sources were read"):
        admin.fork(stream, tmp_path / "fork", at=3)


def test_a_fork_after_a_rollback_has_what_the_rollback_left(stream: Path, tmp_path: Path) -> None:
    made = admin.rollback(stream, 2).run()
    admin.fork(stream, tmp_path / "fork").run()
    fork = reading.open_root(tmp_path / "fork").manifest(made.version + 1)
    assert fork.lineage == 1
    assert state_of(tmp_path / "fork") == state_of(stream, 2)
    assert sorted(path.name for path in (tmp_path / "fork/offsets").iterdir()) == ["0", "1"]
    admin.fork(stream, tmp_path / "undone", at=4).run()
    assert state_of(tmp_path / "undone") == state_of(stream, 4)
    assert (tmp_path / "undone/offsets/3").read_text() == offsets_text(3)


# -- what is refused -------------------------------------------------------------------------------


def test_places_that_are_not_free_are_refused(stream: Path, tmp_path: Path) -> None:
    new = tmp_path / "taken"
    new.mkdir()
    (new / "somebody's").write_text("file")
    before = files(tmp_path)
    with pytest.raises(InvalidArgument, match=r"taken is not empty, it has .*somebody's"):
        admin.fork(stream, new)
    for inside in (stream, stream / "deeper", stream / "holdfast" / "x", tmp_path):
        with pytest.raises(InvalidArgument, match="the same place, or one inside the other"):
            admin.fork(stream, inside)
    with pytest.raises(InvalidArgument, match="the same place, or one inside the other"):
        admin.fork(stream, tmp_path / "free", state_location=stream / "x")
    with pytest.raises(InvalidArgument, match="cannot be inside of the state"):
        admin.fork(stream, tmp_path / "x" / "cp", state_location=tmp_path / "x")
    with pytest.raises(InvalidArgument, match="not empty"):
        admin.fork(stream, tmp_path / "free", state_location=new)
    assert files(tmp_path) == before


def test_places_where_it_cannot_be_are_refused(stream: Path, store: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="Spark keeps it in a file system"):
        admin.fork(stream, "cassandra://host/keyspace/cp")
    with pytest.raises(InvalidArgument, match="Spark keeps it in a file system"):
        admin.fork(stream, "memory://cp")
    with pytest.raises(InvalidArgument, match="would end with this process"):
        admin.fork(stream, tmp_path / "free", state_location="memory://state")
    with pytest.raises(InvalidArgument, match="can only be read"):
        admin.fork(stream, "simplecache::file:///tmp/x")
    with pytest.raises(InvalidArgument, match="Leave the state location out"):
        admin.fork(store, tmp_path / "free", state_location=tmp_path / "state")
    with pytest.raises(InvalidArgument, match="has an option 'pasword'"):
        admin.fork(store, "s3://bucket/fork", options={"pasword": "hunter2"})
    with pytest.raises(VersionNotFound):
        admin.fork(store, tmp_path / "free", at=17)
    assert not (tmp_path / "free").exists()


def test_a_finished_fork_is_not_made_again(store: Path, tmp_path: Path) -> None:
    plan = admin.fork(store, tmp_path / "fork", at=2)
    plan.run()
    before = files(tmp_path)
    with pytest.raises(InvalidArgument, match="not empty"):
        admin.fork(store, tmp_path / "fork", at=2)
    with pytest.raises(InvalidArgument, match="not empty"):
        plan.run()
    assert files(tmp_path) == before


# -- unfinished forks ------------------------------------------------------------------------------


def begun(source: Path, new: Path, monkeypatch: pytest.MonkeyPatch, at: int = 3) -> None:
    """Crash a fork once its first file is there."""
    interrupt(admin.fork(source, new, at), monkeypatch, after=1)


def interrupt(plan: admin.ForkPlan, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Run a fork, and crash it after some files."""
    real, seen = LocalStorage.adopt, []

    def adopt(self: LocalStorage, other: Storage, path: str) -> bool:
        if len(seen) == after:
            raise Crash(path)
        seen.append(path)
        return real(self, other, path)

    monkeypatch.setattr(LocalStorage, "adopt", adopt)
    with pytest.raises(Crash):
        plan.run()
    monkeypatch.setattr(LocalStorage, "adopt", real)


def test_an_unfinished_fork_is_not_opened_and_the_same_command_finishes_it(
    stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "fork"
    begun(stream, new, monkeypatch)
    assert_unfinished(LocalStorage(new / "holdfast"))
    with pytest.raises(IllegalState, match="holdfast fork"):
        holdfast.read(new)
    assert journal(stream) == [("fork", False)]
    [tag] = reading.open_root(stream).tags
    assert tag.startswith("fork-")
    with pytest.raises(InvalidArgument, match=r"unfinished fork of version 3.*leaving --at out"):
        admin.fork(stream, new, at=2)
    plan = admin.fork(stream, new)
    assert (plan.version, plan.resumes) == (3, True)
    assert "unfinished fork is resumed" in dict(plan.lines())["to"]
    plan.run()
    assert state_of(new) == state_of(stream, 3)
    assert reading.open_root(stream).tags == {}
    assert journal(stream) == [("fork", True)]


def test_retention_keeps_what_an_unfinished_fork_needs(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = keys(store, 3)
    begun(store, tmp_path / "fork", monkeypatch)
    with holdfast.open(store, conf=AT_ONCE) as db:
        for number in range(6):
            put(db, f"key {number}", 7)
            db.maintain()
    assert reading.open_root(store).versions[0] == 3
    admin.fork(store, tmp_path / "fork").run()
    assert keys(tmp_path / "fork") == expected
    with holdfast.open(store, conf=AT_ONCE) as db:
        put(db, "one more", 1)
        db.maintain()
    assert reading.open_root(store).versions[0] > 3


def test_a_version_that_retention_takes_first_leaves_the_place_empty(
    store: Path, tmp_path: Path
) -> None:
    plan = admin.fork(store, tmp_path / "fork", at=1)
    with holdfast.open(store, conf=AT_ONCE) as db:
        put(db, "more", 1)
        db.maintain()
    with pytest.raises(VersionNotFound):
        plan.run()
    assert files(tmp_path / "fork") == {}
    assert journal(store) == []
    admin.fork(store, tmp_path / "fork").run()


def test_tags_of_forks_that_were_given_up_go_with_the_next_one(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(store, tmp_path / "given up", monkeypatch, at=2)
    begun(store, tmp_path / "under way", monkeypatch, at=3)
    assert sorted(reading.open_root(store).tags.values()) == [2, 3]
    admin.fork(store, tmp_path / "another", at=4).run()
    assert sorted(reading.open_root(store).tags.values()) == [2, 3]
    shutil.rmtree(tmp_path / "given up")
    admin.fork(store, tmp_path / "yet another", at=4).run()
    assert list(reading.open_root(store).tags.values()) == [3]
    admin.fork(store, tmp_path / "under way").run()
    assert reading.open_root(store).tags == {}


def test_tags_of_forks_on_another_host_stay(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(store, tmp_path / "fork", monkeypatch)
    shutil.rmtree(tmp_path / "fork")
    monkeypatch.setattr(fork_run.socket, "gethostname", lambda: "another")
    admin.fork(store, tmp_path / "second").run()
    assert list(reading.open_root(store).tags.values()) == [3]


def test_what_a_dead_run_left_half_written_in_the_checkpoint_is_removed(
    stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "fork"
    begun(stream, new, monkeypatch)
    for name, age_s in (("old", 100), ("young", 0)):
        path = new / "sources" / "0" / f".tmp-{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
        os.utime(path, (time.time() - age_s, time.time() - age_s))
    admin.fork(stream, new).run()
    assert {path.name for path in (new / "sources" / "0").iterdir()} == {*"01234", ".tmp-young"}


def test_of_two_forks_to_one_place_one_is_told_of_the_other(store: Path, tmp_path: Path) -> None:
    first, second = (admin.fork(store, tmp_path / "fork", at=3) for _ in range(2))
    seen: list[Exception] = []

    def run_the_other(done: int, total: int, path: str) -> None:
        if not seen:
            with pytest.raises(HoldfastError) as caught:
                second.run()
            seen.append(caught.value)

    first.run(run_the_other)
    assert isinstance(seen[0], InvalidArgument | Conflict)
    assert keys(tmp_path / "fork") == keys(store, 3)
    assert journal(store) == [("fork", True)]


def test_of_two_runs_that_resume_a_fork_the_first_stops(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(store, tmp_path / "fork", monkeypatch)
    first, second = (admin.fork(store, tmp_path / "fork") for _ in range(2))
    ran = []

    def run_the_other(done: int, total: int, path: str) -> None:
        if not ran:
            ran.append(second.run())

    with pytest.raises(Conflict, match=r"Another fork to .* has ended meanwhile"):
        first.run(run_the_other)
    assert keys(tmp_path / "fork") == keys(store, 3)
    assert reading.verify(reading.open_root(tmp_path / "fork")).intact


def test_what_somebody_else_begins_there_stops_a_fork(stream: Path) -> None:
    ends = Ends.of(stream)
    plan = ends.plan(3)
    ends.folder.write("metadata", b'{"id":"somebody else"}')
    with pytest.raises(InvalidArgument, match="not empty"):
        plan.run()
    assert ends.state.list("") == []
    ends = Ends.of(stream)

    def start_there(done: int, total: int, path: str) -> None:
        ends.folder.create_if_absent("metadata", b'{"id":"somebody else"}')

    with pytest.raises(Conflict, match="written by somebody else"):
        ends.plan(3).run(start_there)
    assert_unfinished(ends.state)


def test_a_mark_of_something_else_is_not_resumed(
    store: Path, stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(store, tmp_path / "fork", monkeypatch)
    other = tmp_path / "other"
    with holdfast.open(other, key="k string", value="v long", conf=NEVER) as db:
        for number in range(5):
            put(db, "a", number)
    with pytest.raises(InvalidArgument, match="unfinished fork of another root"):
        admin.fork(other, tmp_path / "fork")
    done = fails("copy", store, tmp_path / "fork", "--yes", code=2)
    assert "unfinished fork" in done
    state = tmp_path / "state"
    plan = admin.fork(stream, tmp_path / "one", state_location=state)
    interrupt(plan, monkeypatch, after=0)
    with pytest.raises(InvalidArgument, match="with another checkpoint"):
        admin.fork(stream, tmp_path / "two", state_location=state)
    admin.fork(stream, tmp_path / "one", state_location=state).run()
    assert state_of(state) == state_of(stream)


def test_a_fork_whose_version_is_gone_is_finished_where_only_the_mark_is_left(
    stream: Path,
) -> None:
    watched = Faults()
    Ends.of(stream).plan(2, watched).run()
    last = max(n for n, call in enumerate(watched.calls, 1) if call.path.startswith("tags/"))
    ends = Ends.of(stream)
    with pytest.raises(Crash):
        ends.plan(2, Faults(last + 1, Fault.CRASH_BEFORE)).run()
    assert COPYING in blobs(ends.state)
    for path in [f"versions/{n}" for n in range(3)]:
        ends.source.delete(path)
    ends.plan(2).run()
    assert reading.Root(ends.state).versions == (3,)


def test_a_place_that_was_marked_for_a_version_that_is_gone_is_named(stream: Path) -> None:
    watched = Faults()
    Ends.of(stream).plan(2, watched).run()
    first = min(n for n, call in enumerate(watched.calls, 1) if call.path.startswith("tags/fork"))
    ends = Ends.of(stream)
    with pytest.raises(Crash):
        ends.plan(2, Faults(first, Fault.CRASH_BEFORE)).run()
    assert list(blobs(ends.state)) == [COPYING]
    ends.source.delete("versions/2")
    with pytest.raises(VersionNotFound, match=r"is gone, of which .* holds an unfinished fork"):
        ends.plan(2)


# -- logs of the file source -----------------------------------------------------------------------


class Changing(MemoryStorage):
    """A log that Spark goes on with: before every read of a file, `change` may be called."""

    change: Callable[[Changing, str], None] | None = None

    def read_range(self, path: str, start: int, stop: int) -> object:
        if self.change is not None:
            self.change(self, path)
        return super().read_range(path, start, stop)


def logged(*names: str) -> Changing:
    storage = Changing("cp")
    for name in names:
        storage.write(f"sources/0/{name}", name.encode())
    return storage


def names_in(storage: Storage) -> set[str]:
    return {blob.path.removeprefix("sources/0/") for blob in storage.list("sources")}


def file_offset(number: int) -> str:
    return offsets_text(number)


def test_a_log_that_is_merged_while_it_is_copied_is_copied_whole() -> None:
    source, target = logged(*map(str, range(9))), MemoryStorage("fork")

    def merge(storage: Changing, path: str) -> None:
        if path.endswith("/4"):
            storage.change = None
            storage.write("sources/0/9.compact", b"all of them")
            for number in range(9):
                storage.delete(f"sources/0/{number}")
            storage.write("sources/0/10", b"10")

    source.change = merge
    copy_source_logs(source, target, file_offset(8))
    assert names_in(target) == {"9.compact", "10"}


def test_a_log_that_grows_while_it_is_copied_is_what_was_listed() -> None:
    source, target = logged("9.compact", "10"), MemoryStorage("fork")

    def grow(storage: Changing, path: str) -> None:
        storage.write(f"sources/0/{len(names_in(storage)) + 9}", b"more")

    source.change = grow
    copy_source_logs(source, target, file_offset(10))
    assert names_in(target) == {"9.compact", "10"}


def test_a_listing_that_missed_a_merge_is_made_again() -> None:
    source, target = logged("9.compact", "5", "6", "10"), MemoryStorage("fork")
    listings = [["sources/0/5", "sources/0/6", "sources/0/10"]]
    real = source.list

    def torn(prefix: str) -> object:
        found = real(prefix)
        if listings:
            wanted = listings.pop()
            return [blob for blob in found if blob.path in wanted]
        return found

    source.list = torn  # type: ignore[assignment, method-assign]
    copy_source_logs(source, target, file_offset(10))
    assert names_in(target) == {"9.compact", "5", "6", "10"}


def test_a_log_that_never_rests_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_logs, "_MOST_PASSES", 3)
    source = logged("0", "1")

    def vanish(storage: Changing, path: str) -> None:
        storage.delete(path)
        storage.write(f"sources/0/{len(path)}", b"x")

    source.change = vanish
    with pytest.raises(Unavailable, match=r"rewritten while it was read, 3 times"):
        copy_source_logs(source, MemoryStorage("fork"), None)


@pytest.mark.parametrize(
    "names", [(), ("0", "1"), ("1", "2", "3"), ("0", "2", "3"), ("2.compact",)]
)
def test_a_log_without_what_the_offset_refers_to_is_damaged(names: tuple[str, ...]) -> None:
    with pytest.raises(Corruption, match="has no entry 3"):
        copy_source_logs(logged(*names), MemoryStorage("fork"), file_offset(3))


def test_a_damaged_log_is_found_before_anything_is_written(stream: Path, tmp_path: Path) -> None:
    (stream / "sources" / "0" / "1").unlink()
    before = files(tmp_path)
    with pytest.raises(Corruption, match="has no entry 2"):
        admin.fork(stream, tmp_path / "fork", at=3)
    assert files(tmp_path) == before


def test_logs_of_other_sources_are_copied_as_they_are() -> None:
    source, target = logged("0"), MemoryStorage("fork")
    source.write("sources/1/17", b"of a source that removes old ones")
    source.write("sources/1/18", b"x")
    source.write("sources/1/.18.crc", b"x")
    source.write("sources/2/deep/note", b"x")
    kafka = offsets_text(0, '{"topic":{"0":5}}')
    copy_source_logs(source, target, kafka)
    assert names_in(target) == {"0", "sources/1/17", "sources/1/18", "sources/2/deep/note"}


def test_what_a_crash_left_of_a_log_is_replaced() -> None:
    source, target = logged("0", "1"), MemoryStorage("fork")
    target.write("sources/0/1", b"ha")
    target.write("sources/0/0", b"")
    target.write("sources/0/7", b"gone at the source")
    copy_source_logs(source, target, file_offset(1))
    assert blobs(target) == blobs(source)


# -- the command line ------------------------------------------------------------------------------


def test_the_command_line_forks(stream: Path, tmp_path: Path) -> None:
    new = tmp_path / "fork"
    shown = run("fork", stream, new, "--at", "3", "--dry-run")
    assert "version 4" in shown
    assert "nothing was changed" in shown
    assert not new.exists()
    assert "Add --yes" in fails("fork", stream, new, code=2)
    assert "in the memory of this command" in fails("fork", stream, "memory://x", "--yes", code=2)
    body = run_json("fork", stream, new, "--at", "3", "--yes", "--reason", "to try the fix")
    assert body["kind"] == "fork"
    assert body["detail"]["checkpoint"] == str(new)
    assert state_of(new) == state_of(stream, 3)
    listed = run_json("history", stream, "--operations")["operations"]
    assert [(line["kind"], line["reason"]) for line in listed] == [("fork", "to try the fix")]
    assert "forked=3" in run("history", new, "--operations")


def test_a_relative_place_is_named_whole(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = run("fork", store.name, "a fork", "--yes")
    assert os.path.join(str(tmp_path), "a fork") in " ".join(said.split())
    assert keys(tmp_path / "a fork") == keys(store)
