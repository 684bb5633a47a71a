"""Blobs as rows of a database that can change the rows of one directory atomically.

A *blob row* makes a blob visible: it has the size, and either the bytes, where they are few, or the
upload and its number of chunks. An *upload row* stands beside it while chunks are sent or removed.
One atomic step creates the blob row and removes the upload row. So a late writer cannot finish an
upload that a sweep has given up, and chunks without a blob always have an upload row, by which a
sweep finds them. Chunks get names that were never used before, and are written once. Directories
are noted before their first row, and stay noted.
"""

from __future__ import annotations

import builtins
import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pyarrow as pa

from holdfast.backends.root_rows import BlobRow, DirectoryEntry, RootRows, UploadRow
from holdfast.clients.retrying import retried
from holdfast.engine.storage import (
    MOST_IN_MEMORY_BYTES,
    BlobInfo,
    BlobNotFound,
    BlobWriter,
    Storage,
    TooLarge,
)
from holdfast.errors import Corruption, HoldfastError, Unavailable

T = TypeVar("T")
INLINE_BYTES = 32 << 10
"""A blob up to this size is stored in its row."""
ANNOUNCED_CHUNKS = 64
"""An upload row announces in steps of this many which chunks may exist."""
_FLUSH_BYTES = 8 << 20
_OVERWRITES = 3


