"""The interface to storage: immutable blobs, and one way to create a blob exactly once.

Paths are relative to the storage's root, with '/' between parts. A blob is written whole under
a name that nobody else uses, becomes visible when its writer is closed, and never changes.
`create_if_absent` is the only operation in which two writers may race: it decides which of them
commits a version. `holdfast.testing.StorageConformance` checks a storage against this contract.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import pyarrow as pa

MOST_IN_MEMORY_BYTES = 64 << 20
"""A blob that must be copied into memory is read whole up to this size, a larger one in ranges."""


class BlobNotFound(LookupError):
    """There is no blob of that name."""


class TooLarge(Exception):
    """The blob is too large to be read whole in this process; use `Storage.read_range`."""


class ByteSink(Protocol):
    """A target that bytes are written to."""

    def write(self, data: bytes | memoryview | pa.Buffer) -> object:
        """Append `data`; the result has no meaning."""


class BlobWriter(ABC):
    """Writes one blob. As a context manager it closes on success and discards on an exception.

    Requires: only one thread at a time uses it.
    """

    @abstractmethod
    def write(self, data: bytes | memoryview | pa.Buffer) -> object:
        """Append a copy of `data`; the caller may reuse it. The result has no meaning.

        Raises Unavailable when the storage fails; then the blob can only be discarded.
        """

    @abstractmethod
    def close(self) -> None:
        """Make the blob durable, then visible under its name.

        Raises Unavailable when the storage fails. The blob may be visible all the same; the caller
        discards the writer and writes the data again.
        """

    @abstractmethod
    def discard(self) -> None:
        """Give up the blob and remove what was written of it. Does nothing after a `close`.

        What cannot be removed is left to `Storage.sweep`.
        """

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.discard()
            return
        try:
            self.close()
        except BaseException:
            self.discard()
            raise


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """An entry of a listing: a blob's path relative to the root, and its size in bytes."""

    path: str
    size: int


class Storage(ABC):
    """Blobs under one root. Safe to use from several threads.

    Every method raises `errors.Unavailable` when the medium fails and trying again may help, and
    `errors.InvalidArgument` when somebody has to change something first, such as credentials.
    """

    read_only: bool = False
    """Whether the storage can only be read. Then writing and deleting raise IllegalState."""
    is_remote: bool = False
    """Whether every read of a blob goes over a network."""
    writes_at_once: bool = False
    """Whether writing two blobs at the same time takes hardly longer than writing one."""

    @property
    @abstractmethod
    def location(self) -> str:
        """The root as a person would write it; messages show it."""

    @abstractmethod
    def read(self, path: str) -> pa.Buffer:
        """Return the bytes of the blob at `path`.

        The buffer may be a memory map; it stays valid after a `delete`. Raises BlobNotFound when
        there is no such blob, and TooLarge when it does not fit in this process.
        """

    def read_range(self, path: str, start: int, stop: int) -> pa.Buffer:
        """Return the bytes from `start` up to but excluding `stop`, fewer where the blob ends.

        Raises BlobNotFound when there is no blob at `path`.
        """
        return self.read(path)[start:stop]

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Return the size in bytes of the blob at `path`, or None when there is no such blob."""

    @abstractmethod
    def open_writer(self, path: str) -> BlobWriter:
        """Return a writer for a new blob, which is invisible until the writer is closed.

        Requires: no other writer ever uses `path`.
        """

    @abstractmethod
    def create_if_absent(self, path: str, data: bytes) -> bool:
        """Create a blob with all of `data`, durably, unless there is one at `path`.

        Returns whether this call created it. Of any number of concurrent callers exactly one gets
        True, and nobody ever sees a part of the blob. When it raises, the blob may or may not have
        been created; the caller reads it back to find out.
        """

    @abstractmethod
    def list(self, prefix: str) -> list[BlobInfo]:
        """Return every visible blob below the directory `prefix`, ordered by path.

        "" is the root. A directory that does not exist has no blobs.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove the blob at `path`. Does nothing when there is no such blob."""

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """Write a blob in one call. Requires: no other writer ever uses `path`."""
        with self.open_writer(path) as writer:
            writer.write(data)

    def adopt(self, source: Storage, path: str) -> bool:
        """Make the blob at `path` of another storage one of this, under the same path.

        No bytes pass through this process: it is for files of one disk, or objects of one server.
        Returns whether it worked; if not, nothing was changed, and the caller copies the bytes.
        After True the blob is durable, and each of the two is there until it is deleted itself.
        A blob that was adopted from there before is no obstacle. Raises BlobNotFound when `source`
        has no such blob. Requires: nobody else writes to `path`.
        """
        return False

    @property
    def source(self) -> Storage:
        """The storage that has the blobs themselves: this one without its local cache, if any."""
        return self

    def distrust(self, path: str) -> bool:
        """Drop the cached copy of a blob whose bytes turned out to be damaged.

        Returns whether there can be such a copy: then the next read gets the blob from its source.
        """
        return False

    def keep(self, path: str, data: bytes | pa.Buffer) -> bool:
        """Cache bytes that will later be part of another blob; return whether that worked."""
        return False

    def kept(self, path: str) -> pa.Buffer | None:
        """Return the bytes that `keep` cached for `path`; None when they are no longer there."""
        return None

    def cool(self, path: str) -> None:
        """Drop what this host's page cache holds of a blob, so that a read asks the medium.

        Does nothing where there is no way to do that.
        """
        return

    def sweep(self, older_than_s: float) -> int:
        """Remove unfinished blobs that crashed writers left more than `older_than_s` ago.

        Returns how many it removed. What is still being written stays.
        """
        return 0


@dataclass(frozen=True, slots=True)
class Runtime:
    """Clocks and randomness, which the engine only gets from outside.

    Tests pass their own, so that a run can be repeated exactly. `clock_ms` is wall-clock time since
    1970, `monotonic_ms` never steps back within a process, `new_id` returns 32 random hex digits.
    """

    clock_ms: Callable[[], int]
    monotonic_ms: Callable[[], int]
    new_id: Callable[[], str]

    @classmethod
    def system(cls) -> Runtime:
        """The machine's clocks and 128 random bits for each id."""
        return cls(
            clock_ms=lambda: time.time_ns() // 1_000_000,
            monotonic_ms=lambda: time.monotonic_ns() // 1_000_000,
            new_id=lambda: secrets.token_hex(16),
        )
