"""Counters of a provider, and the metrics of a version that it reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.engine.files.manifest import SegmentRef
from holdfast.store import StateStoreCustomMetric, StateStoreMetrics

STATE_BYTES = StateStoreCustomMetric(
    "stateOnCurrentVersionSizeBytes", "bytes of the current version's segments", "size"
)
CACHE_HITS = StateStoreCustomMetric(
    "loadedMapCacheHitCount", "times a version was open already when asked for"
)
CACHE_MISSES = StateStoreCustomMetric(
    "loadedMapCacheMissCount", "times a version had to be opened from its files"
)
SEGMENTS = StateStoreCustomMetric("numSegments", "segments a read of the current version touches")
BYTES_WRITTEN = StateStoreCustomMetric("bytesWritten", "bytes of segments written so far", "size")
SNAPSHOTS = StateStoreCustomMetric("numSnapshots", "snapshots written so far")
MERGES = StateStoreCustomMetric("numMerges", "merges of deltas written so far")

SUPPORTED = (STATE_BYTES, CACHE_HITS, CACHE_MISSES, SEGMENTS, BYTES_WRITTEN, SNAPSHOTS, MERGES)


@dataclass
class Counters:
    """What one provider has done so far."""

    hits: int = 0
    misses: int = 0
    bytes_written: int = 0
    snapshots: int = 0
    merges: int = 0

    def add_merge(self, output: SegmentRef) -> None:
        """Count a merge, given the segment that it has written."""
        self.bytes_written += output.info.size
        if output.kind == "snapshot":
            self.snapshots += 1
        else:
            self.merges += 1

    def metrics_of(
        self, segments: Sequence[SegmentRef], num_keys: int, private_bytes: int
    ) -> StateStoreMetrics:
        """Metrics of a version with these segments: those of `SUPPORTED`, in that order."""
        return StateStoreMetrics(
            num_keys,
            private_bytes,
            {
                STATE_BYTES: sum(ref.info.size for ref in segments),
                CACHE_HITS: self.hits,
                CACHE_MISSES: self.misses,
                SEGMENTS: len(segments),
                BYTES_WRITTEN: self.bytes_written,
                SNAPSHOTS: self.snapshots,
                MERGES: self.merges,
            },
        )
