"""One lost or damaged file, of whatever kind, costs neither of the two newest versions."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from oracle import Facade, FakeTime, Standalone, State, contents, copy_of, opened
from test_corruption import changes, grown, kind_of, providers, small_files
from test_crash_everywhere import change

from holdfast.admin.copy import plan_copy
from holdfast.backends.cache import CachedStorage
from holdfast.backends.local import LocalStorage
from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.files.blocks import BadSegment
from holdfast.engine.files.filenames import copied_path, copy_path, data_file, manifest_path
from holdfast.engine.files.segment import Segment
from holdfast.engine.partition.chain import Chain
from holdfast.engine.storage import BlobNotFound, Storage
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import Corruption, Unavailable
from holdfast.reading import verify
from holdfast.reading.root import Root as Inspected

Damage = Callable[[bytes], bytes | None]


def removed(data: bytes) -> bytes | None:
    return None


def cut(data: bytes) -> bytes | None:
    return data[: len(data) // 2]


def altered(data: bytes) -> bytes | None:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


DAMAGES: tuple[Damage, ...] = (removed, cut, altered)


def hurt(storage: MemoryStorage, path: str, damage: Damage) -> MemoryStorage:
    """The same root with one file damaged."""
    copy, new = copy_of(storage), damage(bytes(storage.read(path)))
    if new is None:
        copy.delete(path)
    else:
        copy.store(path, pa.py_buffer(new))
    return copy


def data_paths(storage: Storage) -> list[str]:
    return [blob.path for blob in storage.list("") if data_file(blob.path) is not None]


def check_open_and_go_on(
    kind: Any, storage: Storage, conf: StateStoreConf, states: dict[int, State]
) -> None:
    """Read the two newest versions, then commit two more and merge what is due in between."""
    newest = max(states)
    with opened(kind, storage, FakeTime(), conf) as db:
        for version in sorted(states)[-2:]:
            assert contents(db.read(version)) == states[version].visible()
        state = states[newest]
        for number in range(2):
            store = db.update()
            assert store.version == newest + number
            state = change(store, state, "put", (("later", 9000 + number), (number, "later")))
            store.commit()
            db.maintain()
        assert contents(db.read(newest + 2)) == state.visible()


@pytest.mark.parametrize("kind", [Standalone, Facade], ids=["provider", "database"])
def test_one_damaged_data_file_of_any_kind_costs_neither_of_the_two_newest_versions(
    kind: Any,
) -> None:
    root = grown(kind, "none")
    paths = data_paths(root.storage)
    assert {kind_of(path) for path in paths} == {"delta", "pack", "merge", "snapshot"}
    assert {kind_of(p) for p in paths if p.endswith(".copy")} >= {"delta", "pack"}
    with small_files():
        for path in paths:
            for damage in DAMAGES:
                storage = hurt(root.storage, path, damage)
                check_open_and_go_on(kind, storage, root.conf, root.states)


@pytest.mark.parametrize("damage", DAMAGES)
def test_with_the_newest_manifest_damaged_the_two_before_it_open_and_the_store_goes_on(
    damage: Damage,
) -> None:
    for kind in (Standalone, Facade):
        root = grown(kind, "none")
        newest = max(root.states)
        states = {v: state for v, state in root.states.items() if v < newest}
        storage = hurt(root.storage, manifest_path(newest), damage)
        with opened(kind, storage, FakeTime(), root.conf) as db:
            for version in sorted(states)[-2:]:
                assert contents(db.read(version)) == states[version].visible()
            if damage is not removed:
                with pytest.raises(Corruption, match="rollback CHECKPOINT --to intact"):
                    db.update()
        storage.delete(manifest_path(newest))  # what the error and docs/recovery.md say
        with small_files():
            check_open_and_go_on(kind, copy_of(storage), root.conf, states)
            for path in data_paths(storage) if kind is Standalone else ():
                again = hurt(storage, path, damage)
                check_open_and_go_on(kind, again, root.conf, states)


@pytest.mark.parametrize("kind", [Standalone, Facade], ids=["provider", "database"])
def test_two_versions_open_with_any_file_lost_at_every_moment_of_a_stores_life(kind: Any) -> None:
    rng = random.Random(7)
    conf = grown(kind, "none").conf
    storage, states = MemoryStorage(), {0: State()}
    with small_files(), opened(kind, storage, FakeTime(1), conf) as db:
        for number in range(11):
            store = db.update()
            state = states[store.version]
            for verb, what in changes(rng, state, number, (6, 40, 6)[number % 3]):
                state = change(store, state, verb, what)
            states[store.commit()] = state
            if number == 6:
                for provider in providers(db):
                    provider.do_snapshot(force=True)
            db.maintain()
            for path in data_paths(storage):
                lost = hurt(storage, path, removed)
                with opened(kind, lost, FakeTime(), conf) as other:
                    for version in sorted(states)[-2:]:
                        assert contents(other.read(version)) == states[version].visible()


PACKED = StateStoreConf(
    min_deltas_for_snapshot=4,
    min_versions_to_retain=6,
    max_versions_to_retain_in_memory=0,
    grace_period_ms=0,
    maintenance_interval_ms=3_600_000,
)


def grow(
    storage: Storage,
    versions: int,
    conf: StateStoreConf,
    *,
    maintain: bool = True,
    kind: Any = Standalone,
) -> None:
    with opened(kind, storage, FakeTime(), conf) as db:
        for number in range(versions):
            store = db.update()
            store.put((f"p{number}", number), (number, "x"))
            store.commit()
            if maintain:
                db.maintain()


def test_copies_go_once_a_merge_that_was_read_back_holds_their_rows() -> None:
    storage = MemoryStorage()
    grow(storage, 30, PACKED)
    copies = {p for p in data_paths(storage) if p.endswith(".copy")}
    log = VersionLog(storage, FakeTime().runtime())
    newest = max(log.versions())
    wanted = set().union(*(log.load(v).unmerged_files() for v in range(newest - 2, newest + 1)))
    assert copies == {copy_path(path) for path in wanted}
    needed = set().union(*(log.load(version).files() for version in log.versions()))
    assert {copied_path(path) for path in copies} < needed


def test_a_merge_that_cannot_be_read_back_is_not_swapped_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Forgetful(MemoryStorage):
        """Loses the end of merges and snapshots."""

        def store(self, path: str, data: pa.Buffer) -> None:
            is_merge = path.endswith((".merge", ".snapshot"))
            super().store(path, data[: data.size - 9] if is_merge else data)

    storage = Forgetful()
    grow(storage, 6, PACKED, maintain=False)
    with opened(Standalone, storage, FakeTime(), PACKED) as db:
        with pytest.raises(Unavailable, match=r"does not return .*snapshot as it was written"):
            db.snapshot()
        assert db.provider.finished_merges == ()
    assert not [p for p in data_paths(storage) if p.endswith((".merge", ".snapshot"))]


def test_a_copy_that_is_not_what_was_written_fails_the_commit_and_leaves_nothing() -> None:
    class Careless(MemoryStorage):
        def store(self, path: str, data: pa.Buffer) -> None:
            super().store(path, data[:-1] if path.endswith(".copy") else data)

    storage = Careless()
    with opened(Standalone, storage, FakeTime(), PACKED) as db:
        store = db.update()
        store.put(("p", 1), (1, "x"))
        with pytest.raises(Exception, match="Error committing version 1") as caught:
            store.commit()
    assert isinstance(caught.value.__cause__, Unavailable)
    assert storage.list("") == []


@pytest.mark.parametrize("threshold", ["256k", "0"], ids=["pack", "delta"])
def test_a_damaged_file_is_read_from_its_copy_with_one_warning_and_merged_from_it(
    tmp_path: Path, threshold: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"pack_threshold_bytes": threshold, "min_deltas_for_snapshot": 3}
    conf = StateStoreConf.of({**settings, "maintenance_interval_ms": 3_600_000})
    storage = LocalStorage(tmp_path)
    grow(storage, 3, conf, maintain=False)
    damaged = next(p for p in data_paths(storage) if "2-" in p and not p.endswith(".copy"))
    assert (tmp_path / damaged).stat().st_ino != (tmp_path / copy_path(damaged)).stat().st_ino
    (tmp_path / damaged).write_bytes(altered((tmp_path / damaged).read_bytes()) or b"")
    checked = verify(Inspected(storage))
    assert [check.path for check in checked.problems] == [damaged]
    assert checked.broken == ()
    caplog.set_level(logging.WARNING, "holdfast")
    logging.getLogger("holdfast").propagate = True
    with opened(Standalone, storage, FakeTime(), conf) as db:
        for _ in range(3):
            assert len(contents(db.read(3))) == 3
            assert len(contents(db.read(2))) == 2
        told = [r.getMessage() for r in caplog.records if damaged in r.getMessage()]
        assert len(told) == 1
        assert told[0].endswith("Using its second copy.")
        db.snapshot()
        store = db.update()
        store.put(("p9", 9), (9, "x"))
        store.commit()
    for path in data_paths(storage):
        if path.endswith(".copy"):
            (tmp_path / path).unlink()
    with opened(Standalone, storage, FakeTime(), conf) as db:
        assert len(contents(db.read(4))) == 4  # the snapshot holds what the copy held
        with pytest.raises(Corruption, match="is damaged"):
            contents(db.read(3))


def damage_a_block(path: Path) -> None:
    """Alter a byte of a file's first block, so that it can still be opened."""
    data = bytearray(path.read_bytes())
    data[24] ^= 0x55
    path.write_bytes(data)


