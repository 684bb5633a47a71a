"""One root opened for looking: its versions, stores and files. Nothing is ever written."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property

from holdfast.engine.files.filenames import COPYING, VERSIONS, manifest_version
from holdfast.engine.files.manifest import Manifest, PartitionEntry, SegmentRef, StoreEntry
from holdfast.engine.partition.chain import Chain, SegmentCache
from holdfast.engine.partition.reader import PartitionReader
from holdfast.engine.partition.shape import StoreShape
from holdfast.engine.storage import Runtime, Storage
from holdfast.engine.versions.log import VersionLog
from holdfast.engine.versions.numbering import Numbering
from holdfast.engine.versions.retention import USUAL_RETENTION, grace_ends_ms
from holdfast.errors import Corruption, InvalidArgument, VersionNotFound
from holdfast.ids import DEFAULT_STORE_NAME, OPERATOR
from holdfast.reading.figures import store_infos, version_info
from holdfast.reading.model import (
    PartitionChain,
    RootInfo,
    RootKind,
    SegmentFile,
    VersionDetails,
    VersionInfo,
)
from holdfast.reading.store import InspectedStore
from holdfast.types import Schema

NEWEST = "newest"
HOW_TO_CHOOSE = (
    "Choose one with --operator and --store (operator= and store= in Python, operatorId and "
    "storeName in Spark)"
)


class Root:
    """A root's history, read-only. Requires: at least one version has a manifest.

    Manifests are read when first needed and kept; open a new Root to see later commits.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.log = VersionLog(storage, Runtime.system())
        self._manifests: dict[int, Manifest] = {}
        self._caches: dict[tuple[str, Schema], SegmentCache] = {}
        self._shapes: dict[tuple[object, ...], StoreShape] = {}

    @property
    def location(self) -> str:
        """The root as a person would write it."""
        return self.storage.location

    @cached_property
    def versions(self) -> tuple[int, ...]:
        """Every version that has a manifest, ascending."""
        return tuple(self.log.versions())

    @cached_property
    def tags(self) -> dict[str, int]:
        """Every tag with its version."""
        return self.log.tags()

    @cached_property
    def kind(self) -> RootKind:
        """What wrote this root."""
        manifest = self.newest_readable()
        if manifest.scope.get("kind") == "store":
            return "store"
        stores = [
            (operator, name)
            for operator in manifest.operators
            for name in manifest.operators[operator]
        ]
        is_database = stores == [(OPERATOR, DEFAULT_STORE_NAME)] and manifest.batch is None
        return "database" if is_database else "query"

    def manifest(self, version: int) -> Manifest:
        """The manifest of a version. Raises VersionNotFound or Corruption."""
        if version not in self._manifests:
            self._manifests[version] = self.log.load(version)
        return self._manifests[version]

    def resolve(self, at: int | str | None = None) -> int:
        """A version by number, by number in text, or by tag; the newest for None or "newest"."""
        if at is None or at == NEWEST:
            return self.versions[-1]
        if isinstance(at, int) or at.isdecimal():
            number = int(at)
            if number not in self.versions:
                raise VersionNotFound(
                    f"Version {number} is not in {self.location}, which has "
                    f"{_spans(self.versions)}: it was never committed, or retention has removed it."
                )
            return number
        if at not in self.tags:
            names = ", ".join(sorted(self.tags)) or "none"
            raise VersionNotFound(
                f"{self.location} has no version or tag {at!r}. Tags: {names}; versions: "
                f"{_spans(self.versions)}."
            )
        return self.tags[at]

    def at_time(self, moment: datetime) -> int:
        """The newest version that was committed by a time, in UTC where it has no zone."""
        wanted = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        limit_ms = int(wanted.timestamp() * 1000)
        for version in reversed(self.versions):
            with suppress(Corruption):
                if self.manifest(version).committed_at_ms <= limit_ms:
                    return version
        raise VersionNotFound(
            f"{self.location} has no version from {wanted.isoformat()} or before. `holdfast "
            "history` lists the versions with their times."
        )

    def of_batch(self, batch_id: int) -> int:
        """The version that was delivered under a batch id, as sinks and progress know it."""
        for version in self.versions:
            with suppress(Corruption):
                manifest = self.manifest(version)
                if version and manifest.counts and Numbering.of(manifest).last == batch_id:
                    return version
        raise VersionNotFound(
            f"{self.location} has no version of batch {batch_id}: it was never committed, or "
            "retention has removed it. `holdfast history` lists the versions."
        )

    def info(self) -> RootInfo:
        """The root at a glance."""
        manifest = self.newest_readable()
        return RootInfo(
            location=self.location,
            kind=self.kind,
            oldest=self.versions[0],
            newest=self.versions[-1],
            versions=len(self.versions),
            committed_at_ms=manifest.committed_at_ms,
            tags=self._known_tags,
            stores=tuple(store_infos(manifest)),
        )

    def version(
        self,
        at: int | str | None = None,
        operator: int | None = None,
        store: str | None = None,
        partition: int | None = None,
    ) -> VersionDetails:
        """One version with the chosen stores in it."""
        self._check_choice(operator, store, partition)
        manifest = self.manifest(self.resolve(at))
        return VersionDetails(
            version=manifest.version,
            parent=manifest.parent,
            committed_at_ms=manifest.committed_at_ms,
            commit_id=manifest.commit_id,
            writer_id=manifest.writer_id,
            epoch=manifest.epoch,
            tags=self._tags_of(manifest.version),
            batch=manifest.batch,
            watermark=manifest.watermark,
            stores=tuple(
                replace(
                    info,
                    partitions=tuple(
                        part for part in info.partitions if partition in (None, part.partition)
                    ),
                )
                for info in store_infos(manifest)
                if operator in (None, info.operator) and store in (None, info.store)
            ),
        )

    def before(self, version: int) -> int:
        """The version before one; itself where it is the oldest."""
        return max((other for other in self.versions if other < version), default=version)

    def history(
        self,
        operator: int | None = None,
        store: str | None = None,
        partition: int | None = None,
        limit: int | None = None,
    ) -> list[VersionInfo]:
        """The versions there are, newest first; figures of the chosen stores only."""
        self._check_choice(operator, store, partition)
        ends = self._grace_ends()
        infos = (
            self._info(version, operator, store, partition)
            for version in self.versions[::-1][:limit]
        )
        return [replace(info, removable_from_ms=ends.get(info.version)) for info in infos]

    def _grace_ends(self) -> dict[int, int]:
        """When the versions that wait for their end may be removed, as far as that is known."""
        retention = self.newest_readable().retention or USUAL_RETENTION
        if len(self.versions) <= retention["versions"]:
            return {}
        found: dict[int, Manifest] = {}
        for version in self.versions:
            with suppress(Corruption):
                found[version] = self.manifest(version)
        return grace_ends_ms(
            {version: each.committed_at_ms for version, each in found.items()},
            set(self._known_tags.values()),
            retention["versions"],
            retention["grace_ms"],
            {version for version, each in found.items() if not each.counts},
        )

    def _info(
        self, version: int, operator: int | None, store: str | None, partition: int | None
    ) -> VersionInfo:
        tags = self._tags_of(version)
        try:
            manifest = self.manifest(version)
        except Corruption as error:
            return VersionInfo(version, tags=tags, problem=error.message)
        return version_info(manifest, tags, operator, store, partition)

    def chains(
        self,
        at: int | str | None = None,
        operator: int | None = None,
        store: str | None = None,
        partition: int | None = None,
    ) -> list[PartitionChain]:
        """The segments a version loads from, partition by partition."""
        self._check_choice(operator, store, partition)
        manifest = self.manifest(self.resolve(at))
        return [
            PartitionChain(
                op,
                name,
                entry.index,
                tuple(
                    self._segment_file(manifest.directory(op, name, entry.index), ref)
                    for ref in entry.segments
                ),
            )
            for op, name, entry in manifest.partitions()
            if operator in (None, op) and store in (None, name)
            if partition in (None, entry.index)
        ]

    def _segment_file(self, directory: str, ref: SegmentRef) -> SegmentFile:
        path = ref.path(directory)
        found = self.storage.size(path)
        needed = ref.info.size + (0 if ref.pack is None else ref.pack.offset)
        return SegmentFile(
            kind=ref.kind,
            low=ref.low,
            high=ref.high,
            rows=ref.info.rows,
            tombstones=ref.info.dead,
            size_bytes=ref.info.size,
            path=path,
            offset=None if ref.pack is None else ref.pack.offset,
            present=found is not None and found >= needed,
            fallbacks=tuple(self._segment_file(directory, part) for part in ref.inputs),
        )

    def store(
        self, operator: int | None = None, store: str | None = None, partition: int | None = None
    ) -> InspectedStore:
        """One store for reading, by operator and name; needed only where there are several.

        With `partition`, that partition alone is read.
        """
        manifest = self.newest_readable()
        found = [
            (op, name)
            for op, stores in sorted(manifest.operators.items())
            for name in sorted(stores)
            if operator in (None, op) and store in (None, name)
        ]
        if len(found) != 1:
            raise self._no_single_store(manifest, several=bool(found))
        op, name = found[0]
        indexes = [entry.index for entry in manifest.operators[op][name].partitions]
        if partition is not None and partition not in indexes:
            raise InvalidArgument(
                f"Operator {op}, store {name!r} has no partition {partition}; it has "
                f"{_spans(indexes)}."
            )
        return InspectedStore(self, op, name, partition)

    def _check_choice(self, operator: int | None, store: str | None, partition: int | None) -> None:
        """Refuse a choice that leaves nothing, rather than show nothing."""
        manifest = self.newest_readable()
        if not any(
            operator in (None, op) and store in (None, name) and partition in (None, entry.index)
            for op, name, entry in manifest.partitions()
        ):
            raise self._no_single_store(manifest, several=False)

    def _no_single_store(self, manifest: Manifest, *, several: bool) -> InvalidArgument:
        choice = "; ".join(
            f"operator {op}, store {name}, partitions {_spans([e.index for e in entry.partitions])}"
            for op, stores in sorted(manifest.operators.items())
            for name, entry in sorted(stores.items())
        )
        what = "holds several stores" if several else "has nothing like that"
        return InvalidArgument(f"{self.location} {what}. {HOW_TO_CHOOSE}: {choice}.")

    def reader(
        self, manifest: Manifest, operator: int, store: str, entry: PartitionEntry
    ) -> PartitionReader:
        """One partition at one version; segments are opened once for all versions."""
        shape = self.shape(manifest.operators[operator][store])
        cache = self.cache(operator, store, entry.index, shape)
        return PartitionReader(shape, Chain(entry, manifest.version, cache))

    def cache(self, operator: int, store: str, partition: int, shape: StoreShape) -> SegmentCache:
        """The open segments of one partition, shared by all versions of that shape."""
        directory = self.newest_readable().directory(operator, store, partition)
        place = directory, shape.value_schema
        if place not in self._caches:
            self._caches[place] = SegmentCache(self.storage, directory, shape.layout)
        return self._caches[place]

    def shape(self, entry: StoreEntry) -> StoreShape:
        """What follows from a store's schemas."""
        notes = tuple(field.metadata for field in (*entry.key_schema, *entry.value_schema))
        made_of = (entry.key_schema, entry.value_schema, entry.key_index, entry.prefix, notes)
        if made_of not in self._shapes:
            self._shapes[made_of] = StoreShape.of_entry(entry)
        return self._shapes[made_of]

    @property
    def _known_tags(self) -> dict[str, int]:
        """The tags, or none where one is damaged: that must not hide the versions."""
        try:
            return self.tags
        except Corruption:
            return {}

    def _tags_of(self, version: int) -> tuple[str, ...]:
        known = self._known_tags.items()
        return tuple(sorted(name for name, tagged in known if tagged == version))

    def newest_readable(self) -> Manifest:
        """The newest manifest that is not damaged."""
        for version in reversed(self.versions):
            try:
                return self.manifest(version)
            except Corruption:
                if version == self.versions[0]:
                    raise
        raise VersionNotFound(f"{self.location} has no version.")

    def __repr__(self) -> str:
        return f"Root[{self.location}, versions={_spans(self.versions)}]"


def has_versions(storage: Storage) -> bool:
    """Whether a storage holds the manifests of a root, or some of them and a copy's mark."""
    listed = [blob.path for blob in storage.list(VERSIONS)]
    return COPYING in listed or any(manifest_version(path) is not None for path in listed)


def _spans(numbers: tuple[int, ...] | list[int]) -> str:
    """Numbers as ranges: 1–3, 7."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in spans)
