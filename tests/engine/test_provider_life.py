"""The file-backed provider's own promises: texts, logs, files, caches, failed commits."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.backends.hdfs_backed import HDFSBackedStateStore, HDFSBackedStateStoreProvider
from holdfast.backends.local import LocalStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.files.segment import Layout
from holdfast.engine.hashing import spark_hash
from holdfast.engine.partition.chain import SegmentCache
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.committer import Committer
from holdfast.engine.versions.log import RecentVersions, VersionLog
from holdfast.errors import (
    Conflict,
    IllegalState,
    InvalidArgument,
    Unavailable,
    VersionNotFound,
)
from holdfast.ids import StateStoreId
from holdfast.types import parse_schema

EAGER = StateStoreConf(min_deltas_for_snapshot=3, min_versions_to_retain=2, grace_period_ms=0)
FILES = replace(EAGER, pack_threshold_bytes=0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def make(
    root: Path,
    conf: StateStoreConf = StateStoreConf.empty,
    *,
    key: str = "user string",
    value: str = "total long",
    name: str = "default",
    index: int | None = None,
    prefix: int = 0,
    **how: Any,
) -> HDFSBackedStateStoreProvider:
    provider = HDFSBackedStateStoreProvider(**how)
    schemas = parse_schema(key), parse_schema(value)
    provider.init(StateStoreId(str(root), 3, 7, name), *schemas, index, prefix, conf)
    return provider


def advance(provider: HDFSBackedStateStoreProvider, version: int, amount: int | None = None) -> int:
    store = provider.get_store(version)
    store.put(("a",), (version if amount is None else amount,))
    store.put((str(version),), (version,))
    return store.commit()


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.fixture
def infos(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, logger="holdfast"):
        yield caplog


def test_store_is_written_as_spark_writes_it(root: Path) -> None:
    provider = make(root)
    store = provider.get_store(0)
    assert isinstance(store, HDFSBackedStateStore)
    assert repr(store) == str(store) == f"HDFSStateStore[id=(op=3,part=7),dir={root}/3/7]"
    assert str(provider) == f"HDFSBackedStateStoreProvider[id=(op=3,part=7),dir={root}/3/7]"


def test_commit_is_logged_with_its_file(root: Path, infos: pytest.LogCaptureFixture) -> None:
    advance(make(root), 0)
    pack = root / "3" / "7" / next(f for f in files(root / "3" / "7") if f.endswith(".pack"))
    expected = f"Committed version 1 for HDFSStateStore[id=(op=3,part=7),dir={root}/3/7] to file "
    assert infos.messages == [expected + str(pack)]


def test_commit_of_a_file_and_of_nothing_is_logged_with_its_file(
    root: Path, infos: pytest.LogCaptureFixture
) -> None:
    provider = make(root, FILES)
    advance(provider, 0)
    provider.get_store(1).commit()
    (delta,) = [f for f in files(root / "3" / "7") if f.endswith(".delta")]
    ends = [message.rpartition(" to file ")[2] for message in infos.messages]
    assert ends == [f"{root}/3/7/{delta}", f"{root}/3/7/versions/2"]


def test_abort_is_logged_once(root: Path, infos: pytest.LogCaptureFixture) -> None:
    store = make(root).get_store(0)
    store.put(("a",), (1,))
    store.abort()
    store.abort()
    assert infos.messages == [
        f"Aborted version 1 for HDFSStateStore[id=(op=3,part=7),dir={root}/3/7]"
    ]


def test_no_value_of_the_state_is_logged(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="holdfast"):
        provider = make(root, FILES, value="total string")
        for version in range(5):
            store = provider.get_store(version)
            store.put(("secret-key",), ("secret-value",))
            store.commit()
            provider.do_maintenance()
    assert "secret" not in caplog.text


def test_failing_maintenance_is_logged_at_warn_and_not_raised(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, prefix: str) -> Any:
        raise Unavailable("no answer")

    provider = make(root)
    advance(provider, 0)
    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "list", fail)
        provider.do_maintenance()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == f"Error performing snapshot and cleaning up {provider}"
    assert record.exc_info is not None
    assert advance(provider, 1) == 2


@pytest.mark.parametrize("conf", [StateStoreConf.empty, FILES], ids=["packs", "files"])
def test_commit_that_cannot_create_its_manifest_fails_with_the_cause_and_can_be_tried_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, conf: StateStoreConf
) -> None:
    def fail(self: Any, path: str, data: bytes) -> bool:
        raise Unavailable("no answer")

    provider = make(root, conf)
    advance(provider, 0)
    store = provider.get_store(1)
    store.put(("a",), (2,))
    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "create_if_absent", fail)
        with pytest.raises(IllegalState) as caught:
            store.commit()
    assert str(caught.value) == f"Error committing version 2 into {store}"
    assert caught.value.condition == "STATE_STORE_COMMIT_FAILED"
    assert isinstance(caught.value.__cause__, Unavailable)
    assert not store.has_committed
    with pytest.raises(VersionNotFound):
        make(root, conf).get_store(2)
    assert store.commit() == 2
    assert make(root, conf).get_read_store(2).get(("a",)) == (2,)


def test_commit_with_a_lost_reply_recognises_itself(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalStorage.create_if_absent

    def lose(self: LocalStorage, path: str, data: bytes) -> bool:
        real(self, path, data)
        raise Unavailable("the reply was lost")

    provider = make(root)
    monkeypatch.setattr(LocalStorage, "create_if_absent", lose)
    assert advance(provider, 0) == 1
    assert provider.get_read_store(1).get(("a",)) == (0,)


def test_commit_that_cannot_write_its_delta_leaves_no_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = make(root, FILES)
    advance(provider, 0)
    before = files(root)
    store = provider.get_store(1)
    store.put(("a",), (2,))

    def full(self: Any, *args: Any) -> Any:
        raise Unavailable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("holdfast.backends.local._LocalWriter.write", full)
        with pytest.raises(IllegalState) as caught:
            store.commit()
    assert isinstance(caught.value.__cause__, Unavailable)
    assert files(root) == before
    store.abort()
    assert files(root) == before


def test_loser_of_a_version_gets_a_conflict_as_cause_and_its_files_are_cleaned_up(
    root: Path,
) -> None:
    first, second = make(root, FILES), make(root, FILES)
    winner, loser = first.get_store(0), second.get_store(0)
    winner.put(("a",), (1,))
    loser.put(("a",), (2,))
    winner.commit()
    before = files(root)
    with pytest.raises(IllegalState) as caught:
        loser.commit()
    assert isinstance(caught.value.__cause__, Conflict)
    loser.abort()
    second.cleanup()
    assert files(root) == before
    assert second.get_read_store(1).get(("a",)) == (1,)


def test_changes_after_a_failed_commit_are_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make(root), make(root)
    store = second.get_store(0)
    advance(first, 0)
    with pytest.raises(IllegalState):
        store.commit()
    with pytest.raises(IllegalState, match="Cannot put after already committed or aborted"):
        store.put(("a",), (1,))


def test_old_version_without_successor_is_a_conflict(root: Path) -> None:
    clock = [1_000_000]
    runtime = replace(Runtime.system(), clock_ms=lambda: clock[0], monotonic_ms=lambda: clock[0])
    conf = replace(EAGER, grace_period_ms=1000)
    provider = make(root, conf, runtime=runtime)
    for version in range(6):
        advance(provider, version)
    clock[0] += 5000
    provider.do_maintenance()
    assert [f for f in files(root) if "versions" in f] == ["3/7/versions/5", "3/7/versions/6"]
    store = make(root, conf, runtime=runtime).get_store(0)
    with pytest.raises(IllegalState) as caught:
        store.commit()
    assert isinstance(caught.value.__cause__, Conflict)
    assert [f for f in files(root) if "versions" in f] == ["3/7/versions/5", "3/7/versions/6"]


def custom(provider: HDFSBackedStateStoreProvider, version: int) -> dict[str, int]:
    return provider.get_read_store(version).metrics.json()


def hits_and_misses(provider: HDFSBackedStateStoreProvider) -> tuple[int, int]:
    counters = provider._counters
    return counters.hits, counters.misses


def test_open_versions_are_bounded_and_counted(root: Path) -> None:
    provider = make(root)
    for version in range(3):
        advance(provider, version)
    assert hits_and_misses(provider) == (2, 1)
    provider.get_read_store(3)
    provider.get_read_store(2)
    assert hits_and_misses(provider) == (4, 1)
    provider.get_read_store(1)
    assert hits_and_misses(provider) == (4, 2)
    provider.get_read_store(3)
    assert hits_and_misses(provider) == (4, 3)
    assert custom(provider, 1)["loadedMapCacheMissCount"] == 3
    assert custom(provider, 1)["loadedMapCacheHitCount"] == 6


def test_zero_versions_in_memory_reopen_each_time(root: Path) -> None:
    provider = make(root, StateStoreConf(max_versions_to_retain_in_memory=0))
    for version in range(3):
        advance(provider, version)
    provider.get_read_store(3)
    provider.get_read_store(3)
    assert hits_and_misses(provider) == (0, 5)


def test_metrics_tell_segments_snapshots_and_bytes(root: Path) -> None:
    provider = make(root, FILES)
    for version in range(4):
        advance(provider, version)
    before = custom(provider, 4)
    assert (before["numSegments"], before["numSnapshots"], before["numMerges"]) == (4, 0, 0)
    assert before["stateOnCurrentVersionSizeBytes"] == before["bytesWritten"] > 0
    provider.do_maintenance()
    advance(provider, 4)
    after = custom(provider, 5)
    assert (after["numSegments"], after["numSnapshots"]) == (2, 1)
    assert after["bytesWritten"] > before["bytesWritten"]
    assert after["numKeys"] == 6


def test_metrics_of_a_committed_store_are_those_of_the_version_it_made(root: Path) -> None:
    provider = make(root, FILES)
    for version in range(3):
        advance(provider, version)
    provider.do_snapshot()
    store = provider.get_store(3)
    store.put(("b",), (1,))
    before = store.metrics.json()
    store.commit()
    made, read = store.metrics.json(), provider.get_read_store(4).metrics.json()
    for name in ("numKeys", "stateOnCurrentVersionSizeBytes", "numSegments"):
        assert made[name] == read[name]
    assert (before["numSegments"], made["numSegments"]) == (3, 2)


def test_metrics_of_a_prepared_store_count_its_delta(root: Path) -> None:
    store = make(root, FILES, prepares_only=True).get_store(0)
    store.put(("a",), (1,))
    store.commit()
    delta = store.prepared.delta
    assert delta is not None
    figures = store.metrics.json()
    assert figures["numKeys"] == figures["numSegments"] == 1
    assert figures["stateOnCurrentVersionSizeBytes"] == delta.info.size


def test_names_of_written_segments_are_not_kept_for_ever(root: Path) -> None:
    cache = SegmentCache(LocalStorage(root), "", Layout(pa.schema([]), pa.schema([])))
    for number in range(10_000):
        cache.trust(str(number))
    assert len(cache._trusted) < 1000
    assert "9999" in cache._trusted


def test_memory_counts_what_is_private(root: Path) -> None:
    provider = make(root, value="body binary")
    store = provider.get_store(0)
    empty = store.metrics.memory_used_bytes
    store.put(("a",), (b"x" * 1_000_000,))
    assert store.metrics.memory_used_bytes >= 1_000_000 > empty
    store.commit()
    mapped = provider.get_read_store(1)
    assert mapped.get(("a",)) == (b"x" * 1_000_000,)
    assert mapped.metrics.memory_used_bytes < 100_000


def test_memory_counts_decompressed_segments(root: Path) -> None:
    provider = make(root, StateStoreConf(compression="zstd"), value="body binary")
    store = provider.get_store(0)
    store.put(("a",), (b"x" * 1_000_000,))
    store.commit()
    reader = provider.get_read_store(1)
    reader.get(("a",))
    assert reader.metrics.memory_used_bytes >= 1_000_000


def test_metrics_are_told_without_opening_a_damaged_snapshot(root: Path) -> None:
    provider = make(root, replace(FILES, min_versions_to_retain=50))
    for version in range(4):
        advance(provider, version)
    provider.do_snapshot()
    advance(provider, 4)
    (snapshot,) = (root / "3" / "7").glob("*.snapshot")
    snapshot.unlink()
    reader = make(root).get_read_store(5)
    assert reader.metrics.num_keys == 6
    assert reader.get(("a",)) == (4,)


def test_snapshot_goes_into_the_next_version(root: Path) -> None:
    provider = make(root, FILES)
    for version in range(3):
        advance(provider, version)
    assert provider.do_snapshot() is True
    assert provider.do_snapshot() is False
    assert custom(provider, 3)["numSegments"] == 3
    advance(provider, 3)
    assert custom(provider, 4)["numSegments"] == 2
    again = make(root, FILES)
    assert {pair.key[0] for pair in again.get_read_store(4).iterator()} == {"a", *"0123"}


def test_retention_keeps_the_newest_versions_and_their_files(root: Path) -> None:
    provider = make(root, replace(FILES, min_versions_to_retain=3))
    for version in range(12):
        advance(provider, version)
        provider.do_maintenance()
    kept = sorted(int(f.rpartition("/")[2]) for f in files(root) if "/versions/" in f)
    assert kept == [10, 11, 12]
    again = make(root)
    for version in kept:
        assert again.get_read_store(version).get(("a",)) == (version - 1,)
    for version in (0, 9):
        if version:
            with pytest.raises(VersionNotFound):
                again.get_store(version)


def test_store_of_another_name_lies_below_and_apart(root: Path) -> None:
    default, named = make(root, FILES), make(root, FILES, name="left")
    for version in range(6):
        advance(default, version, 1)
        advance(named, version, 2)
        default.do_maintenance()
        named.do_maintenance()
    assert default.get_read_store(6).get(("a",)) == (1,)
    assert make(root, name="left").get_read_store(6).get(("a",)) == (2,)
    assert (
        repr(named.get_store(6))
        == f"HDFSStateStore[id=(op=3,part=7,name=left),dir={root}/3/7/left]"
    )


def test_deltas_above_the_threshold_are_files_and_others_share_packs(root: Path) -> None:
    provider = make(root, StateStoreConf(pack_threshold_bytes=20_000))
    advance(provider, 0)
    store = provider.get_store(1)
    store.put_many(pa.table({"user": [str(i) for i in range(5000)], "total": range(5000)}))
    store.commit()
    kinds = [f.rpartition("/")[2].partition(".")[2] for f in files(root) if "versions" not in f]
    assert sorted(kinds) == ["delta", "delta.copy", "pack", "pack.copy"]
    assert make(root).get_read_store(2).metrics.num_keys == 5001


def test_in_a_query_a_commit_only_prepares(root: Path) -> None:
    provider = make(root, FILES, prepares_only=True)
    store = provider.get_store(0)
    store.put(("a",), (1,))
    assert store.commit() == 1
    assert store.has_committed
    assert store.prepared.num_keys == 1
    assert store.prepared.base_version == 0
    with pytest.raises(VersionNotFound):
        provider.get_store(1)
    delta, copy = files(root)
    assert delta.startswith("3/7/1-")
    assert copy == f"{delta}.copy"
    store.discard()
    assert files(root) == []


def test_in_a_query_a_chain_at_its_limit_is_merged_every_time(root: Path) -> None:
    conf = StateStoreConf(max_segments=6)
    storage, runtime = LocalStorage(root), Runtime.system()
    versions = VersionLog(storage, runtime)
    provider = make(root, conf, prepares_only=True, versions=RecentVersions(storage, runtime))
    newest = versions.publish(provider._empty_manifest(), 1, None)
    committer = Committer(versions, runtime, conf)
    lengths, merges = [], 0
    for number in range(40):
        store = provider.get_store(newest.version)
        store.put((f"k{number}",), (number,))
        store.commit()
        newest = committer.commit(newest, None, [store.prepared], runtime.new_id())
        entry = newest.entry(3, "default", 7)
        lengths.append(len(entry.segments))
        merges += len(store.prepared.swaps)
    assert max(lengths) <= 7
    assert 4 <= merges <= 12  # each is handed in once
    assert provider.get_read_store(newest.version).metrics.num_keys == 40


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ({"key": "total long"}, "in the key and in the value"),
        ({"index": 1}, "key_index_ordinal 1"),
        ({"index": -1}, "key_index_ordinal -1"),
        ({"prefix": 2}, "num_cols_prefix_key 2"),
        ({"key": "user map<int,int>"}, "user"),
        ({"key": "user string collate UTF8_LCASE"}, "UTF8_LCASE"),
        ({"key": "user variant"}, "user"),
    ],
)
def test_shape_that_cannot_be_is_refused(root: Path, shape: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        make(root, **shape)
    assert not root.exists()


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ({"value": "total int"}, "total"),
        ({"key": "name string"}, "name"),
        ({"index": 0}, "key_index_ordinal"),
        ({"prefix": 1}, "num_cols_prefix_key"),
        ({"value": "total long not null"}, "total"),
    ],
)
def test_shape_other_than_the_stored_one_is_refused_readably(
    root: Path, shape: dict[str, Any], why: str
) -> None:
    advance(make(root), 0)
    with pytest.raises(InvalidArgument, match=why) as caught:
        make(root, **shape)
    assert caught.value.condition == "STATE_STORE_SCHEMA_MISMATCH"


def test_build_that_hashes_otherwise_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance(make(root), 0)
    real = spark_hash.KeyHasher.hash_columns
    monkeypatch.setattr(
        spark_hash.KeyHasher,
        "hash_columns",
        lambda self, columns, n=None: real(self, columns, n) + 1,
    )
    with pytest.raises(InvalidArgument, match="hashes its sample keys differently") as caught:
        make(root)
    assert caught.value.condition == "STATE_STORE_HASH_MISMATCH"


def test_eviction_hides_what_is_at_or_below_the_bound(root: Path) -> None:
    provider = make(root, FILES, key="at long, user string", index=0)
    store = provider.get_store(0)
    for at in (1, 2, 3, None):
        store.put((at, "a"), (0,))
    store.commit()
    store = provider.get_store(1)
    store.put((2, "late"), (1,))
    assert store.evict(2) == 3
    assert store.evict(1) == 0
    assert store.get((2, "a")) is None
    store.put((1, "later"), (1,))
    assert {pair.key[0] for pair in store.iterator()} == {3, None}
    assert store.metrics.num_keys == 2
    store.commit()
    for _ in range(2):
        reader = provider.get_read_store(2)
        assert {pair.key[0] for pair in reader.iterator()} == {3, None}
        assert reader.get((1, "a")) is None
        assert reader.metrics.num_keys == 2
        assert len(list(provider.get_read_store(1).iterator())) == 4
        provider = make(root, FILES, key="at long, user string", index=0)


def test_expiry_hides_what_is_due_unless_put_again(root: Path) -> None:
    provider = make(root, FILES)
    store = provider.get_store(0)
    store.put(("soon",), (1,), expires_ms=10)
    store.put(("later",), (1,), expires_ms=100)
    store.put(("never",), (1,))
    store.put(("renewed",), (1,), expires_ms=10)
    store.commit()
    store = provider.get_store(1)
    store.put(("renewed",), (2,), expires_ms=50)
    assert store.expire(10) == 1
    assert store.get(("soon",)) is None
    assert store.metrics.num_keys == 3
    store.commit()
    provider.do_maintenance()
    assert {pair.key[0] for pair in make(root).get_read_store(2).iterator()} == {
        "later",
        "never",
        "renewed",
    }


def test_evicting_without_a_numeric_index_is_refused(root: Path) -> None:
    with pytest.raises(InvalidArgument, match="key_index_ordinal"):
        make(root).get_store(0).evict(1)
    with pytest.raises(InvalidArgument, match="not a whole number or a time"):
        make(root, index=0).get_store(0).evict("a")


def test_update_many_reads_changes_and_writes_back(root: Path) -> None:
    provider = make(root)
    store = provider.get_store(0)
    store.put_many(pa.table({"user": ["a", "b", "c"], "total": [1, 2, 3]}))
    store.commit()

    def add(rows: pa.Table, state: pa.Table) -> pa.Table:
        pairs = zip(rows["amount"].to_pylist(), state["total"].to_pylist(), strict=True)
        sums = [amount + (total or 0) for amount, total in pairs]
        dead = [total == 2 for total in state["total"].to_pylist()]
        return pa.table({"total": sums, "_dead": dead})

    store = provider.get_store(1)
    store.update_many(pa.table({"user": ["c", "new", "b"], "amount": [10, 20, 30]}), add)
    assert store.metrics.num_keys == 3
    store.commit()
    found = {p.key[0]: p.value[0] for p in provider.get_read_store(2).iterator()}
    assert found == {"a": 1, "c": 13, "new": 20}
    with pytest.raises(InvalidArgument, match="the key of another row"):
        provider.get_store(2).update_many(pa.table({"user": ["a", "a"], "amount": [1, 2]}), add)