@pytest.mark.parametrize("threshold", ["256k", "0"], ids=["pack", "delta"])
@pytest.mark.parametrize("kind", [Standalone, Facade], ids=["provider", "database"])
def test_every_open_version_reads_the_copy_that_one_of_them_fell_back_to(
    tmp_path: Path, kind: Any, threshold: str, caplog: pytest.LogCaptureFixture
) -> None:
    conf = StateStoreConf.of(
        {"pack_threshold_bytes": threshold, "maintenance_interval_ms": 3_600_000}
    )
    storage = LocalStorage(tmp_path)
    grow(storage, 2, conf, maintain=False, kind=kind)
    firsts = [p for p in data_paths(storage) if Path(p).name.startswith("1-")]
    shared = [p for p in firsts if not p.endswith(".copy")]
    for path in shared:
        damage_a_block(tmp_path / path)
    caplog.set_level(logging.WARNING, "holdfast")
    logging.getLogger("holdfast").propagate = True
    with opened(kind, storage, FakeTime(), conf) as db:
        stores = [db.read(version) for version in (1, 2)]
        for store in stores:
            open_segments(store)
        assert len(contents(stores[1])) == 2
        assert len(contents(stores[0])) == 1
        assert stores[0].get(("p0", 0)) == (0, "x")
        told = [r for r in caplog.records if r.getMessage().endswith("Using its second copy.")]
        assert len(told) == 1
    for path in shared:
        damage_a_block(tmp_path / copy_path(path))
    with opened(kind, storage, FakeTime(), conf) as db:
        for version in (1, 2):
            with pytest.raises(Corruption, match="is damaged"):
                contents(db.read(version))


