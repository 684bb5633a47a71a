"""The manifest: the one small file that makes a version real. `manifest_codec` has its bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.engine.files.filenames import (
    delivered_path,
    pack_path,
    segment_path,
)
from holdfast.engine.files.segment import SegmentInfo
from holdfast.ids import DEFAULT_STORE_NAME
from holdfast.types import Schema


@dataclass(frozen=True, slots=True)
class PackSlice:
    """The position of a small delta in a pack."""

    version: int
    attempt: str
    offset: int


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A segment as a manifest names it.

    It covers the changes of versions low..high. `inputs` are the segments that a merge or snapshot
    was made from: the same data, to fall back to if it is damaged.
    """

    kind: str
    low: int
    high: int
    attempt: str
    info: SegmentInfo
    pack: PackSlice | None = None
    inputs: tuple[SegmentRef, ...] = ()

    @property
    def name(self) -> str:
        """The segment's name, unique among all segments of its store."""
        return segment_path("", self.high, self.attempt, self.kind)

    def path(self, directory: str) -> str:
        """The file that holds it."""
        if self.pack is not None:
            return pack_path(self.pack.version, self.pack.attempt)
        return self.own_path(directory)

    def own_path(self, directory: str) -> str:
        """The file that would hold it if it were not in a pack."""
        return segment_path(directory, self.high, self.attempt, self.kind)

    def without_inputs(self) -> SegmentRef:
        """The same segment without its inputs: there is one level of fallback, not a tree."""
        return replace(self, inputs=())


@dataclass(frozen=True, slots=True)
class PartitionEntry:
    """One partition of a store: its segments, newest first, and the bounds every read applies.

    Rows whose index column is at or below `evict`, and rows whose expiry is at or below `expire`,
    are not part of the state. `modulus` is the number of partitions among which keys are divided.
    """

    index: int
    modulus: int
    segments: tuple[SegmentRef, ...] = ()
    num_keys: int = 0
    evict: int | None = None
    expire: int | None = None


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """One store of an operator in all its partitions."""

    key_schema: Schema
    value_schema: Schema
    key_index: int | None
    prefix: int
    hash_samples: Mapping[str, Any]
    partitions: tuple[PartitionEntry, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version of the whole query: every operator, store and partition."""

    version: int
    parent: int | None
    commit_id: str
    writer_id: str
    epoch: int
    committed_at_ms: int
    hash_name: str
    operators: Mapping[int, Mapping[str, StoreEntry]]
    scope: Mapping[str, Any] = field(default_factory=dict)
    batch: Mapping[str, Any] | None = None
    watermark: Mapping[str, Any] | None = None
    outbox: tuple[Mapping[str, Any], ...] = ()
    delivered_through: int | None = None
    tags: Mapping[str, int] = field(default_factory=dict)
    parent_commit_id: str | None = None
    numbering: Mapping[str, int] | None = None
    retention: Mapping[str, int] | None = None
    """How many `versions` its writer keeps, and one more for how long (`grace_ms`); None: usual."""
    lineage: int = 0
    """How many times history went back before or with this version. Of two versions with the same
    number the newer one has all the changes of the older one; of others that is not so."""
    operation: Mapping[str, Any] | None = None
    """The operation that made the version, as the journal has it; None for one of a writer's."""

    @property
    def goes_back(self) -> bool:
        """Whether history went back with this version: it undoes changes of the one before."""
        return self.operation is not None and bool(self.operation.get("goes_back"))

    @property
    def counts(self) -> bool:
        """Whether it is one of the versions that retention counts.

        What only fills, rewrites or repairs the state is kept beside them: a hundred repairs must
        not push out the versions of as many batches.
        """
        return self.delivered_through != self.version or self.version == 0

    def entry(self, operator: int, store: str, partition: int) -> PartitionEntry:
        """One partition's entry. Requires: it exists."""
        entries = self.operators[operator][store].partitions
        if 0 <= partition < len(entries) and entries[partition].index == partition:
            return entries[partition]
        for entry in entries:
            if entry.index == partition:
                return entry
        raise KeyError((operator, store, partition))

    def directory(self, operator: int, store: str, partition: int) -> str:
        """The directory of one store, as seen from the root of this manifest."""
        if self.scope.get("kind") == "store":
            return ""
        location = f"{operator}/{partition}"
        return location if store == DEFAULT_STORE_NAME else f"{location}/{store}"

    def partitions(self) -> Iterator[tuple[int, str, PartitionEntry]]:
        """Every partition with its operator and store name."""
        for operator, stores in self.operators.items():
            for name, store in stores.items():
                for entry in store.partitions:
                    yield operator, name, entry

    def directories(self) -> set[str]:
        """Every directory that holds data files of this version, packs aside."""
        return {self.directory(op, name, entry.index) for op, name, entry in self.partitions()}

    def unmerged_files(self) -> set[str]:
        """The data files of segments whose rows this version reads from nowhere else.

        They may have a second copy.
        """
        return {
            ref.path(self.directory(operator, name, entry.index))
            for operator, name, entry in self.partitions()
            for ref in entry.segments
            if not ref.inputs
        }

    def files(self) -> set[str]:
        """Every data file this version needs, including those to fall back to."""
        found = set()
        for operator, name, entry in self.partitions():
            directory = self.directory(operator, name, entry.index)
            for ref in entry.segments:
                found.add(ref.path(directory))
                found.update(part.path(directory) for part in ref.inputs)
        return found


def delivered_notes(manifest: Manifest) -> list[str]:
    """The files each of which notes that a version of a stream has reached its sink.

    A note without the commit id counts only for a version from a release that wrote no other kind.
    """
    own = delivered_path(manifest.version, manifest.commit_id)
    return [own, *([delivered_path(manifest.version, None)] if manifest.numbering is None else [])]


def fingerprint(key_schema: Schema, value_schema: Schema) -> str:
    """A text that is equal for stores with equal schemas; a task's rows fit only such stores."""
    return f"{key_schema.fingerprint()}-{value_schema.fingerprint()}"
