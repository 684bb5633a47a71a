"""The SPI under the engine: immutable blobs, and one way to create a file exactly once.

Paths are relative to the storage's root, with '/' between parts. A blob is written whole under
a name nobody else uses, becomes visible when its writer is closed, and is never changed.
`create_if_absent` is the only operation two writers may race for.
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
"""A blob that has to be copied into memory is read whole up to this size, larger ones in ranges."""


class BlobNotFound(LookupError):
    """There is no blob of that name."""


class TooLarge(Exception):
    """There is no room for the whole blob; `Storage.read_range` gives parts of it."""


class ByteSink(Protocol):
    """What bytes are written to."""

    def write(self, data: bytes | memoryview | pa.Buffer) -> object:
        """Append `data`."""


class BlobWriter(ABC):
    """Writes one blob. As a context manager it closes on success and discards on an exception."""

    @abstractmethod
    def write(self, data: bytes | memoryview | pa.Buffer) -> object:
        """Append `data`."""

    @abstractmethod
    def close(self) -> None:
        """Make the blob durable, then visible under its name."""

    @abstractmethod
    def discard(self) -> None:
        """Leave nothing behind. Does nothing after a `close` that succeeded."""

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
    """A blob as a listing shows it."""

    path: str
    size: int


class Storage(ABC):
    """Blobs under one root. Safe to use from several threads.

    Failures of the medium are raised as `errors.Unavailable`, a missing blob as `BlobNotFound`.
    """

    read_only: bool = False
    is_remote: bool = False
    """Whether a blob comes over a network each time it is read."""
    writes_at_once: bool = False
    """Whether two blobs written at the same time take hardly longer than one."""

    @property
    @abstractmethod
    def location(self) -> str:
        """The root as a person would write it; used in messages and text forms."""

    @abstractmethod
    def read(self, path: str) -> pa.Buffer:
        """The whole blob. The buffer may be a memory map; it stays valid after a `delete`.

        Raises TooLarge for a large blob that this process has no room for.
        """

    def read_range(self, path: str, start: int, stop: int) -> pa.Buffer:
        """Bytes start..stop of the blob; fewer where it ends before."""
        return self.read(path)[start:stop]

    @abstractmethod
    def size(self, path: str) -> int | None:
        """The blob's size in bytes, or None when there is no such blob."""

    @abstractmethod
    def open_writer(self, path: str) -> BlobWriter:
        """A writer for a new blob. Requires: no other writer ever uses this path."""

    @abstractmethod
    def create_if_absent(self, path: str, data: bytes) -> bool:
        """Create the blob whole and durable, unless one of that name exists.

        Of any number of concurrent callers exactly one gets True. When it raises, the blob may
        or may not have been created; the caller reads it back to find out.
        """

    @abstractmethod
    def list(self, prefix: str) -> list[BlobInfo]:
        """Every visible blob below the directory `prefix` ("" is the root), in name order."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove the blob; a missing one is no error."""

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """Write a blob in one go."""
        with self.open_writer(path) as writer:
            writer.write(data)

    @property
    def source(self) -> Storage:
        """The storage that has the blobs themselves, past any copies kept nearer by."""
        return self

    def distrust(self, path: str) -> bool:
        """Drop a nearer copy of a blob whose bytes turned out to be damaged.

        Whether there can be one: then reading again gives the blob as its source has it.
        """
        return False

    def keep(self, path: str, data: bytes | pa.Buffer) -> bool:
        """Keep bytes near by that will be part of another blob; whether this storage could."""
        return False

    def kept(self, path: str) -> pa.Buffer | None:
        """What `keep` kept, as long as there was room; None otherwise."""
        return None

    def cool(self, path: str) -> None:
        """Drop what this host's memory holds of a blob, so that a read asks the medium for it.

        Does nothing where that is not known to be possible.
        """
        return

    def sweep(self, older_than_s: float) -> int:
        """Remove what crashed writers left unfinished, when older than that; return the count."""
        return 0


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the engine may not reach for by itself: clocks and randomness."""

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
