"""Merges segments in tiers: chooses what to merge (pure), and merges it piece by piece."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.conf import StateStoreConf
from holdfast.engine.files.filenames import segment_path
from holdfast.engine.files.manifest import PartitionEntry, SegmentRef
from holdfast.engine.files.segment_writer import SegmentWriter
from holdfast.engine.partition.chain import Chain
from holdfast.engine.partition.shape import StoreShape
from holdfast.engine.partition.stack import SegmentStack
from holdfast.engine.storage import Storage
from holdfast.engine.versions.commit import Swap

log = logging.getLogger(__name__)
_SMALLEST_TIER_BYTES = 64 << 10
_SNAPSHOT_RATIO = 3
"""Deltas of a third of a snapshot's size make a new one due: at most 4 bytes written for each."""


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Merge a manifest's segments start..stop (newest first) into one of this kind."""

    start: int
    stop: int
    kind: str


def plan(
    segments: Sequence[SegmentRef], conf: StateStoreConf, *, force: bool = False
) -> MergePlan | None:
    """Choose what to merge, or None; with `force` everything, unless it is merged already.

    A snapshot is due once there are enough deltas since the last one and together they have a third
    of its size, or once there are very many. Before that, neighbours of one tier are merged: their
    sizes are alike and the result moves up, so each byte is rewritten about once for each tier.
    """
    if force:
        merged = [ref.kind for ref in segments] in ([], ["snapshot"])
        return None if merged else MergePlan(0, len(segments), "snapshot")
    if _snapshot_is_due(segments, conf):
        return MergePlan(0, len(segments), "snapshot")
    tiers = [_tier(ref.info.size, conf.merge_fanout) for ref in segments]
    start = 0
    while start < len(tiers):
        stop = start
        while stop < len(tiers) and tiers[stop] == tiers[start]:
            stop += 1
        if stop - start >= conf.merge_fanout:
            kind = "snapshot" if stop == len(segments) else "merge"
            return MergePlan(start, stop, kind)
        start = stop
    if len(segments) >= conf.max_segments:
        return MergePlan(0, len(segments), "snapshot")
    return None


def _snapshot_is_due(segments: Sequence[SegmentRef], conf: StateStoreConf) -> bool:
    newer = []
    snapshot: SegmentRef | None = None
    for ref in segments:
        if ref.kind == "snapshot":
            snapshot = ref
            break
        newer.append(ref)
    deltas = sum(ref.high - ref.low + 1 for ref in newer)
    if deltas < conf.min_deltas_for_snapshot:
        return False
    if conf.snapshot_lag and deltas >= conf.snapshot_lag:
        return True
    weight = sum(ref.info.size for ref in newer)
    return snapshot is None or weight * _SNAPSHOT_RATIO >= snapshot.info.size


def _tier(size: int, fanout: int) -> int:
    tier, limit = 0, _SMALLEST_TIER_BYTES
    while size > limit:
        tier, limit = tier + 1, limit * fanout
    return tier


def output_path(entry: PartitionEntry, todo: MergePlan, directory: str, attempt: str) -> str:
    """The file that `merge` will write."""
    kind = _kind(entry, todo)
    return segment_path(directory, entry.segments[todo.start].high, attempt, kind)


def _kind(entry: PartitionEntry, todo: MergePlan) -> str:
    return todo.kind if todo.stop == len(entry.segments) else "merge"


def merge(
    chain: Chain,
    todo: MergePlan,
    shape: StoreShape,
    storage: Storage,
    directory: str,
    attempt: str,
    compression: str,
) -> Swap:
    """Write the merged segment and return what it replaces. Only a few chunks are in memory.

    A merge that does not reach the oldest segment keeps tombstones, and turns rows that the
    bounds hide into tombstones: otherwise an older row of the same key would come back.
    """
    chain.usable()
    refs = chain.entry.segments[todo.start : todo.stop]
    read, sources = chain.between(todo.start, todo.stop)
    reaches_oldest = todo.stop == len(chain.entry.segments)
    view = SegmentStack(sources, shape.layout, chain.bounds)
    path = output_path(chain.entry, todo, directory, attempt)
    with storage.open_writer(path) as blob:
        writer = SegmentWriter(
            blob,
            shape.layout,
            expires=any(source.has_expiry for source in sources),
            compression=compression,
        )
        for piece in view.pieces(keep_dead=not reaches_oldest):
            writer.add(piece)
        info = writer.finish()
    log.info("Merged %d segments of %s into %s", len(refs), storage.location, path)
    kind = _kind(chain.entry, todo)
    output = SegmentRef(kind, refs[-1].low, refs[0].high, attempt, info, inputs=read)
    names, bounds = tuple(ref.name for ref in refs), chain.bounds
    return Swap(names, output, bounds.evict, bounds.expire)
