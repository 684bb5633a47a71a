"""Blobs as files on HDFS, through a client that needs neither Java nor libhdfs.

A file is written under a temporary name and renamed without overwriting: of several renames to one
name the NameNode allows a single one. A closed file is as durable as its replicas. Clients belong
to a process, and all storages of one NameNode share one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
from hdfs_native import Client, FileStatus, FileWriter, WriteOptions

from holdfast.backends.local import TEMPORARY_PREFIX
from holdfast.clients.retrying import retried
from holdfast.conf import StateStoreConf
from holdfast.engine.storage import (
    MOST_IN_MEMORY_BYTES,
    BlobInfo,
    BlobNotFound,
    BlobWriter,
    Storage,
    TooLarge,
)
from holdfast.errors import HoldfastError, IllegalState, InvalidArgument, Unavailable

T = TypeVar("T")
_WHOLE_BYTES = 4 << 20
"""A blob up to this size is sent once it is complete, so that sending can be retried."""
_TOUCH_S = 15.0
_MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_FAILURES = (OSError, RuntimeError, NotImplementedError, ValueError)
_PASSING = (
    "RetriableException", "SafeModeException", "StandbyException", "NotReplicatedYetException",
    "DataTransferError", "BlocksNotFound", "minReplication", "IOError", "Connection",
    "connection", "os error 104", "os error 110", "os error 111", "os error 113", "early eof",
    "unexpected end of file", "InvalidRPCResponse", "broken pipe", "Broken pipe",
)  # fmt: skip
_DENIED = ("AccessControlException", "AuthorizationException", "SASLError", "GSSAPIError",
           "NoSASLMechanism", "InvalidToken")  # fmt: skip
_BAD_ADDRESS = ("failed to lookup address", "Name or service not known", "No NameNode hosts",
                "UrlParseError", "invalid socket address", "invalid port")  # fmt: skip
_users: dict[str, int] = {}
"""The process that used HDFS first; its forks inherit dead connections to DataNodes."""


class HdfsStorage(Storage):
    """Files below a folder of one HDFS, which is created when first written to.

    `options` are Hadoop's settings, such as those of name services; others come from
    HADOOP_CONF_DIR. The user is HADOOP_USER_NAME, or that of the process.
    """

    is_remote = True
    writes_at_once = True

    def __init__(
        self,
        location: str,
        options: Mapping[str, str] | None = None,
        conf: StateStoreConf = StateStoreConf.empty,
    ) -> None:
        parts = urlsplit(location.rstrip("/"))
        self._location = location.rstrip("/")
        self._url = f"{parts.scheme}://{parts.netloc}" if parts.netloc else None
        # In a Hadoop path '?' and '#' are ordinary characters, unlike in a URI.
        self._root = self._location.removeprefix(self._url or "hdfs://").rstrip("/")
        self._options = tuple(sorted((options or {}).items()))
        self._limit_ms = conf.retry_timeout_ms

    @property
    def location(self) -> str:
        return self._location

    def read(self, path: str) -> pa.Buffer:
        return self._read(path, 0, None)

    def read_range(self, path: str, start: int, stop: int) -> pa.Buffer:
        return self._read(path, start, stop)

    def _read(self, path: str, start: int, stop: int | None) -> pa.Buffer:
        def read() -> bytes:
            file = self.client.read(self._absolute(path))
            size = len(file)  # the client panics on a range beyond the end
            if stop is None and size > MOST_IN_MEMORY_BYTES:
                raise TooLarge(path)
            end = size if stop is None else min(stop, size)
            return file.read_range(start, end - start) if start < end else b""

        try:
            return pa.py_buffer(self.call("read", path, read))
        except _MISSING:
            raise BlobNotFound(path) from None

    def size(self, path: str) -> int | None:
        status = self._status(path)
        return None if status is None or status.isdir else int(status.length)

    def open_writer(self, path: str) -> BlobWriter:
        return _HdfsWriter(self, path)

    def create_if_absent(self, path: str, data: bytes) -> bool:
        temporary, created = self.temporary_for(path), None
        try:
            self.call("create", path, lambda: self.send(temporary, data))
            created = self.rename(temporary, path)
        except _MISSING as error:
            raise self.lost(path) from error
        finally:
            if created is False:
                self.drop(temporary)
        return self._holds(path, data) if created is None else created

    def _holds(self, path: str, data: bytes) -> bool:
        """Whether the file has this data, when its temporary file is gone."""
        try:
            return bytes(self.read(path)) == data
        except BlobNotFound:
            raise self.lost(path) from None

    def lost(self, path: str) -> Unavailable:
        """The error when a temporary file vanished before it got its name."""
        return Unavailable(
            f"{path} cannot be written to {self._location}: its temporary file is gone. Write it "
            "again."
        )

    def list(self, prefix: str) -> list[BlobInfo]:
        found = self._files(prefix)
        start = len(self._root) + 1
        visible = [
            BlobInfo(status.path[start:], int(status.length))
            for status in found
            if not status.path.rpartition("/")[2].startswith(TEMPORARY_PREFIX)
        ]
        return sorted(visible, key=lambda blob: blob.path)

    def delete(self, path: str) -> None:
        with contextlib.suppress(*_MISSING):
            self.call("delete", path, lambda: self.client.delete(self._absolute(path), False))

    def sweep(self, older_than_s: float) -> int:
        limit_ms = (time.time() - older_than_s) * 1000
        stale = [
            status.path
            for status in self._files("")
            if status.path.rpartition("/")[2].startswith(TEMPORARY_PREFIX)
            and status.modification_time < limit_ms
        ]
        for path in stale:
            with contextlib.suppress(*_MISSING):
                self.call("sweep", "", functools.partial(self.client.delete, path, False))
        return len(stale)

    # -- what writers need ---------------------------------------------------------------------

    @property
    def client(self) -> Client:
        """The client in this process."""
        return _client_of(os.getpid(), self._url, self._options)

    def temporary_for(self, path: str) -> str:
        """A new absolute name beside `path`, which no listing shows."""
        folder = self._absolute(path).rpartition("/")[0]
        return f"{folder}/{TEMPORARY_PREFIX}{secrets.token_hex(8)}"

    def create(self, temporary: str) -> FileWriter:
        """Begin a file under a temporary name, replacing that of an earlier attempt."""
        return self.client.create(temporary, WriteOptions(overwrite=True, create_parent=True))

    def send(self, temporary: str, data: bytes) -> None:
        """Write a whole file under a temporary name."""
        file = self.create(temporary)
        if data:
            file.write(data)
        file.close()

    def rename(self, temporary: str, path: str) -> bool | None:
        """Give a finished file its name; return False when the name is taken.

        None means that the temporary file is gone. Either it was renamed by an earlier request
        whose reply was lost, since the client repeats those, or a sweep took it for a dead
        writer's. The caller must look at the file of that name to find out.
        """
        target = self._absolute(path)
        try:
            self.call("create", path, lambda: self.client.rename(temporary, target, False))
        except (FileExistsError, FileNotFoundError):
            left = self.call("create", path, lambda: self._exists(temporary))
            return False if left else None
        return True

    def call(self, what: str, path: str, call: Callable[[], T]) -> T:
        """Return what `call` returns, retried; map failures except missing or existing files."""
        try:
            return retried(call, _passes, self._limit_ms)
        except (HoldfastError, FileExistsError, *_MISSING):
            raise
        except _FAILURES as error:
            if _says(error, ("ParentNotDirectory", "is not a directory")):
                raise NotADirectoryError(path) from None
            raise self._mapped(error, what, path) from error

    def drop(self, temporary: str) -> None:
        """Remove a temporary file if it exists; if that fails, a sweep removes it later."""
        with contextlib.suppress(*_FAILURES):
            self.client.delete(temporary, False)

    def _absolute(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root or "/"

    def _exists(self, absolute: str) -> bool:
        try:
            self.client.get_file_info(absolute)
        except _MISSING:
            return False
        return True

    def _status(self, path: str) -> FileStatus | None:
        try:
            return self.call(
                "look up", path, lambda: self.client.get_file_info(self._absolute(path))
            )
        except _MISSING:
            return None

    def _files(self, prefix: str) -> Sequence[FileStatus]:
        """Every file below a folder. It is listed again when a folder vanished meanwhile."""
        folder = self._absolute(prefix)
        while True:
            try:
                found = self.call(
                    "list", prefix, lambda: list(self.client.list_status(folder, True))
                )
                return [status for status in found if not status.isdir and status.path != folder]
            except _MISSING:
                if self._status(prefix) is None:
                    return []

    def _mapped(self, error: Exception, what: str, path: str) -> HoldfastError:
        failed = f"Could not {what} {path or 'the root'!r} in {self._location}"
        if _says(error, _DENIED):
            return InvalidArgument(
                f"{failed}: permission denied. Use a user that may read and write there: set "
                "HADOOP_USER_NAME, or get a Kerberos ticket where HDFS requires one.",
                condition="STATE_STORE_ACCESS_DENIED",
            )
        if _says(error, _BAD_ADDRESS):
            return InvalidArgument(
                f"{failed}: there is no such NameNode. Write hdfs://host:port/folder (the port is "
                "often 8020), or set HADOOP_CONF_DIR for a name service."
            )
        return Unavailable(
            f"{failed}: {_reason(error)}. Check that NameNode and DataNodes run, and try again. "
            "`holdfast doctor` checks the root."
        )


class _HdfsWriter(BlobWriter):
    """Sends a small blob when it is complete, and a large one while it is written."""

    def __init__(self, storage: HdfsStorage, path: str) -> None:
        self._storage, self._path = storage, path
        self._temporary = storage.temporary_for(path)
        self._buffer = bytearray()
        self._size = 0
        self._file: FileWriter | None = None
        self._touched_s = time.monotonic()
        self._open = True

    def write(self, data: bytes | memoryview | pa.Buffer) -> object:
        view = memoryview(data).cast("B")
        self._buffer += view
        self._size += len(view)
        if len(self._buffer) > _WHOLE_BYTES:
            self._flush()
        return len(view)

    def close(self) -> None:
        if self._file is None:
            data = bytes(self._buffer)
            self._call(lambda: self._storage.send(self._temporary, data))
        else:
            self._flush()
            file = self._file
            self._once(file.close)
        renamed = self._storage.rename(self._temporary, self._path)
        if renamed is None and self._storage.size(self._path) != self._size:
            raise self._storage.lost(self._path)
        if renamed is False:
            raise Unavailable(
                f"{self._path} already exists in {self._storage.location}; it was not overwritten."
            )
        self._open = False

    def discard(self) -> None:
        if self._open:
            self._open = False
            self._buffer.clear()
            self._storage.drop(self._temporary)

    def _flush(self) -> None:
        if self._file is None:
            self._file = self._call(lambda: self._storage.create(self._temporary))
        file, data = self._file, bytes(self._buffer)
        self._buffer.clear()
        if data:
            self._once(lambda: file.write(data))
        if time.monotonic() - self._touched_s > _TOUCH_S:
            self._touch()

    def _touch(self) -> None:
        """Update the file's time, so that a sweep does not take it for a dead writer's."""
        self._touched_s = time.monotonic()
        now_ms = int(time.time() * 1000)
        self._call(lambda: self._storage.client.set_times(self._temporary, now_ms, now_ms))

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return self._storage.call("write", self._path, call)
        except _MISSING as error:
            raise self._storage.lost(self._path) from error

    def _once(self, call: Callable[[], object]) -> None:
        """Make a call that cannot be repeated without sending all that came before it again."""
        try:
            call()
        except _FAILURES as error:
            raise Unavailable(
                f"Could not write {self._path!r} to {self._storage.location}: {_reason(error)}. "
                "Write it again."
            ) from error


@functools.lru_cache(maxsize=16)
def _client_of(pid: int, url: str | None, options: tuple[tuple[str, str], ...]) -> Client:
    """A client of this process; its threads do not exist in a fork."""
    if _users.setdefault("first", pid) != pid:
        raise IllegalState(
            "HDFS was used before this process was forked, so its client does not work here. "
            "Start processes with multiprocessing's method spawn, or use HDFS only in them."
        )
    # With one NameNode the client tries once, and `retried` decides how long to go on. With a name
    # service it must try several times to reach each NameNode.
    attempts = "0" if url is not None and urlsplit(url).port is not None else "3"
    return Client(url, {"dfs.client.failover.max.attempts": attempts, **dict(options)})


def _passes(error: Exception) -> bool:
    """Whether the request may succeed the next time."""
    if isinstance(error, (HoldfastError, FileExistsError, *_MISSING)):
        return False
    if _says(error, (*_DENIED, *_BAD_ADDRESS)):
        return False
    return isinstance(error, OSError) or _says(error, _PASSING)


def _says(error: Exception, words: tuple[str, ...]) -> bool:
    text = str(error)
    return any(word in text for word in words)


def _reason(error: Exception) -> str:
    """The kind of a failure; the rest of its text is not safe to show."""
    text = str(error)
    known = next((word for word in _PASSING if word in text), None)
    return f"{type(error).__name__} ({known})" if known else type(error).__name__
