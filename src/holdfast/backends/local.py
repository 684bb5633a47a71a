"""Blobs as files on a local disk: mapped for reading, and renamed into place once written.

A mapped file must never be truncated, as that kills the process: so files are never changed in
place. `create_if_absent` writes a temporary file, makes it durable and links it to its name. A link
is exclusive and shows the whole file or nothing; an exclusive `open` would show a part of it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import secrets
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from holdfast.conf import StateStoreConf
from holdfast.engine.storage import BlobInfo, BlobNotFound, BlobWriter, Storage, TooLarge
from holdfast.errors import Unavailable
from holdfast.schemes import name_in

TEMPORARY_PREFIX = ".tmp-"
_DIRECTORY_MODE = 0o750
_FILE_MODE = 0o640
_MAPS_SHARE = 32
"""With a limit on the address space, a file larger than the limit divided by this is read in
ranges: maps stay while their version is open, and work also needs room."""
_ALWAYS_WHOLE_BYTES = 1 << 20
_MISSING = (FileNotFoundError, NotADirectoryError)
_NO_LINK = frozenset({
    errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS,
})  # fmt: skip
"""Why a file cannot have another name: another disk, no such file system, or not one's own file."""


class LocalStorage(Storage):
    """Files below a directory of this host, which is created when first written to."""

    writes_at_once = True

    def __init__(self, root: str | Path) -> None:
        self._root = os.path.abspath(root)

    @classmethod
    def at(cls, location: str, options: Mapping[str, str], conf: StateStoreConf) -> LocalStorage:
        """That at a path or a `file:` URI; neither options nor settings change it."""
        is_path = name_in(location) == ""
        return cls(Path(location).expanduser() if is_path else _path_of(location))

    @property
    def location(self) -> str:
        return self._root

    def read(self, path: str) -> pa.Buffer:
        with _mapped_errors("read", path):
            try:
                return map_or_read(self._absolute(path))
            except _MISSING:
                raise BlobNotFound(path) from None

    def read_range(self, path: str, start: int, stop: int) -> pa.Buffer:
        with _mapped_errors("read", path):
            try:
                return read_file_range(self._absolute(path), start, stop)
            except _MISSING:
                raise BlobNotFound(path) from None

    def size(self, path: str) -> int | None:
        with _mapped_errors("look up", path):
            try:
                found = os.stat(self._absolute(path))
            except _MISSING:
                return None
            return found.st_size if stat.S_ISREG(found.st_mode) else None

    def open_writer(self, path: str) -> BlobWriter:
        with _mapped_errors("write", path):
            return _LocalWriter(self, path)

    def create_if_absent(self, path: str, data: bytes) -> bool:
        target = self._absolute(path)
        with _mapped_errors("create", path):
            temporary = self.temporary_for(path)
            try:
                _write_durably(temporary, data)
                try:
                    os.link(temporary, target)
                except FileExistsError:
                    return False
                sync_directory(os.path.dirname(target))
                return True
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)

    def list(self, prefix: str) -> list[BlobInfo]:
        with _mapped_errors("list", prefix):
            found = [
                BlobInfo(os.path.relpath(entry.path, self._root), entry.stat().st_size)
                for entry in _walk(self._absolute(prefix))
                if not entry.name.startswith(TEMPORARY_PREFIX)
            ]
        return sorted(found, key=lambda blob: blob.path)

    def delete(self, path: str) -> None:
        with _mapped_errors("delete", path), contextlib.suppress(*_MISSING):
            os.unlink(self._absolute(path))

    def adopt(self, source: Storage, path: str) -> bool:
        """Give the file another name, where both are on one disk."""
        if not isinstance(source, LocalStorage):
            return False
        here, there = self._absolute(path), source._absolute(path)
        with _mapped_errors("link", path):
            try:
                if not stat.S_ISREG(os.lstat(there).st_mode):
                    return False
            except _MISSING:
                raise BlobNotFound(path) from None
            _make_directory(os.path.dirname(here))
            if not _link(there, here, path):
                return False
            sync_directory(os.path.dirname(here))
            return True

    def cool(self, path: str) -> None:
        if not hasattr(os, "posix_fadvise"):
            return
        with contextlib.suppress(OSError):
            descriptor = os.open(self._absolute(path), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)

    def sweep(self, older_than_s: float) -> int:
        limit = time.time() - older_than_s
        removed = 0
        with _mapped_errors("sweep", ""):
            for entry in _walk(self._root):
                if entry.name.startswith(TEMPORARY_PREFIX) and entry.stat().st_mtime < limit:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(entry.path)
                        removed += 1
        return removed

    def temporary_for(self, path: str) -> str:
        """A new name beside `path`, which no listing shows; creates the directory."""
        directory = os.path.dirname(self._absolute(path))
        _make_directory(directory)
        return os.path.join(directory, TEMPORARY_PREFIX + secrets.token_hex(8))

    def publish(self, temporary: str, path: str) -> None:
        """Give a finished, durable temporary file its name."""
        target = self._absolute(path)
        os.rename(temporary, target)
        sync_directory(os.path.dirname(target))

    def _absolute(self, path: str) -> str:
        return os.path.join(self._root, path) if path else self._root