class ChunkedStorage(Storage):
    """Blobs below a folder of one root in a database."""

    is_remote = True
    writes_at_once = True

    def __init__(self, location: str, folder: str, rows: RootRows) -> None:
        self._location, self._folder = location, folder
        self.rows = rows

    @property
    def location(self) -> str:
        return self._location

    def read(self, path: str) -> pa.Buffer:
        row = self._row(path)
        if row.size > MOST_IN_MEMORY_BYTES:
            raise TooLarge(path)
        return self._bytes(path, row, 0, row.size)

    def read_range(self, path: str, start: int, stop: int) -> pa.Buffer:
        row = self._row(path)
        return self._bytes(path, row, start, min(stop, row.size))

    def size(self, path: str) -> int | None:
        row = self.look_up(path)
        return None if row is None else row.size

    def open_writer(self, path: str) -> BlobWriter:
        return _ChunkWriter(self, path)

    def create_if_absent(self, path: str, data: bytes) -> bool:
        writer = _ChunkWriter(self, path)
        try:
            writer.write(data)
            created = writer.create()
        except BaseException:
            writer.discard()
            raise
        if not created:
            writer.discard()
        return created

    def list(self, prefix: str) -> list[BlobInfo]:
        start = len(self._folder) + 1 if self._folder else 0
        directories = self._directories("list", prefix)
        found = self.call_once("list", prefix, lambda: self.rows.blobs(directories))
        return sorted(
            (BlobInfo(_joined(place.directory, place.name)[start:], size) for place, size in found),
            key=lambda blob: blob.path,
        )

    def delete(self, path: str) -> None:
        row = self.look_up(path, "delete")
        if row is None:
            return
        place = self.place(path)
        self.call("delete", path, lambda: self.rows.remove(place, row))
        if row.chunks:
            self.clear("delete", path, DirectoryEntry(place.directory, row.upload), row.chunks)

    def sweep(self, older_than_s: float) -> int:
        """Remove the chunks of uploads that were given up, or inactive for that long."""
        oldest_ms = _now_ms() - int(older_than_s * 1000)
        directories = self._directories("sweep", "")
        found = self.call_once("sweep", "", lambda: self.rows.uploads(directories))
        stale = [each for each in found if not each.is_live or each.touched_ms <= oldest_ms]
        # An upload that its writer touches or finishes in the meantime stays.
        dead = [each for each in stale if not each.is_live or self._give_up(each)]
        for upload in dead:
            self.clear("sweep", "", upload.place, upload.chunks)
        return len(dead)

    def _give_up(self, upload: UploadRow) -> bool:
        return self.call("sweep", "", lambda: self.rows.give_up(upload))

    def _directories(self, what: str, prefix: str) -> builtins.list[str]:
        whole = _joined(self._folder, prefix)

        def look() -> builtins.list[str]:
            return self.rows.directories(whole) if self.rows.exist() else []

        return self.call(what, prefix, look)

    def look_up(self, path: str, what: str = "look up") -> BlobRow | None:
        """A blob's row; None without a blob."""
        place = self.place(path)
        return self.call(what, path, lambda: self.rows.blob(place) if self.rows.exist() else None)

    def place(self, path: str) -> DirectoryEntry:
        """The directory and name of a blob's row."""
        directory, _, name = path.rpartition("/")
        return DirectoryEntry(_joined(self._folder, directory), name)

    def clear(self, what: str, path: str, upload: DirectoryEntry, chunks: int) -> None:
        """Remove the chunks of a dead upload, then its row."""
        self.call_once(what, path, lambda: self.rows.delete_chunks(upload.name, chunks))
        self.call(what, path, lambda: self.rows.forget(upload))

    def call(self, what: str, path: str, call: Callable[[], T]) -> T:
        """Return what `call` returns, retried, with failures mapped."""
        rows = self.rows
        return self.call_once(what, path, lambda: retried(call, rows.passes, rows.limit_ms))

    def call_once(self, what: str, path: str, call: Callable[[], T]) -> T:
        """Return what `call` returns, with failures mapped."""
        try:
            return call()
        except self.rows.errors as error:
            failed = f"Could not {what} {path or 'the root'!r} in {self._location}: "
            raise self.rows.mapped(error, failed) from error

    def _row(self, path: str) -> BlobRow:
        row = self.look_up(path, "read")
        if row is None:
            raise BlobNotFound(path)
        return row

    def _bytes(self, path: str, row: BlobRow, start: int, stop: int) -> pa.Buffer:
        if stop <= start:
            return pa.py_buffer(b"")
        if row.data is not None:
            return pa.py_buffer(row.data)[start:stop]
        first = start // row.chunk_bytes
        numbers = range(first, (stop - 1) // row.chunk_bytes + 1)
        found = self.call_once("read", path, lambda: self.rows.get_chunks(row.upload, numbers))
        whole = pa.py_buffer(b"".join(self._present(path, row, found)))
        return whole[start - first * row.chunk_bytes : stop - first * row.chunk_bytes]

    def _present(self, path: str, row: BlobRow, found: Iterable[bytes | None]) -> Iterator[bytes]:
        for chunk in found:
            if chunk is None:
                if self.look_up(path, "read") != row:
                    raise BlobNotFound(path)  # deleted meanwhile
                raise Corruption(
                    f"A chunk of {path!r} in {self._location} is missing: others deleted rows, "
                    "or restored an older copy. `holdfast rollback CHECKPOINT --to intact` "
                    "continues from the newest version that can be read."
                )
            yield chunk


class _ChunkWriter(BlobWriter):
    """Collects what fits into a row, and sends larger blobs as chunks."""

    def __init__(self, storage: ChunkedStorage, path: str) -> None:
        self._storage, self._rows, self._path = storage, storage.rows, path
        self._place = storage.place(path)
        self._upload = DirectoryEntry(self._place.directory, secrets.token_hex(16))
        self._buffer = bytearray()
        self._chunks = self._announced = self._touched_ms = self._size = 0
        self._open = True

    def write(self, data: bytes | memoryview | pa.Buffer) -> object:
        view = memoryview(data).cast("B")
        self._size += len(view)
        for start in range(0, len(view), _FLUSH_BYTES):
            self._buffer += view[start : start + _FLUSH_BYTES]
            if len(self._buffer) > _FLUSH_BYTES:
                self._send(len(self._buffer) // self._rows.chunk_bytes)
        return len(view)

    def close(self) -> None:
        for _ in range(_OVERWRITES):
            if self.create():
                return
            # Nobody else uses this name, so an earlier attempt has left a blob there. It is
            # replaced in one step and never removed first: somebody may be reading it.
            before = self._storage.look_up(self._path, "write")
            if before is not None and self._replace(before):
                return
        raise Unavailable(
            f"Another writer is also writing {self._path!r} in {self._storage.location}. Try again."
        )

    def create(self) -> bool:
        """Make the blob visible unless there is one; return whether it is this one."""
        row = self._finished()
        make = self._rows.create if row.data is not None else self._rows.finish
        if not self._call(lambda: make(self._place, row)):
            # The reply to an earlier call may have been lost after it had succeeded.
            found = self._storage.look_up(self._path, "write")
            if found is None and self._announced:
                raise self._gone()
            if found is None or found.upload != self._upload.name:
                return False
        self._open = False
        return True

    def _replace(self, before: BlobRow) -> bool:
        """Make the blob visible in place of `before`; return whether that worked."""
        row = self._finished()
        if not self._call(lambda: self._rows.replace(self._place, before, row)):
            found = self._storage.look_up(self._path, "write")
            if found is None or found.upload != self._upload.name:
                return False
        self._open = False
        if before.chunks:
            gone = DirectoryEntry(self._place.directory, before.upload)
            self._storage.clear("write", self._path, gone, before.chunks)
        return True

    def _finished(self) -> BlobRow:
        """The blob's row, all of its chunks sent."""
        if not self._announced:
            self._prepare()
        if not self._announced and self._size <= INLINE_BYTES:
            return BlobRow(self._upload.name, self._size, data=bytes(self._buffer))
        self._send(-(-len(self._buffer) // self._rows.chunk_bytes))
        return BlobRow(self._upload.name, self._size, self._chunks, self._rows.chunk_bytes)

    def discard(self) -> None:
        if not self._open:
            return
        self._open = False
        if self._announced:
            # An error is already on its way to the caller; a sweep does what is left to do.
            with contextlib.suppress(HoldfastError):
                self._drop()

    def _drop(self) -> None:
        row = UploadRow(self._upload, self._announced, self._touched_ms, is_live=True)
        if self._call(lambda: self._rows.give_up(row)):
            self._storage.clear("write", self._path, self._upload, self._announced)

    def _send(self, count: int) -> None:
        """Send the first chunks of the buffer, the last one perhaps short."""
        if not count:
            return
        self._announce(self._chunks + count)
        size = self._rows.chunk_bytes
        chunks = [bytes(self._buffer[n * size : (n + 1) * size]) for n in range(count)]
        self._storage.call_once(
            "write",
            self._path,
            lambda: self._rows.put_chunks(self._upload.name, self._chunks, chunks),
        )
        del self._buffer[: count * size]
        self._chunks += count

    def _announce(self, chunks: int) -> None:
        if chunks <= self._announced:
            return
        begins = not self._announced
        self._announced = -(-chunks // ANNOUNCED_CHUNKS) * ANNOUNCED_CHUNKS
        self._touched_ms = _now_ms()
        row = UploadRow(self._upload, self._announced, self._touched_ms, is_live=True)
        if begins:
            self._prepare()
            self._call(lambda: self._rows.begin(row))
        elif not self._call(lambda: self._rows.touch(row)):
            raise self._gone()

    def _prepare(self) -> None:
        self._call(self._rows.make)
        self._call(lambda: self._rows.note_directory(self._place.directory))

    def _gone(self) -> Unavailable:
        return Unavailable(
            f"The unfinished blob {self._path!r} in {self._storage.location} was cleaned up, "
            "because writing it took too long. Write it again."
        )

    def _call(self, call: Callable[[], T]) -> T:
        return self._storage.call("write", self._path, call)


def _joined(folder: str, path: str) -> str:
    return f"{folder}/{path}" if folder and path else folder or path


def _now_ms() -> int:
    """The time by this machine's clock, which is used only for the age of uploads."""
    return time.time_ns() // 1_000_000