def chains(store: Any) -> list[Chain]:
    return [part.partition.chain for part in getattr(store, "_parts", [store])]


def open_segments(store: Any) -> None:
    """Open the files of a version without checking what is in them."""
    for chain in chains(store):
        chain.segments()


@contextmanager
def two_versions_with_damage_in_the_cache(tmp_path: Path) -> Iterator[list[Any]]:
    """Versions 1 and 2 of a remote root, both open; what the cache holds of them is damaged."""
    conf = StateStoreConf.of({"pack_threshold_bytes": 0, "maintenance_interval_ms": 3_600_000})
    remote = MemoryStorage()
    remote.is_remote = True
    cached = CachedStorage(remote, str(tmp_path), 1 << 30)
    grow(cached, 2, conf, maintain=False)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.stat().st_size > 1000:
            damage_a_block(path)
    with opened(Standalone, cached, FakeTime(), conf) as db:
        stores = [db.read(version) for version in (1, 2)]
        for store in stores:
            open_segments(store)
        yield stores


def test_every_open_version_reads_a_segment_that_one_of_them_fetched_again(
    tmp_path: Path,
) -> None:
    with two_versions_with_damage_in_the_cache(tmp_path) as stores:
        assert len(contents(stores[1])) == 2
        assert len(contents(stores[0])) == 1


def test_readers_of_one_version_that_meet_the_same_damage_all_read_on(tmp_path: Path) -> None:
    with two_versions_with_damage_in_the_cache(tmp_path) as stores:
        (chain,) = chains(stores[0])
        with pytest.raises(BadSegment) as met:
            chain.segments()[0].check()
        for _ in range(3):
            chain.fall_back(met.value)
            assert len(contents(stores[0])) == 1


def test_a_segment_that_cannot_be_read_though_its_checksums_hold_is_corruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with two_versions_with_damage_in_the_cache(tmp_path) as stores:
        assert len(contents(stores[1])) == 2

        def unreadable(segment: Segment, number: int) -> None:
            raise BadSegment(segment.name, f"chunk {number} cannot be read")

        monkeypatch.setattr(Segment, "chunk", unreadable)
        for store in stores:
            with pytest.raises(Corruption, match="is damaged"):
                contents(store)


def test_verify_names_a_damaged_copy_and_all_versions_stay_readable() -> None:
    storage = MemoryStorage()
    grow(storage, 3, PACKED, maintain=False)
    path = next(p for p in data_paths(storage) if p.endswith(".copy"))
    storage.store(path, pa.py_buffer(cut(bytes(storage.read(path))) or b""))
    checked = verify(Inspected(storage))
    assert [(check.path, check.kind) for check in checked.problems] == [(path, "copy")]
    assert checked.readable == (1, 2, 3)
    assert sum(check.kind == "copy" for check in checked.files) == 3


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_copy_of_a_root_takes_second_copies_along_and_reads_them_for_damaged_files(
    damage: Damage,
) -> None:
    whole = MemoryStorage("from")
    grow(whole, 4, PACKED, maintain=False)
    path = next(p for p in data_paths(whole) if "/3-" in p and not p.endswith(".copy"))
    source, target = hurt(whole, path, damage), MemoryStorage("to")
    plan_copy(source, target).run()
    assert {b.path: target.read(b.path) for b in target.list("")} == {
        b.path: whole.read(b.path) for b in whole.list("")
    }
    damaged_copy, other = hurt(whole, copy_path(path), damage), MemoryStorage("other")
    plan_copy(damaged_copy, other).run()
    assert set(data_paths(other)) == set(data_paths(whole)) - {copy_path(path)}
    assert verify(Inspected(other)).intact


def test_a_missing_file_keeps_its_copy_for_as_long_as_a_version_needs_it() -> None:
    storage = MemoryStorage()
    grow(storage, 3, PACKED, maintain=False)
    path = next(p for p in data_paths(storage) if "/2-" in p and not p.endswith(".copy"))
    storage.delete(path)
    grow(storage, 4, PACKED)
    assert copy_path(path) in data_paths(storage)
    with opened(Standalone, storage, FakeTime(), PACKED) as db:
        assert len(contents(db.read(2))) == 2
    grow(storage, 20, PACKED)
    assert copy_path(path) not in data_paths(storage)


@pytest.mark.parametrize(
    ("setting", "is_remote", "kept"),
    [("auto", False, True), ("auto", True, False), ("on", True, True), ("off", False, False)],
)
def test_copies_are_kept_on_local_disks_and_where_the_setting_says_so(
    setting: str, is_remote: bool, kept: bool
) -> None:
    storage = MemoryStorage()
    storage.is_remote = is_remote
    conf = StateStoreConf.of({"keep_copies": setting, "maintenance_interval_ms": 3_600_000})
    grow(storage, 1, conf)
    assert any(path.endswith(".copy") for path in data_paths(storage)) == kept
    with opened(Standalone, storage, FakeTime(), conf) as db:
        assert len(contents(db.read(1))) == 1


def test_a_discarded_attempt_leaves_no_copy(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    conf = StateStoreConf.of({"pack_threshold_bytes": 0, "maintenance_interval_ms": 3_600_000})
    with opened(Standalone, storage, FakeTime(), conf) as db:
        store = db.update()
        store.put(("p", 1), (1, "x"))
        provider: Any = db.provider
        attempt = provider.prepare(store._opened, store.partition)
        assert len(data_paths(storage)) == 2
        provider.discard(attempt)
    assert data_paths(storage) == []
    with pytest.raises(BlobNotFound):
        storage.read(attempt.files[1])
