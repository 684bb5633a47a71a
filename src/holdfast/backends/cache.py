"""Caches a remote root's immutable blobs on the local disk, where they are mapped.

Segments and packs are read through files that all processes of the host share; everything else
goes straight to the root. `cache_folder` has the files. None of them is ever needed: one that is
missing, cut short or damaged is fetched again, and when the disk is full blobs are read remotely.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator

import pyarrow as pa

from holdfast.backends.cache_folder import CacheFile, shared_folder
from holdfast.conf import AUTOMATIC, StateStoreConf
from holdfast.engine.files.filenames import PACK, SEGMENT_KINDS, data_file
from holdfast.engine.storage import (
    MOST_IN_MEMORY_BYTES,
    BlobInfo,
    BlobNotFound,
    BlobWriter,
    Storage,
    TooLarge,
)
from holdfast.errors import Unavailable

_CACHED = frozenset((*SEGMENT_KINDS, PACK))
_PIECE_BYTES = 8 << 20


def cached(storage: Storage, conf: StateStoreConf) -> Storage:
    """A remote storage behind the cache that the settings describe; the storage without one."""
    if conf.cache_size_bytes == 0:
        return storage
    return CachedStorage(storage, cache_folder(conf), conf.cache_size_bytes)


def cache_folder(conf: StateStoreConf) -> str:
    """The folder of this user's cache. Spark passes its local disks to Python workers."""
    place = conf.cache_location
    if place == AUTOMATIC:
        place = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    return os.path.join(os.path.expanduser(place), f"holdfast-cache-{os.getuid()}")


class CachedStorage(Storage):
    """`inner`, with its immutable blobs cached in `folder`, up to about `limit_bytes`."""

    def __init__(self, inner: Storage, folder: str, limit_bytes: int) -> None:
        self._inner = inner
        self._folder = shared_folder(folder, limit_bytes)
        self.read_only = inner.read_only

    @property
    def location(self) -> str:
        return self._inner.location

    @property
    def source(self) -> Storage:
        return self._inner.source

    def read(self, path: str) -> pa.Buffer:
        if not _is_cached(path):
            return self._inner.read(path)
        name = self._name(path)
        kept = self._folder.read(name)
        return self._fetch(path, name) if kept is None else kept

    def read_range(self, path: str, start: int, stop: int) -> pa.Buffer:
        kept = self._folder.read_range(self._name(path), start, stop) if _is_cached(path) else None
        return self._inner.read_range(path, start, stop) if kept is None else kept

    def size(self, path: str) -> int | None:
        return self._inner.size(path)

    def open_writer(self, path: str) -> BlobWriter:
        writer = self._inner.open_writer(path)
        if not _is_cached(path):
            return writer
        return _TeeWriter(writer, self._folder.copy(self._name(path)))

    def create_if_absent(self, path: str, data: bytes) -> bool:
        return self._inner.create_if_absent(path, data)

    def list(self, prefix: str) -> list[BlobInfo]:
        return self._inner.list(prefix)

    def delete(self, path: str) -> None:
        self._inner.delete(path)
        if _is_cached(path):
            self._folder.drop(self._name(path))

    def adopt(self, source: Storage, path: str) -> bool:
        return self._inner.adopt(source.source, path)

    def sweep(self, older_than_s: float) -> int:
        return self._inner.sweep(older_than_s)

    def distrust(self, path: str) -> bool:
        if _is_cached(path):
            self._folder.drop(self._name(path))
        return _is_cached(path)

    def keep(self, path: str, data: bytes | pa.Buffer) -> bool:
        copy = self._folder.copy(self._name(path), len(data))
        copy.write(data)
        return copy.finish()

    def kept(self, path: str) -> pa.Buffer | None:
        return self._folder.read(self._name(path))

    def _name(self, path: str) -> str:
        whole = f"{self.location}/{path}".encode()
        return hashlib.blake2b(whole, digest_size=16).hexdigest()

    def _fetch(self, path: str, name: str) -> pa.Buffer:
        """Fetch a blob from its root into the cache; into memory if the disk has no room."""
        first = self._inner.read_range(path, 0, _PIECE_BYTES)
        if first.size < _PIECE_BYTES:
            copy = self._folder.copy(name)
            copy.write(first)
            return (self._folder.read(name) if copy.finish() else None) or first
        size = self._inner.size(path)
        if size is None:
            raise BlobNotFound(path)
        copy = self._folder.copy(name, size)
        try:
            for piece in self._pieces(path, first, size):
                copy.write(piece)
                if not copy.is_whole:
                    break
            kept = self._folder.read(name) if copy.finish() else None
        finally:
            copy.drop()
        if kept is not None:
            return kept
        if size > MOST_IN_MEMORY_BYTES:
            raise TooLarge(path)
        return self._inner.read(path)

    def _pieces(self, path: str, first: pa.Buffer, size: int) -> Iterator[pa.Buffer]:
        yield first
        for start in range(_PIECE_BYTES, size, _PIECE_BYTES):
            stop = min(start + _PIECE_BYTES, size)
            piece = self._inner.read_range(path, start, stop)
            if piece.size != stop - start:
                raise Unavailable(f"{path} in {self.location} arrived incomplete. Try again.")
            yield piece


class _TeeWriter(BlobWriter):
    """Writes a blob to its root, and a copy of it to the cache."""

    def __init__(self, inner: BlobWriter, copy: CacheFile) -> None:
        self._inner, self._copy = inner, copy

    def write(self, data: bytes | memoryview | pa.Buffer) -> object:
        written = self._inner.write(data)
        self._copy.write(data)
        return written

    def close(self) -> None:
        try:
            self._inner.close()
        except BaseException:
            self._copy.drop()
            raise
        self._copy.finish()

    def discard(self) -> None:
        self._copy.drop()
        self._inner.discard()


def _is_cached(path: str) -> bool:
    """Whether a blob never changes and is read more than once.

    Rows to deliver are read once, and second copies only when a blob is damaged.
    """
    found = data_file(path)
    return found is not None and found.kind in _CACHED and not found.is_copy
