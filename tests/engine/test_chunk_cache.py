"""Chunks with memory of their own: bounded for all stores of a process together."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.partition import chunk_cache
from holdfast.engine.partition.chunk_cache import ChunkCache, ChunkShare
from holdfast.engine.storage import Runtime
from holdfast.standalone import open_on

LIMIT = 4 << 20


class Segment:
    """Anything that can own chunks."""


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> ChunkCache:
    """A small cache of a process of its own."""
    cache = ChunkCache(LIMIT)
    monkeypatch.setattr(ChunkShare.__init__, "__defaults__", (cache,))
    return cache


def opened(number: int) -> Any:
    conf = StateStoreConf(compression="zstd")
    storage = MemoryStorage(f"store {number}")
    return open_on(storage, Runtime.system(), "n long", "v long", conf=conf)


def test_all_stores_of_a_process_share_one_limit(cache: ChunkCache) -> None:
    rows = pa.table({"n": pa.array(range(60_000)), "v": pa.array(range(60_000))})
    stores = [opened(number) for number in range(8)]
    for db in stores:
        with db.update() as store:
            store.put_many(rows)
    readers = [db.at(1) for db in stores]
    for reader in readers:
        assert reader.scan().num_rows == 60_000
        assert cache.nbytes <= LIMIT
    assert cache.nbytes > 0
    for db in stores:
        db.close()


def test_a_store_counts_its_own_chunks_only() -> None:
    cache = ChunkCache(100)
    first, second = ChunkShare(cache), ChunkShare(cache)
    segments = Segment(), Segment()
    one, two = (cache.new_owner(segment) for segment in segments)
    first.put(one, 0, "a", 60)  # type: ignore[arg-type]
    second.put(two, 0, "b", 30)  # type: ignore[arg-type]
    assert (first.nbytes, second.nbytes, cache.nbytes) == (60, 30, 90)
    second.put(two, 1, "c", 40)  # type: ignore[arg-type]
    assert (first.nbytes, second.nbytes, cache.nbytes) == (0, 70, 70)
    assert [cache.get(one, 0), cache.get(two, 0), cache.get(two, 1)] == [None, "b", "c"]
    second.put(two, 1, "larger", 200)  # type: ignore[arg-type]
    assert (cache.get(two, 0), cache.get(two, 1), cache.nbytes) == (None, "larger", 200)


def test_chunks_go_with_their_segment() -> None:
    cache = ChunkCache()
    share, segment, other = ChunkShare(cache), Segment(), Segment()
    for owner in (cache.new_owner(segment), cache.new_owner(other)):
        for number in range(3):
            share.put(owner, number, "chunk", 10)  # type: ignore[arg-type]
    del segment
    gc.collect()
    assert (share.nbytes, cache.nbytes) == (30, 30)


def test_a_segment_may_end_while_another_uses_the_cache() -> None:
    cache = ChunkCache(1000)
    share = ChunkShare(cache)

    def use(number: int) -> None:
        segment = Segment()
        owner = cache.new_owner(segment)
        for chunk in range(5):
            share.put(owner, chunk, "chunk", 10)  # type: ignore[arg-type]
            cache.get(owner, chunk)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(2000)))
    last = Segment()
    with cache._lock:
        owner = cache.new_owner(last)
        del last  # the lock is taken: it is left for the next
    share.put(cache.new_owner(share), 0, "chunk", 10)  # type: ignore[arg-type]
    assert owner not in cache._numbers
    assert share.nbytes == cache.nbytes == 10


def test_a_fork_begins_with_an_empty_cache() -> None:
    share, segment = ChunkShare(), Segment()
    owner = chunk_cache.PROCESS.new_owner(segment)
    share.put(owner, 0, "chunk", 10)  # type: ignore[arg-type]
    with chunk_cache.PROCESS._lock:
        child = os.fork()
        if child == 0:
            gone = chunk_cache.PROCESS.get(owner, 0) is None and share.nbytes == 0
            os._exit(0 if gone else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert chunk_cache.PROCESS.get(owner, 0) == "chunk"
