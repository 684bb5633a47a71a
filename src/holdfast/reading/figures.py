"""What manifests say about versions and stores, as plain data."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.engine.files.manifest import Manifest, PartitionEntry
from holdfast.engine.versions.log import VersionLog
from holdfast.reading.model import PartitionInfo, StoreInfo, VersionInfo


def version_info(
    manifest: Manifest,
    tags: tuple[str, ...],
    operator: int | None = None,
    store: str | None = None,
    partition: int | None = None,
) -> VersionInfo:
    """A version in a history, with the figures of all stores and partitions or the chosen ones."""
    entries = [
        entry
        for op, name, entry in manifest.partitions()
        if operator in (None, op) and store in (None, name) and partition in (None, entry.index)
    ]
    refs = [ref for entry in entries for ref in entry.segments]
    deltas = [ref for ref in refs if ref.low == ref.high == manifest.version]
    return VersionInfo(
        version=manifest.version,
        committed_at_ms=manifest.committed_at_ms,
        num_keys=sum(entry.num_keys for entry in entries),
        changed_rows=sum(ref.info.rows for ref in deltas),
        written_bytes=sum(ref.info.size for ref in deltas),
        size_bytes=sum(ref.info.size for ref in refs),
        tags=tags,
    )


def intact_history(
    log: VersionLog, operator: int | None = None, store: str | None = None
) -> list[VersionInfo]:
    """Every version that can be read, newest first; damaged ones are named in the log."""
    names: dict[int, list[str]] = {}
    for name, version in log.intact_tags().items():
        names.setdefault(version, []).append(name)
    return [
        version_info(manifest, tuple(sorted(names.get(manifest.version, ()))), operator, store)
        for manifest in log.intact()
    ]


def store_infos(manifest: Manifest) -> Iterator[StoreInfo]:
    """Every store of a version, by operator and name."""
    for operator, stores in sorted(manifest.operators.items()):
        for name, entry in sorted(stores.items()):
            yield StoreInfo(
                operator=operator,
                store=name,
                partitions=tuple(_partition_info(part) for part in entry.partitions),
                key_schema=entry.key_schema,
                value_schema=entry.value_schema,
                key_index_ordinal=entry.key_index,
                num_cols_prefix_key=entry.prefix,
            )


def _partition_info(entry: PartitionEntry) -> PartitionInfo:
    return PartitionInfo(
        partition=entry.index,
        num_keys=entry.num_keys,
        segments=len(entry.segments),
        size_bytes=sum(ref.info.size for ref in entry.segments),
        evict=entry.evict,
        expire=entry.expire,
    )
