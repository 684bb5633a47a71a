"""The folder of a host's cache: copies of blobs in files, up to a limit.

A file is the blob, followed by a mark with its size. It is written under a temporary name and
renamed, so several processes may write one at once, and a killed one leaves only a temporary file,
which a later trim removes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
import time
import weakref
from functools import cache

import pyarrow as pa

from holdfast.backends.local import TEMPORARY_PREFIX, map_or_read, read_file_range, write_all

log = logging.getLogger(__name__)
_MAGIC = b"HOLDFAST"
_MARK_BYTES = len(_MAGIC) + 8
_LEAST_FILE_BYTES = 16 << 10
"""The least that a file counts towards the limit, so that there are never too many files."""
_TRIM_SHARE = 64
"""A process scans the folder after adding the limit divided by this."""
_STALE_S = 600.0
_TOUCH_S = 60.0
"""The shortest time between two updates of the files that a process is using."""
_PAUSE_S = 60.0
"""The time for which nothing is written after the disk refused a file."""


class CacheFolder:
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

    def copy(self, name: str, size: int = 0) -> CacheFile:
        """Begin a new copy of about `size` bytes. Without room for it, writing does nothing."""
        return CacheFile(self, name, size <= self.limit_bytes and self._is_ready())

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
def shared_folder(folder: str, limit_bytes: int) -> CacheFolder:
    """The folder as all storages of this process share it."""
    return CacheFolder(folder, limit_bytes)


class CacheFile:
    """A file of the cache while it is written. A failure of the disk silently drops it."""

    def __init__(self, folder: CacheFolder, name: str, wanted: bool) -> None:
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
