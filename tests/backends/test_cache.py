"""Copies of remote blobs on the local disk: shared, bounded, and never trusted too far."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.backends import cache as cache_module
from holdfast.backends import cache_folder as folder_module
from holdfast.backends.cache import CachedStorage, cache_folder, cached
from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.backends.local import LocalStorage
from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.storage import Runtime, Storage, TooLarge
from holdfast.engine.versions.committer import Committer
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import Corruption, Unavailable
from holdfast.ids import StateStoreId
from holdfast.reading import Root, verify
from holdfast.standalone.opening import open_on
from holdfast.testing import StorageConformance
from holdfast.testing.faults import FaultyStorage
from holdfast.types import parse_schema

ATTEMPT = "0123456789abcdef" * 2
LIMIT = 64 << 20


def blob(number: int, kind: str = "delta") -> str:
    return f"0/0/{number}-{ATTEMPT}.{kind}"


def reads(storage: FaultyStorage) -> int:
    return sum(call.operation == "read" for call in storage.calls)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def remote() -> FaultyStorage:
    """A root that counts what is asked of it."""
    return FaultyStorage(MemoryStorage())


@pytest.fixture
def cache(remote: FaultyStorage, tmp_path: Path) -> CachedStorage:
    return CachedStorage(remote, str(tmp_path / "cache"), LIMIT)


class TestCachedStorage(StorageConformance):
    @pytest.fixture
    def storage(self, cache: CachedStorage) -> Storage:
        return cache


class TestEveryBlobCached(TestCachedStorage):
    """Whatever its name, as if every blob were a segment."""

    @pytest.fixture(autouse=True)
    def _all_are_segments(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cache_module, "_is_cached", lambda path: True)


@pytest.mark.parametrize("kind", ["delta", "merge", "snapshot", "pack"])
def test_a_segment_is_fetched_once_and_mapped_from_then_on(
    remote: FaultyStorage, tmp_path: Path, kind: str
) -> None:
    remote.inner.write(blob(1, kind), b"some bytes" * 100)
    for _ in range(3):
        storage = CachedStorage(remote, str(tmp_path / "cache"), LIMIT)
        assert bytes(storage.read(blob(1, kind))) == b"some bytes" * 100
    assert reads(remote) == 1


@pytest.mark.parametrize("path", ["versions/1", "tags/first", "delivered/3", blob(1, "outbox")])
def test_what_may_change_or_is_read_once_is_not_kept(
    remote: FaultyStorage, cache: CachedStorage, tmp_path: Path, path: str
) -> None:
    with cache.open_writer(path) as writer:
        writer.write(b"control")
    cache.read(path), cache.read(path)
    assert reads(remote) == 2
    assert files(tmp_path) == []


def test_what_this_host_writes_need_not_be_fetched(
    remote: FaultyStorage, cache: CachedStorage
) -> None:
    cache.write(blob(1), b"mine")
    assert bytes(cache.read(blob(1))) == bytes(remote.inner.read(blob(1))) == b"mine"
    assert bytes(cache.read_range(blob(1), 1, 3)) == b"in"
    assert reads(remote) == 0


def test_what_is_kept_is_no_blob_and_goes_when_it_is_not_trusted(
    remote: FaultyStorage, cache: CachedStorage
) -> None:
    assert cache.kept(blob(1)) is None
    assert cache.keep(blob(1), b"part of a pack")
    found = cache.kept(blob(1))
    assert found is not None
    assert bytes(found) == b"part of a pack"
    assert cache.list("") == remote.inner.list("") == []
    assert cache.distrust(blob(1))
    assert cache.kept(blob(1)) is None
    assert not remote.inner.keep(blob(1), b"part of a pack"), "it has no place for it"
    assert remote.inner.kept(blob(1)) is None


@pytest.mark.parametrize("damage", [False, True])
def test_the_maker_of_a_small_delta_does_not_fetch_it_out_of_its_pack(
    remote: FaultyStorage, tmp_path: Path, damage: bool
) -> None:
    cache = CachedStorage(remote, str(tmp_path), LIMIT)
    store_id = StateStoreId("memory://kept", 0, 0)
    provider = HDFSBackedStateStoreProvider(prepares_only=True, storage=cache)
    provider.init(store_id, parse_schema("k long"), parse_schema("v long"))
    store = provider.get_store(0)
    store.put_many(pa.table({"k": range(1000), "v": range(1000)}))
    store.commit()
    prepared = store.prepared
    assert prepared.inline is not None
    if damage:
        for copy in files(tmp_path):
            data = bytearray(copy.read_bytes())
            data[500:1500] = bytes(1000)
            copy.write_bytes(data)
    first = provider._empty_manifest()
    versions = VersionLog(CachedStorage(remote, str(tmp_path / "driver"), LIMIT), Runtime.system())
    versions.publish(first, 1, None)
    committer = Committer(versions, Runtime.system(), StateStoreConf(keep_copies="off"))
    committer.commit(first, None, [prepared], "f" * 32)
    packs = [call for call in remote.calls if call.operation == "read" and "packs" in call.path]
    assert packs == []
    again = HDFSBackedStateStoreProvider(prepares_only=True, storage=cache)
    again.init(store_id, parse_schema("k long"), parse_schema("v long"))
    assert again.get_read_store(1).get((77,)) == (77,)
    packs = [call for call in remote.calls if call.operation == "read" and "packs" in call.path]
    assert len(packs) == (1 if damage else 0)


def test_a_write_that_fails_leaves_no_copy(cache: CachedStorage, tmp_path: Path) -> None:
    writer = cache.open_writer(blob(1))
    writer.write(b"half of")
    writer.discard()
    assert files(tmp_path) == []
    with pytest.raises(LookupError):
        cache.read(blob(1))


def test_a_deleted_blob_takes_its_copy_along(cache: CachedStorage, tmp_path: Path) -> None:
    cache.write(blob(1), b"gone")
    cache.delete(blob(1))
    assert files(tmp_path) == []
    with pytest.raises(LookupError):
        cache.read(blob(1))


def test_a_large_blob_is_fetched_in_pieces(
    remote: FaultyStorage, cache: CachedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_PIECE_BYTES", 1000)
    for size in (999, 1000, 1001, 5000, 5001):
        data = os.urandom(size)
        remote.inner.write(blob(size), data)
        assert bytes(cache.read(blob(size))) == data
        assert bytes(cache.read(blob(size))) == data
    assert reads(remote) == 1 + 1 + 2 + 5 + 6


def test_copies_used_longest_ago_make_room(remote: FaultyStorage, tmp_path: Path) -> None:
    storage = CachedStorage(remote, str(tmp_path), 10 << 20)
    for number in range(10):
        storage.write(blob(number), bytes([number]) * (1 << 20))
        time.sleep(0.002)
    storage.read(blob(0))
    storage.write(blob(10), b"x" * (1 << 20))
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 10 << 20
    before = reads(remote)
    storage.read(blob(0))
    assert reads(remote) == before
    storage.read(blob(1))
    assert reads(remote) == before + 1


def test_a_copy_in_use_stays_however_long_ago_it_was_opened(
    remote: FaultyStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "_TOUCH_S", 0.0)
    storage = CachedStorage(remote, str(tmp_path), 10 << 20)
    for number in (0, 1):
        storage.write(blob(number, "snapshot"), bytes([number]) * (1 << 20))
    held, left = storage.read(blob(0, "snapshot")), storage.read(blob(1, "snapshot"))
    for copy in files(tmp_path):
        os.utime(copy, (1, 1))
    del left
    for number in range(40):
        storage.write(blob(number), b"x" * (1 << 20))
    before = reads(remote)
    again = storage.read(blob(0, "snapshot"))
    assert reads(remote) == before
    storage.read(blob(1, "snapshot"))
    assert reads(remote) == before + 1
    assert again.equals(held)


def test_copies_in_use_are_named_once_a_minute_at_most(
    remote: FaultyStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = CachedStorage(remote, str(tmp_path), LIMIT)
    storage.write(blob(0), b"0" * 100)
    held = [storage.read(blob(0)) for _ in range(3)]
    (copy,) = files(tmp_path)
    os.utime(copy, (1, 1))
    storage.write(blob(1), b"1" * 100)
    assert copy.stat().st_mtime == 1
    minute_ago = time.monotonic() - 61
    monkeypatch.setattr(storage._folder, "_touched_s", minute_ago)
    storage.write(blob(2), b"2" * 100)
    assert copy.stat().st_mtime > 1
    held.clear()
    assert storage._folder._mapped == {}


def test_many_small_copies_are_bounded_too(remote: FaultyStorage, tmp_path: Path) -> None:
    storage = CachedStorage(remote, str(tmp_path), 1 << 20)
    for number in range(200):
        storage.write(blob(number), b"small")
    assert len(files(tmp_path)) <= 64 + 4


def test_a_mapped_copy_stays_readable_when_it_makes_room(
    remote: FaultyStorage, tmp_path: Path
) -> None:
    storage = CachedStorage(remote, str(tmp_path), 2 << 20)
    storage.write(blob(0), b"0" * (1 << 20))
    held = storage.read(blob(0))
    for number in range(1, 5):
        storage.write(blob(number), b"1" * (1 << 20))
    assert bytes(held) == b"0" * (1 << 20)


def test_a_blob_larger_than_the_cache_is_read_remotely(
    remote: FaultyStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_PIECE_BYTES", 1000)
    storage = CachedStorage(remote, str(tmp_path), 5000)
    storage.write(blob(1), b"x" * 6000)
    assert bytes(storage.read(blob(1))) == b"x" * 6000
    monkeypatch.setattr(cache_module, "MOST_IN_MEMORY_BYTES", 4000)
    with pytest.raises(TooLarge):
        storage.read(blob(1))
    assert bytes(storage.read_range(blob(1), 5998, 7000)) == b"xx"
    assert files(tmp_path) == []


@pytest.mark.parametrize("size", [0, 5, 100, 115])
def test_a_copy_that_was_cut_is_dropped_and_fetched_again(
    remote: FaultyStorage, cache: CachedStorage, tmp_path: Path, size: int
) -> None:
    cache.write(blob(1), b"y" * 100)
    (copy,) = files(tmp_path)
    os.truncate(copy, size)
    assert bytes(cache.read_range(blob(1), 0, 200)) == b"y" * 100
    assert files(tmp_path) == []
    assert bytes(cache.read(blob(1))) == b"y" * 100
    assert files(tmp_path) == [copy]


def grow(storage: Storage, rows: int, **settings: Any) -> None:
    """Make a database of two partitions on a storage."""
    with (
        open_on(
            storage, Runtime.system(), "user long", "total long", partitions=2, conf=settings
        ) as db,
        db.update() as store,
    ):
        users = pa.array(range(rows))
        store.put_many(pa.table({"user": users, "total": users}))


@pytest.mark.parametrize("threshold", [0, 64 << 20])
def test_a_damaged_copy_is_dropped_and_fetched_again_once(
    remote: FaultyStorage, tmp_path: Path, threshold: int, caplog: pytest.LogCaptureFixture
) -> None:
    cache = CachedStorage(remote, str(tmp_path), LIMIT)
    grow(cache, 100_000, pack_threshold_bytes=threshold)
    for copy in files(tmp_path):
        data = bytearray(copy.read_bytes())
        data[1000:-1000] = bytes(len(data) - 2000)
        copy.write_bytes(data)
    again = CachedStorage(remote, str(tmp_path), LIMIT)
    with caplog.at_level(logging.WARNING), open_on(again, Runtime.system()) as db:
        assert db.get((77,)) == (77,)
        assert db.at(1).scan().num_rows == 100_000
    assert "from its source again" in caplog.text
    assert verify(Root(again)).problems == ()


def test_a_blob_damaged_at_its_root_is_corruption_with_or_without_a_copy(
    remote: FaultyStorage, tmp_path: Path
) -> None:
    cache = CachedStorage(remote, str(tmp_path), LIMIT)
    grow(cache, 200_000, keep_copies="off")
    path = remote.inner.list("0/0")[0].path
    data = bytearray(remote.inner.read(path))
    data[1000:2000] = bytes(1000)
    remote.inner.delete(path)
    remote.inner.write(path, bytes(data))
    assert [check.path for check in verify(Root(cache)).problems] == [path]
    with open_on(cache, Runtime.system()) as db:
        assert db.at(1).scan().num_rows == 200_000
    for copy in files(tmp_path):
        copy.unlink()
    before = reads(remote)
    with open_on(cache, Runtime.system()) as db, pytest.raises(Corruption):
        db.at(1).scan()
    assert reads(remote) - before < 10


def test_a_full_disk_means_remote_reads_and_one_warning(
    remote: FaultyStorage,
    cache: CachedStorage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(descriptor: int, data: Any) -> int:
        os.write(descriptor, bytes(data)[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folder_module, "write_all", full)
    monkeypatch.setattr(folder_module, "_PAUSE_S", 0.0)
    monkeypatch.setattr(cache_module, "_PIECE_BYTES", 1000)
    with caplog.at_level(logging.WARNING):
        for number, size in enumerate((10, 999, 1000, 5000)):
            data = os.urandom(size)
            cache.write(blob(number), data)
            assert bytes(cache.read(blob(number))) == data
            assert bytes(cache.read(blob(number))) == data
    assert [record.message.count("No space left") for record in caplog.records] == [1]
    assert files(tmp_path) == []
    monkeypatch.undo()
    cache.read(blob(1)), cache.read(blob(1))
    assert len(files(tmp_path)) == 1


def test_a_folder_of_somebody_else_is_not_used(
    remote: FaultyStorage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "theirs")
    cache = CachedStorage(remote, str(tmp_path / "cache"), LIMIT)
    cache.write(blob(1), b"secret")
    assert bytes(cache.read(blob(1))) == b"secret"
    assert files(tmp_path) == []
    assert "belongs to somebody else" in caplog.text
    own = CachedStorage(remote, str(tmp_path / "theirs"), LIMIT)
    assert bytes(own.read(blob(1))) == b"secret"
    (planted,) = files(tmp_path)
    planted.write_bytes(planted.read_bytes().replace(b"secret", b"forged"))
    assert bytes(cache.read(blob(1))) == b"secret"


def test_copies_are_for_their_user_alone(cache: CachedStorage, tmp_path: Path) -> None:
    cache.write(blob(1), b"private")
    (copy,) = files(tmp_path)
    assert copy.stat().st_mode & 0o077 == 0
    assert copy.parent.stat().st_mode & 0o077 == 0


def test_threads_that_fetch_one_blob_at_once_get_it_whole(
    remote: FaultyStorage, cache: CachedStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_PIECE_BYTES", 10_000)
    for number in range(20):
        remote.inner.write(blob(number), bytes([number]) * 50_000)

    def fetch(number: int) -> bool:
        return bytes(cache.read(blob(number))) == bytes([number]) * 50_000

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(fetch, [number for number in range(20) for _ in range(8)]))
    assert len(files(tmp_path)) == 20


# Reads every blob of a root through a small cache, again and again, and checks each.
READER = """
import sys
from holdfast.backends.cache import CachedStorage
from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.backends.local import LocalStorage
root, folder, rounds = sys.argv[1:]
remote = LocalStorage(root)
storage = CachedStorage(remote, folder, 3 << 20)
for _ in range(int(rounds)):
    for blob in remote.list(""):
        data = bytes(storage.read(blob.path))
        assert len(data) == blob.size and len(set(data)) == 1, blob.path