def _path_of(location: str) -> str:
    """The path of a `file:` URI, with what a URI would take for a query or a fragment.

    Spark writes such a location without escapes: a folder whose name has a `%` is taken as it is.
    """
    path = location.partition(":")[2]
    if path.startswith("//"):
        path = "/" + path[2:].partition("/")[2]
    return path if os.path.exists(path) else unquote(path)


class _LocalWriter(BlobWriter):
    def __init__(self, storage: LocalStorage, path: str) -> None:
        self._storage, self._path = storage, path
        self._temporary = storage.temporary_for(path)
        self._file = open(self._temporary, "xb", buffering=0, opener=_opener)  # noqa: SIM115
        self._open = True

    def write(self, data: bytes | memoryview | pa.Buffer) -> object:
        with _mapped_errors("write", self._path):
            return write_all(self._file.fileno(), memoryview(data).cast("B"))

    def close(self) -> None:
        with _mapped_errors("write", self._path):
            os.fsync(self._file.fileno())
            self._file.close()
            self._storage.publish(self._temporary, self._path)
        self._open = False

    def discard(self) -> None:
        if self._open:
            self._open = False
            self._file.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary)


def _link(there: str, here: str, path: str) -> bool:
    """Whether a file has a second name now, or had it before."""
    try:
        os.link(there, here)
    except FileExistsError:
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.lstat(there), os.lstat(here))
        return False
    except FileNotFoundError:
        raise BlobNotFound(path) from None
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    return True


def _make_directory(directory: str) -> None:
    missing = []
    while not os.path.isdir(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    for child in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(child, _DIRECTORY_MODE)
        sync_directory(os.path.dirname(child))


def sync_directory(directory: str) -> None:
    """Make the names in a directory survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, _FILE_MODE)


def _write_durably(path: str, data: bytes) -> None:
    with open(path, "xb", buffering=0, opener=_opener) as file:
        write_all(file.fileno(), memoryview(data))
        os.fsync(file.fileno())


def write_all(descriptor: int, data: memoryview) -> int:
    """Write every byte, with as many calls as necessary; return their number."""
    written = 0
    while written < len(data):
        written += os.write(descriptor, data[written:])
    return written


def map_or_read(path: str) -> pa.Buffer:
    """Map a file, or read it where it cannot be mapped. Raises TooLarge and OSError."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise FileNotFoundError(path)
    if found.st_size == 0:
        return pa.py_buffer(b"")
    if found.st_size > max(_address_space() // _MAPS_SHARE, _ALWAYS_WHOLE_BYTES):
        raise TooLarge(path)
    try:
        # The buffer outlives the file object, so no descriptor stays open.
        with pa.memory_map(path) as mapped:
            return mapped.read_buffer()
    except FileNotFoundError:
        raise
    except OSError as error:
        if found.st_size > _ALWAYS_WHOLE_BYTES:
            raise TooLarge(path) from error
        return read_file_range(path, 0, found.st_size)


def _address_space() -> int:
    """The address space of this process; `spark.executor.pyspark.memory` limits it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def read_file_range(path: str, start: int, stop: int) -> pa.Buffer:
    """Bytes start..stop of a file; fewer where it ends before."""
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        data = bytearray(max(0, min(stop, os.fstat(file.fileno()).st_size) - start))
        view, filled = memoryview(data), 0
        while filled < len(data) and (count := file.readinto(view[filled:])):
            filled += count
    return pa.py_buffer(data).slice(0, filled)


def _walk(directory: str) -> Iterator[os.DirEntry[str]]:
    try:
        entries = list(os.scandir(directory))
    except _MISSING:
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path)
            elif entry.is_file(follow_symlinks=False):
                entry.stat()
                yield entry
        except FileNotFoundError:
            continue


@contextlib.contextmanager
def _mapped_errors(what: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise Unavailable(
            f"Could not {what} {path or 'the root'!r}: {reason}. Check the disk (space, "
            "permissions) and try again."
        ) from error
    except MemoryError as error:
        raise Unavailable(
            f"Could not {what} {path or 'the root'!r}: out of memory. Raise this process's "
            "memory limit (in Spark `spark.executor.pyspark.memory`)."
        ) from error
