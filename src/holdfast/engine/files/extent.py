"""The bytes of a segment: mapped as a whole, or read in parts where a map does not fit."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from holdfast.engine.storage import Storage


class Extent(Protocol):
    """A run of bytes."""

    @property
    def size(self) -> int: ...

    def part(self, start: int, stop: int) -> pa.Buffer:
        """Bytes start..stop; fewer where the run ends before."""

    def cut(self, start: int, size: int) -> Extent:
        """Another run inside this one."""

    def place(self, buffer: pa.Buffer) -> int | None:
        """Where in the run a buffer lies; None for memory of its own."""


class BufferExtent:
    """All bytes in memory: a map or a buffer."""

    def __init__(self, buffer: pa.Buffer) -> None:
        self.buffer = buffer

    @property
    def size(self) -> int:
        """The number of bytes."""
        return int(self.buffer.size)

    def part(self, start: int, stop: int) -> pa.Buffer:
        """Bytes start..stop, without a copy."""
        return self.buffer.slice(start, stop - start)

    def cut(self, start: int, size: int) -> BufferExtent:
        """Another run inside this one."""
        return BufferExtent(self.buffer.slice(start, size))

    def place(self, buffer: pa.Buffer) -> int | None:
        """Where in the run a buffer lies; None for memory of its own."""
        start = buffer.address - self.buffer.address
        return start if start >= 0 and start + buffer.size <= self.size else None


class BlobExtent:
    """Bytes that are read from a blob each time, and not kept."""

    def __init__(self, storage: Storage, path: str, start: int, size: int) -> None:
        self._storage, self._path, self._start = storage, path, start
        self.size = size

    def part(self, start: int, stop: int) -> pa.Buffer:
        """Bytes start..stop; raises BlobNotFound when the blob is gone."""
        stop = min(stop, self.size)
        return self._storage.read_range(self._path, self._start + start, self._start + stop)

    def cut(self, start: int, size: int) -> BlobExtent:
        """Another run inside this one."""
        return BlobExtent(self._storage, self._path, self._start + start, size)

    def place(self, buffer: pa.Buffer) -> int | None:
        """None: what was read is a copy."""
        return None
