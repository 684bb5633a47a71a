"""Caches a remote root's immutable blobs on the local disk, where they are mapped.

Segments and packs are read through files that all processes of the host share; everything else
goes straight to the root. A file of the cache is the blob, followed by a mark with its size. It is
written under a temporary name and renamed, so several processes may fetch one blob at once, and a
killed one leaves only a temporary file, which a later trim removes. No file here is ever needed:
one that is missing, cut short or damaged is fetched again, and when the disk is full blobs are read
remotely.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator
from functools import cache

import pyarrow as pa

from holdfast.backends.local import (
    TEMPORARY_PREFIX,
    map_or_read,
    read_file_range,
    write_all,
)
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

log = logging.getLogger(__name__)
_CACHED = frozenset((*SEGMENT_KINDS, PACK))
_MAGIC = b"HOLDFAST"
_MARK_BYTES = len(_MAGIC) + 8
_PIECE_BYTES = 8 << 20
_LEAST_FILE_BYTES = 16 << 10
"""The least that a file counts towards the limit, so that there are never too many files."""
_TRIM_SHARE = 64
"""A process scans the folder after adding the limit divided by this."""
_STALE_S = 600.0
_TOUCH_S = 60.0
"""The shortest time between two updates of the files that a process is using."""
_PAUSE_S = 60.0
"""The time for which nothing is written after the disk refused a file."""


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
        self._folder = _shared_folder(folder, limit_bytes)
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

    def __init__(self, inner: BlobWriter, copy: _Copy) -> None:
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


class _Folder:
    """Copies by name in one folder. Failures of the disk make it useless, never wrong.

    All storages of a process share it, so that the limit holds for all of them together.
    """

    def __init__(self, folder: str, limit_bytes: int) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self._added = limit_bytes  # the first file makes it look
        self._paused_until_s = 0.0
        self._warned = False
        self._mapped: dict[int, tuple[str, weakref.ref[pa.Buffer]]] = {}
        self._touched_s = time.monotonic()

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def read(self, name: str) -> pa.Buffer | None:
        """The copy of that name; None without a complete one. Raises TooLarge."""
        size = self._size(name)
        if size is None:
            return None
        try:
            found = map_or_read(self.path(name)).slice(0, size)
        except OSError:
            return None
        self._note(name, found)
        return found

    def _note(self, name: str, found: pa.Buffer) -> None:
        """Count a copy as in use for as long as somebody holds its buffer."""
        mapped, key = self._mapped, id(found)
        mapped[key] = (name, weakref.ref(found, lambda _: mapped.pop(key, None)))

    def _touch(self) -> None:
        """Mark copies in use as recently used: they are not opened again while they are open."""
        now_s = time.monotonic()
        if now_s < self._touched_s + _TOUCH_S:
            return
        self._touched_s = now_s
        for name in {name for name, _ in list(self._mapped.values())}:
            with contextlib.suppress(OSError):
                os.utime(self.path(name))

    def read_range(self, name: str, start: int, stop: int) -> pa.Buffer | None:
        """Bytes start..stop of the copy; None without a complete one."""
        size = self._size(name)
        if size is None:
            return None
        try:
            return read_file_range(self.path(name), start, max(start, min(stop, size)))
        except OSError:
            return None

    def _size(self, name: str) -> int | None:
        """The size of a copy, by its mark; None without one. The file counts as used now."""
        path = self.path(name)
        if not self._is_own():
            return None
        try:
            with open(path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size - _MARK_BYTES
                if size >= 0 and os.pread(file.fileno(), _MARK_BYTES, size) == _mark(size):
                    os.utime(file.fileno())
                    return size
        except OSError:
            return None
        log.warning("%s is not a complete copy of a blob; it is dropped", path)
        self.drop(name)
        return None

    def drop(self, name: str) -> None:
        """Forget a copy; readers that have it mapped keep it."""
        with contextlib.suppress(OSError):
            os.unlink(self.path(name))

    def copy(self, name: str, size: int = 0) -> _Copy:
        """Begin a new copy of about `size` bytes. Without room for it, writing does nothing."""
        return _Copy(self, name, size <= self.limit_bytes and self._is_ready())

    def _is_ready(self) -> bool:
        """Whether files may be created: the folder is this user's, and the disk has room."""
        if time.monotonic() < self._paused_until_s:
            return False
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
        except OSError as error:
            self.refused(error)
            return False
        if not self._is_own():
            self.refused(PermissionError(f"{self.folder} belongs to somebody else"))
            return False
        return True

    def _is_own(self) -> bool:
        """Whether the folder is this user's: files of somebody else must not be trusted."""
        try:
            found = os.lstat(self.folder)
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()

    def refused(self, error: OSError) -> None:
        """Pause after the disk has refused a file, and log that once."""
        self._paused_until_s = time.monotonic() + _PAUSE_S
        if not self._warned:
            self._warned = True
            log.warning(
                "No blobs can be cached in %s (%s), so they are read remotely. Free space there, "
                "or set spark.holdfast.cache.location.",
                self.folder,
                error.strerror or error,
            )

    def added(self, size: int) -> None:
        """Count a new file, and trim the folder when enough was added."""
        self._touch()
        self._added += max(size, _LEAST_FILE_BYTES)
        if self._added * _TRIM_SHARE >= self.limit_bytes:
            self._added = 0
            with contextlib.suppress(OSError):
                self._trim()

    def _trim(self) -> None:
        """Remove the least recently used files until the rest is within the limit."""
        files, stale_ns = [], time.time_ns() - int(_STALE_S * 1e9)
        for entry in os.scandir(self.folder):
            with contextlib.suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                if not entry.name.startswith(TEMPORARY_PREFIX):
                    files.append((found.st_mtime_ns, found.st_size, entry.path))
                elif found.st_mtime_ns < stale_ns:
                    os.unlink(entry.path)
        total = sum(max(size, _LEAST_FILE_BYTES) for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.limit_bytes:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            total -= max(size, _LEAST_FILE_BYTES)


@cache
def _shared_folder(folder: str, limit_bytes: int) -> _Folder:
    return _Folder(folder, limit_bytes)


class _Copy:
    """A file of the cache while it is written. A failure of the disk silently drops it."""

    def __init__(self, folder: _Folder, name: str, wanted: bool) -> None:
        self._folder, self._name = folder, name
        self._path = folder.path(TEMPORARY_PREFIX + secrets.token_hex(8))
        self._file: int | None = None
        self._size = 0
        if wanted:
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._file = os.open(self._path, flags, 0o600)
            except OSError as error:
                folder.refused(error)

    @property
    def is_whole(self) -> bool:
        """Whether everything written so far is in the file."""
        return self._file is not None

    def write(self, data: bytes | memoryview | pa.Buffer) -> None:
        """Append bytes."""
        if self._file is None:
            return
        try:
            self._size += write_all(self._file, memoryview(data).cast("B"))
        except OSError as error:
            self._folder.refused(error)
            self.drop()
        else:
            if self._size > self._folder.limit_bytes:
                self.drop()

    def finish(self) -> bool:
        """Give the file its name; return whether there is a file."""
        if self._file is None:
            return False
        try:
            write_all(self._file, memoryview(_mark(self._size)))
            os.rename(self._path, self._folder.path(self._name))
        except OSError as error:
            self._folder.refused(error)
            self.drop()
            return False
        os.close(self._file)
        self._file = None
        self._folder.added(self._size)
        return True

    def drop(self) -> None:
        """Remove the file, unless it was finished."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            with contextlib.suppress(OSError):
                os.unlink(self._path)


def _mark(size: int) -> bytes:
    return _MAGIC + size.to_bytes(8, "little")


def _is_cached(path: str) -> bool:
    """Whether a blob never changes and is read more than once.

    Rows to deliver are read once, and second copies only when a blob is damaged.
    """
    found = data_file(path)
    return found is not None and found.kind in _CACHED and not found.is_copy
