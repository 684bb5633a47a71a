"""What differs between two versions of one partition.

Between neighbouring versions few segments differ, so only their keys are looked up on both sides.
Where that is not the whole story (a bound was raised, or a snapshot took the place of segments
that are no longer there) both sides are read whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from holdfast.engine.blocks import BadSegment
from holdfast.engine.columns import Index, Mask, equal
from holdfast.engine.manifest import SegmentRef
from holdfast.engine.rows import Rows
from holdfast.engine.segment import Segment
from holdfast.engine.view import Bounds, Found, StateView
from holdfast.engine.writer import PartitionReader
from holdfast.inspection.model import Change, ChangeKind
from holdfast.types import MapType, RowCodec


@dataclass
class PartitionDiff:
    """The changes of one partition; the counts go on where the list has no more room."""

    room: int | None
    counts: dict[ChangeKind, int] = field(
        default_factory=lambda: {"added": 0, "changed": 0, "removed": 0}
    )
    changes: list[Change] = field(default_factory=list)

    def add(self, kind: ChangeKind, pairs: _Pairs, which: Index) -> None:
        """Count some of the pairs, and list as many as there is room for."""
        self.counts[kind] += len(which)
        if self.room is not None:
            which = which[: max(0, self.room - len(self.changes))]
        if len(which):
            self.changes += pairs.changes(kind, which)


def diff_partition(
    before: PartitionReader,
    after: PartitionReader,
    open_segment: Callable[[SegmentRef], Segment],
    room: int | None,
) -> PartitionDiff:
    """How `after` differs from `before`, whichever is the newer; lists up to `room` changes."""
    found = PartitionDiff(room)
    old, new = sorted((before, after), key=lambda reader: reader.chain.version)
    touched = _touched_pieces(old, new, open_segment)
    if touched is not None:
        _compare(found, touched, before, after)
    else:
        _compare(found, after.pieces(), before, after)
        _compare(found, before.pieces(), before, after, only_removed=True)
    return found


def _touched_pieces(
    old: PartitionReader, new: PartitionReader, open_segment: Callable[[SegmentRef], Segment]
) -> Iterator[Rows] | None:
    """Every key that may differ, tombstones included, or None when that takes a full read."""
    refs = _fresh_segments(old, new)
    if refs is None:
        return None
    try:
        segments = [open_segment(ref) for ref in refs]
        for segment in segments:
            segment.check()
    except BadSegment:
        return None
    return StateView(segments, new.shape.layout, Bounds()).pieces(keep_dead=True)


def _fresh_segments(old: PartitionReader, new: PartitionReader) -> list[SegmentRef] | None:
    """The segments of `new` that hold what came after `old`, or None when they cannot tell."""
    if old.chain.bounds != new.chain.bounds:
        return None
    version = old.chain.version
    fresh: list[SegmentRef] = []
    for ref in new.chain.entry.segments:
        spans = ref.low <= version < ref.high
        for part in ref.inputs if spans and ref.inputs else (ref,):
            if part.low <= version < part.high:
                return None
            if part.low > version:
                fresh.append(part)
    return fresh


def _compare(
    found: PartitionDiff,
    pieces: Iterator[Rows],
    before: PartitionReader,
    after: PartitionReader,
    *,
    only_removed: bool = False,
) -> None:
    for piece in pieces:
        pairs = _Pairs(before, piece, _lookup(before, piece), _lookup(after, piece))
        found.add("removed", pairs, np.flatnonzero(pairs.was & ~pairs.stays))
        if only_removed:
            continue
        found.add("added", pairs, np.flatnonzero(~pairs.was & pairs.stays))
        both = pairs.was & pairs.stays
        found.add("changed", pairs, np.flatnonzero(both & ~pairs.same()))


def _lookup(reader: PartitionReader, rows: Rows) -> Found:
    return reader.chain.run(lambda view: view.lookup(rows.hashes, rows.keys), reader.shape.layout)


class _Pairs:
    """Keys with their values on both sides, column by column."""

    def __init__(self, reader: PartitionReader, rows: Rows, before: Found, after: Found) -> None:
        self._shape = reader.shape
        self._keys = rows.keys
        self.was: Mask = before.mask()
        self.stays: Mask = after.mask()
        self._before = before.values(reader.shape.layout)
        self._after = after.values(reader.shape.layout)

    def same(self) -> Mask:
        """Where both sides have the same bits and nulls."""
        same = np.ones(len(self.was), bool)
        fields = zip(self._shape.value_schema.fields, self._before, self._after, strict=True)
        for column, before, after in fields:
            if any(isinstance(kind, MapType) for kind in column.type.walk()):
                pairs = zip(before.to_pylist(), after.to_pylist(), strict=True)
                same &= np.array([left == right for left, right in pairs], bool)
            else:
                same &= equal(before, after)
        return same

    def changes(self, kind: ChangeKind, which: Index) -> list[Change]:
        """Some of the pairs as rows."""
        at = pa.array(which)
        keys = _rows(self._shape.keys, self._keys, at)
        old = _rows(self._shape.values, self._before, at)
        new = _rows(self._shape.values, self._after, at)
        return [
            Change(kind, key, None if kind == "added" else b, None if kind == "removed" else a)
            for key, b, a in zip(keys, old, new, strict=True)
        ]


def _rows(codec: RowCodec, columns: Sequence[pa.Array], at: pa.Array) -> list[tuple[object, ...]]:
    return codec.from_arrow([column.take(at) for column in columns], len(at))
