"""A cache of chunks that are not mapped: they are compressed, or their file is read in ranges.

Mapped chunks need no cache: the operating system's page cache keeps them, shared by all workers of
the host. These here are private copies, so all stores of a process share one cache, whose size
does not depend on how many stores there are.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import OrderedDict, deque
from dataclasses import dataclass

from holdfast.engine.partition.rows import Rows

_LIMIT_BYTES = 64 << 20


@dataclass(slots=True)
class _Entry:
    chunk: Rows
    nbytes: int
    share: ChunkShare


class ChunkCache:
    """Chunks of any stores; the least recently used are dropped first. Thread-safe."""

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._owners = itertools.count()
        self._lock = threading.Lock()
        self._chunks: OrderedDict[tuple[int, int], _Entry] = OrderedDict()
        self._numbers: dict[int, set[int]] = {}
        self._gone: deque[int] = deque()
        self.nbytes = 0

    def restart(self) -> None:
        """Start empty in a forked process: a thread that held the lock does not exist there."""
        self._lock = threading.Lock()
        for entry in self._chunks.values():
            entry.share.nbytes = 0
        self._chunks.clear()
        self._numbers.clear()
        self.nbytes = 0

    def new_owner(self, segment: object) -> int:
        """A number that identifies a segment's chunks; they are dropped when it is collected."""
        owner = next(self._owners)
        weakref.finalize(segment, self._forget, owner).atexit = False
        return owner

    def get(self, owner: int, number: int) -> Rows | None:
        """Return a chunk, or None when it is no longer cached."""
        with self._lock:
            found = self._chunks.get((owner, number))
            if found is None:
                return None
            self._chunks.move_to_end((owner, number))
            return found.chunk

    def put(self, share: ChunkShare, owner: int, number: int, chunk: Rows, nbytes: int) -> None:
        """Cache a chunk; one that is larger than the limit is cached alone."""
        with self._lock:
            self._drop_gone()
            self._drop(owner, number)
            self._chunks[owner, number] = _Entry(chunk, nbytes, share)
            self._numbers.setdefault(owner, set()).add(number)
            self.nbytes += nbytes
            share.nbytes += nbytes
            while self.nbytes > self._limit_bytes and len(self._chunks) > 1:
                self._drop(*next(iter(self._chunks)))

    def _forget(self, owner: int) -> None:
        # Called when a segment is collected, which may happen in the middle of any method, and so
        # in the thread that holds the lock: waiting for it would never end. If it is taken, the
        # next `put` drops the chunks.
        self._gone.append(owner)
        lock = self._lock
        if lock.acquire(blocking=False):
            try:
                self._drop_gone()
            finally:
                lock.release()

    def _drop_gone(self) -> None:
        while self._gone:
            owner = self._gone.popleft()
            for number in list(self._numbers.get(owner, ())):
                self._drop(owner, number)

    def _drop(self, owner: int, number: int) -> None:
        found = self._chunks.pop((owner, number), None)
        if found is None:
            return
        self._numbers[owner].discard(number)
        if not self._numbers[owner]:
            del self._numbers[owner]
        self.nbytes -= found.nbytes
        found.share.nbytes -= found.nbytes


PROCESS = ChunkCache()
"""The cache of this process; a fork begins with an empty one."""
os.register_at_fork(after_in_child=PROCESS.restart)


class ChunkShare:
    """One store's part of a cache."""

    def __init__(self, cache: ChunkCache = PROCESS) -> None:
        self.cache = cache
        self.nbytes = 0
        """Memory of this store's chunks."""

    def put(self, owner: int, number: int, chunk: Rows, nbytes: int) -> None:
        """Keep a chunk."""
        self.cache.put(self, owner, number, chunk, nbytes)
