"""Chunks that take memory of their own: compressed ones, and those of files that are not mapped."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict

from holdfast.engine.rows import Rows

_LIMIT_BYTES = 64 << 20
_owners = itertools.count()


class ChunkCache:
    """Chunks with memory of their own, the least recently used forgotten first. Thread-safe."""

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._chunks: OrderedDict[tuple[int, int], tuple[Rows, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.nbytes = 0

    @staticmethod
    def new_owner() -> int:
        """A number that tells one segment's chunks from all others'."""
        return next(_owners)

    def get(self, owner: int, number: int) -> Rows | None:
        """A chunk that is still there."""
        with self._lock:
            found = self._chunks.get((owner, number))
            if found is None:
                return None
            self._chunks.move_to_end((owner, number))
            return found[0]

    def put(self, owner: int, number: int, chunk: Rows, nbytes: int) -> None:
        """Keep a chunk; one that is larger than the limit is kept alone."""
        with self._lock:
            _, before = self._chunks.pop((owner, number), (None, 0))
            self._chunks[owner, number] = (chunk, nbytes)
            self.nbytes += nbytes - before
            while self.nbytes > self._limit_bytes and len(self._chunks) > 1:
                _, (_, gone) = self._chunks.popitem(last=False)
                self.nbytes -= gone