print("read", flush=True)
"""


def test_processes_that_share_a_small_cache_do_not_disturb_each_other(tmp_path: Path) -> None:
    root = LocalStorage(tmp_path / "root")
    for number in range(12):
        root.write(blob(number), bytes([number]) * (512 << 10))
    command = [sys.executable, "-c", READER, str(tmp_path / "root"), str(tmp_path / "cache"), "20"]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [reader.communicate(timeout=240)[0] for reader in readers] == ["read\n"] * 3
    left = files(tmp_path / "cache")
    assert not [path for path in left if path.name.startswith(".tmp-")]
    assert sum(path.stat().st_size for path in left) <= 4 << 20


# Fetches a blob of two pieces and stops for ever before the second.
SLEEPER = """
import sys, time
from holdfast.backends import cache
from holdfast.backends.cache import CachedStorage
from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.backends.local import LocalStorage

class Slow(LocalStorage):
    def read_range(self, path, start, stop):
        if start:
            print("half", flush=True)
            time.sleep(600)
        return super().read_range(path, start, stop)

cache._PIECE_BYTES = 1000
CachedStorage(Slow(sys.argv[1]), sys.argv[2], 1 << 20).read(sys.argv[3])
"""


def test_a_fetch_that_is_killed_leaves_a_temporary_file_that_goes(tmp_path: Path) -> None:
    root = LocalStorage(tmp_path / "root")
    root.write(blob(1), b"z" * 2000)
    folder = tmp_path / "cache"
    command = [sys.executable, "-c", SLEEPER, str(tmp_path / "root"), str(folder), blob(1)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as fetcher:
        assert fetcher.stdout is not None
        assert fetcher.stdout.readline() == "half\n"
        fetcher.send_signal(signal.SIGKILL)
    (left,) = files(folder)
    assert left.name.startswith(".tmp-")
    storage = CachedStorage(root, str(folder), 1 << 20)
    assert bytes(storage.read(blob(1))) == b"z" * 2000
    assert left in files(folder), "a younger one may belong to a fetch at work"
    os.utime(left, (0, 0))
    CachedStorage(root, str(folder), 1 << 20).write(blob(2), b"trims")
    assert left not in files(folder)
    assert len(files(folder)) == 2


def test_a_blob_that_comes_incomplete_is_not_kept(
    remote: FaultyStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Short(MemoryStorage):
        def read_range(self, path: str, start: int, stop: int) -> pa.Buffer:
            return super().read_range(path, start, stop - 1 if start else stop)

    monkeypatch.setattr(cache_module, "_PIECE_BYTES", 1000)
    storage = CachedStorage(Short(), str(tmp_path), LIMIT)
    storage.source.write(blob(1), b"x" * 2500)
    with pytest.raises(Unavailable, match="incomplete"):
        storage.read(blob(1))
    assert files(tmp_path) == []


def test_copies_lie_where_the_setting_or_spark_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/disk1/spark,/disk2/spark")
    assert cache_folder(StateStoreConf()).startswith("/disk1/spark/holdfast-cache-")
    chosen = StateStoreConf(cache_location=str(tmp_path))
    assert cache_folder(chosen).startswith(f"{tmp_path}/holdfast-cache-")
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    assert "holdfast-cache-" in cache_folder(StateStoreConf())
    assert isinstance(cached(MemoryStorage(), chosen), CachedStorage)


def test_a_limit_of_0_keeps_no_copies() -> None:
    storage = MemoryStorage()
    assert cached(storage, StateStoreConf(cache_size_bytes=0)) is storage
