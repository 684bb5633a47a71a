"""What inspection finds, as plain data. Field names are the keys of the command line's JSON."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from holdfast.store import Row
from holdfast.types import Schema

RootKind = Literal["database", "query", "store"]
"""A store made by `holdfast.open`; the state of a query; a provider's store on its own."""

ChangeKind = Literal["added", "changed", "removed"]


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """One store of an operator at one version, over all its partitions."""

    operator: int
    store: str
    partitions: tuple[PartitionInfo, ...] = field(repr=False)
    key_schema: Schema
    value_schema: Schema
    key_index_ordinal: int | None
    num_cols_prefix_key: int

    @property
    def num_keys(self) -> int:
        """Keys in all partitions."""
        return sum(part.num_keys for part in self.partitions)

    @property
    def size_bytes(self) -> int:
        """Bytes of the segments a read goes through."""
        return sum(part.size_bytes for part in self.partitions)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition of a store at one version. `evict` and `expire` are the bounds reads apply."""

    partition: int
    num_keys: int
    segments: int
    size_bytes: int
    evict: int | None
    expire: int | None


@dataclass(frozen=True, slots=True)
class VersionDetails:
    """A version and what its manifest says about the commit."""

    version: int
    parent: int | None
    committed_at_ms: int
    commit_id: str
    writer_id: str
    epoch: int
    tags: tuple[str, ...]
    batch: Mapping[str, object] | None
    watermark: Mapping[str, object] | None
    stores: tuple[StoreInfo, ...]


@dataclass(frozen=True, slots=True)
class RootInfo:
    """A root: which versions it has and the stores of the newest one that can be read."""

    location: str
    kind: RootKind
    oldest: int
    newest: int
    versions: int
    committed_at_ms: int
    tags: Mapping[str, int]
    stores: tuple[StoreInfo, ...]


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """One version in a history: what it holds, and what its commit wrote.

    `problem` says why its manifest cannot be read; the figures are None then.
    """

    version: int
    committed_at_ms: int | None = None
    """When it was committed, by the writer's clock, in ms since 1970."""
    num_keys: int | None = None
    """How many keys it has."""
    changed_rows: int | None = None
    """How many rows its commit wrote, removals included."""
    written_bytes: int | None = None
    """How many bytes of rows its commit wrote."""
    size_bytes: int | None = None
    """How many bytes of segments it is read from."""
    tags: tuple[str, ...] = ()
    """The tags that name it."""
    problem: str | None = None
    """Why its manifest cannot be read; None if it can."""
    removable_from_ms: int | None = None
    """When its grace period ends and clean-up may remove it; None for a version that is kept."""

    @property
    def bytes(self) -> int | None:
        """The former name of `size_bytes`."""
        return self._renamed("bytes", "size_bytes")

    @property
    def changed(self) -> int | None:
        """The former name of `changed_rows`."""
        return self._renamed("changed", "changed_rows")

    def _renamed(self, old: str, new: str) -> int | None:
        warnings.warn(
            f"VersionInfo.{old} is VersionInfo.{new}: the next release has that name only.",
            DeprecationWarning,
            stacklevel=3,
        )
        found: int | None = getattr(self, new)
        return found


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment a version loads from, and where its bytes are.

    It holds the changes of versions low..high. `offset` is its place in a pack, None where the
    file is its own. `fallbacks` are the segments it was made of, read when it is damaged.
    """

    kind: str
    low: int
    high: int
    rows: int
    tombstones: int
    size_bytes: int
    path: str
    offset: int | None
    present: bool
    fallbacks: tuple[SegmentFile, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionChain:
    """The segments one partition loads from, newest first."""

    operator: int
    store: str
    partition: int
    segments: tuple[SegmentFile, ...]


@dataclass(frozen=True, slots=True)
class KeyVersion:
    """A version in which one key came, changed or went; `value` is None where it went."""

    version: int
    committed_at_ms: int
    change: ChangeKind
    value: Row | None


@dataclass(frozen=True, slots=True)
class Change:
    """One key that differs between two versions."""

    change: ChangeKind
    key: Row
    before: Row | None
    after: Row | None


@dataclass(frozen=True, slots=True)
class Diff:
    """How two versions of a store differ. The counts are exact; `changes` may be cut short."""

    before: int
    after: int
    added: int
    changed: int
    removed: int
    changes: tuple[Change, ...]

    @property
    def total(self) -> int:
        """Keys that differ."""
        return self.added + self.changed + self.removed


@dataclass(frozen=True, slots=True)
class FileCheck:
    """The outcome for one file, or one entry of a pack. `problem` is None where it is intact."""

    path: str
    kind: str
    size_bytes: int
    versions: tuple[int, ...]
    offset: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome of checking every byte of a root.

    `readable` versions can be read, if need be through fallbacks; `broken` ones cannot.
    `other_files` belong to no version: notes of streams, the journal, and what clean-up has not
    removed yet.
    """

    location: str
    files: tuple[FileCheck, ...]
    checked_bytes: int
    readable: tuple[int, ...]
    broken: tuple[int, ...]
    other_files: int = 0

    @property
    def file_count(self) -> int:
        """How many files were checked; a pack is one, however many entries were."""
        return len({check.path for check in self.files})

    @property
    def problems(self) -> tuple[FileCheck, ...]:
        """The files that are not what was written."""
        return tuple(check for check in self.files if check.problem is not None)

    @property
    def intact(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems
