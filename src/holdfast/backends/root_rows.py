"""The contract of a database that holds roots: rows of blobs, of uploads, and of their chunks.

`chunked` says what the rows mean, and works on them alone; each database has statements for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from holdfast.errors import HoldfastError


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """A row of a directory: a blob's by its name, an upload's by its id."""

    directory: str
    name: str


@dataclass(frozen=True, slots=True)
class BlobRow:
    """The row of a visible blob. `data` is None where there are chunks."""

    upload: str
    size: int
    chunks: int = 0
    chunk_bytes: int = 0
    data: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class UploadRow:
    """The row of an upload: chunks below `chunks` may exist; `touched_ms` is its last activity."""

    place: DirectoryEntry
    chunks: int
    touched_ms: int
    is_live: bool


class RootRows(ABC):
    """The rows of one root in a database. Every method may be repeated after it failed.

    Every change of a blob or upload row is atomic, and ordered with all other changes of its
    directory; a read sees all changes that were decided before. Failures are the client's own
    exceptions, those in `errors`. `blobs`, `uploads` and the methods for chunks send many requests
    and retry each of them for `limit_ms`: when one of these methods raises, it has retried, and
    none of its requests is still in flight. The caller retries all other methods.
    """

    chunk_bytes: ClassVar[int]
    errors: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, limit_ms: int) -> None:
        self.limit_ms = limit_ms

    @abstractmethod
    def passes(self, error: Exception) -> bool:
        """Whether a call that failed like this may succeed the next time."""

    @abstractmethod
    def mapped(self, error: Exception, failed: str) -> HoldfastError:
        """The error for callers; `failed` is the beginning of its message."""

    @abstractmethod
    def exist(self) -> bool:
        """Whether the tables exist. Raises InvalidArgument if they are not Holdfast's."""

    @abstractmethod
    def make(self) -> None:
        """Create the tables unless they exist. Raises InvalidArgument if not Holdfast's."""

    @abstractmethod
    def note_directory(self, directory: str) -> None:
        """Make a directory permanently known to `directories`."""

    @abstractmethod
    def directories(self, prefix: str) -> list[str]:
        """The noted directories at and below `prefix` ("": all)."""

    @abstractmethod
    def blob(self, place: DirectoryEntry) -> BlobRow | None:
        """The row of a blob, with its data."""

    @abstractmethod
    def blobs(self, directories: Sequence[str]) -> list[tuple[DirectoryEntry, int]]:
        """Every blob directly in these directories, with its size."""

    @abstractmethod
    def uploads(self, directories: Sequence[str]) -> list[UploadRow]:
        """Every upload row of these directories."""

    @abstractmethod
    def create(self, place: DirectoryEntry, row: BlobRow) -> bool:
        """Create a blob's row with its data unless the blob has a row; return whether it did."""

    @abstractmethod
    def begin(self, upload: UploadRow) -> None:
        """Create an upload row."""

    @abstractmethod
    def touch(self, upload: UploadRow) -> bool:
        """Update an upload row unless it is gone or given up; return whether it did."""

    @abstractmethod
    def finish(self, place: DirectoryEntry, row: BlobRow) -> bool:
        """Replace an upload's row by its blob's; return whether it did.

        It does nothing when the blob has a row, or the upload is gone or given up.
        """

    @abstractmethod
    def replace(self, place: DirectoryEntry, before: BlobRow, row: BlobRow) -> bool:
        """Replace a blob's row if it still is `before`; return whether it did.

        The new row has its data, as from `create`, or chunks, as from `finish`. The chunks of
        `before` become those of a dead upload.
        """

    @abstractmethod
    def give_up(self, upload: UploadRow) -> bool:
        """Mark an upload row as not live if it is unchanged; return whether it did."""

    @abstractmethod
    def remove(self, place: DirectoryEntry, row: BlobRow) -> None:
        """Remove a blob's row if it still has this upload; its chunks become a dead upload's."""

    @abstractmethod
    def forget(self, upload: DirectoryEntry) -> None:
        """Remove an upload row."""

    @abstractmethod
    def put_chunks(self, upload: str, first: int, chunks: Sequence[bytes]) -> None:
        """Write chunks, numbered from `first`."""

    @abstractmethod
    def get_chunks(self, upload: str, numbers: range) -> list[bytes | None]:
        """Read chunks; None for one that does not exist."""

    @abstractmethod
    def delete_chunks(self, upload: str, count: int) -> None:
        """Remove the first `count` chunks, those that exist."""
