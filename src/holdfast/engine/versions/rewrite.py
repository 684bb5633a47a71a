"""Rewrites a store with other value columns, each partition as one segment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import pyarrow as pa

from holdfast.conf import StateStoreConf
from holdfast.engine.files import copies
from holdfast.engine.files.filenames import segment_path
from holdfast.engine.files.manifest import (
    Manifest,
    PartitionEntry,
    SegmentRef,
    StoreEntry,
    fingerprint,
)
from holdfast.engine.files.segment_writer import SegmentWriter
from holdfast.engine.partition.chain import Chain, SegmentCache
from holdfast.engine.partition.reader import PartitionReader
from holdfast.engine.partition.rows import Rows
from holdfast.engine.partition.shape import StoreShape
from holdfast.engine.storage import Runtime, Storage
from holdfast.engine.versions.commit import PreparedPartition
from holdfast.engine.versions.first import new_store_entry
from holdfast.types import AtomicType, DataType, DecimalType, Schema

StoreName = tuple[int, str]
"""An operator and the name of one of its stores."""
Stores = Mapping[int, Mapping[str, StoreShape]]
ChangeColumns = Callable[[Rows], list[pa.Array]]
"""The new value columns of some rows."""


_WIDER = {
    "byte": {"short", "integer", "long", "double"}, "short": {"integer", "long", "double"},
    "integer": {"long", "double"}, "float": {"double"},
}  # fmt: skip
"""Types that hold every value of another."""


def can_become(stored: Schema, wanted: Schema) -> bool:
    """Whether values of one schema can be read as those of another.

    Columns are matched by name. They may be added, dropped and reordered, and types may widen.
    """
    known = {field.name: field for field in stored}
    return all(
        field.nullable >= known[field.name].nullable and _takes(known[field.name].type, field.type)
        if field.name in known
        else field.nullable
        for field in wanted
    )


def _takes(stored: DataType, wanted: DataType) -> bool:
    if stored == wanted:
        return True
    if isinstance(stored, DecimalType) and isinstance(wanted, DecimalType):
        digits = wanted.precision - wanted.scale >= stored.precision - stored.scale
        return digits and wanted.scale >= stored.scale
    if not isinstance(stored, AtomicType) or not isinstance(wanted, AtomicType):
        return False
    return wanted.name in _WIDER.get(stored.name, ())


def empty_stores(base: Manifest, stores: Stores, dropped: Collection[StoreName] = ()) -> Manifest:
    """`base` with these stores empty, their bounds kept, and the stores of `dropped` removed.

    The next version is committed on top of it, with what `rewrite` prepared.
    """
    operators = {
        number: {name: entry for name, entry in entries.items() if (number, name) not in dropped}
        for number, entries in base.operators.items()
    }
    for number, shapes in stores.items():
        some = next(iter(base.operators[number].values()))
        for name, shape in shapes.items():
            before = operators[number].get(name, some)
            operators[number][name] = _without_rows(before, shape, keep=name in operators[number])
    return replace(base, operators=operators)


def _without_rows(before: StoreEntry, shape: StoreShape, *, keep: bool) -> StoreEntry:
    entry = new_store_entry(shape, [(part.index, part.modulus) for part in before.partitions])
    if not keep:
        return entry
    bounded = [
        replace(new, evict=old.evict, expire=old.expire)
        for new, old in zip(entry.partitions, before.partitions, strict=True)
    ]
    return replace(entry, partitions=tuple(bounded))


def prepare_unchanged(
    base: Manifest, operator: int, name: str, entry: PartitionEntry
) -> PreparedPartition:
    """The result for a partition that a version does not change."""
    store = base.operators[operator][name]
    return PreparedPartition(
        operator=operator,
        store=name,
        partition=entry.index,
        base_version=base.version,
        schemas=fingerprint(store.key_schema, store.value_schema),
        delta=None,
        num_keys=entry.num_keys,
    )


def rewrite(
    manifest: Manifest,
    operator: int,
    name: str,
    partition: int,
    shape: StoreShape,
    change: ChangeColumns,
    storage: Storage,
    runtime: Runtime,
    conf: StateStoreConf,
) -> PreparedPartition:
    """Write one partition of a version with other value columns, for the next version.

    For a store that the version does not have, nothing is written.
    """
    prepared = PreparedPartition(
        operator=operator,
        store=name,
        partition=partition,
        base_version=manifest.version,
        schemas=fingerprint(shape.key_schema, shape.value_schema),
        delta=None,
        num_keys=0,
    )
    stored = manifest.operators[operator].get(name)
    if stored is None or not manifest.entry(operator, name, partition).segments:
        return prepared
    entry, before = manifest.entry(operator, name, partition), StoreShape.of_entry(stored)
    directory = manifest.directory(operator, name, partition)
    chain = Chain(entry, manifest.version, SegmentCache(storage, directory, before.layout))
    version, attempt = manifest.version + 1, runtime.new_id()
    expires = any(segment.has_expiry for segment in chain.segments())
    path = segment_path(directory, version, attempt, "snapshot")
    with copies.open_writer(storage, path, conf) as blob:
        writer = SegmentWriter(blob, shape.layout, expires=expires, compression=conf.compression)
        for rows in PartitionReader(before, chain).pieces():
            writer.add(Rows(rows.hashes, rows.keys, change(rows), expires=rows.expires))
        info = writer.finish()
    ref = SegmentRef("snapshot", entry.segments[-1].low, version, attempt, info)
    return replace(prepared, delta=ref, num_keys=info.rows)
