"""What differs between two versions of one partition.

Between neighbouring versions few segments differ, so only their keys are looked up on both sides.
Where that is not the whole story (a bound was raised, or a snapshot took the place of segments
that are no longer there) both sides are read whole.

Of two versions between which history went back, neither has all changes of the other. They may
still share their older segments, and differ in keys of the others alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

import numpy as np
import pyarrow as pa

from holdfast.engine.arrays import Index, Mask
from holdfast.engine.files.blocks import BadSegment
from holdfast.engine.files.manifest import SegmentRef
from holdfast.engine.files.segment import Segment
from holdfast.engine.partition.bounds import Bounds
from holdfast.engine.partition.columns import equal
from holdfast.engine.partition.reader import PartitionReader
from holdfast.engine.partition.rows import Rows
from holdfast.engine.partition.stack import KeyMatches, SegmentStack
from holdfast.reading.evolution import fit_columns
from holdfast.reading.model import Change, ChangeKind
from holdfast.types import MapType, RowCodec, Schema


@dataclass
class PartitionDiff:
    """The changes of one partition; the counts go on where the list has no more room."""

    room: int | None
    values: Schema
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
    values: Schema,
    room: int | None,
    *,
    went_back: bool = False,
) -> PartitionDiff:
    """How `after` differs from `before`, whichever is the newer; lists up to `room` changes.

    Both are compared in the value columns of `values`. `went_back` says that history went back
    between the two.
    """
    found = PartitionDiff(room, values)
    touched = _touched_pieces(before, after, open_segment, went_back=went_back)
    if touched is not None:
        _compare(found, touched, before, after)
    else:
        _compare(found, after.pieces(), before, after)
        _compare(found, before.pieces(), before, after, only_removed=True)
    return found


def undone_rows(
    before: PartitionReader,
    after: PartitionReader,
    open_segment: Callable[[SegmentRef], Segment],
    values: Schema,
) -> Iterator[tuple[pa.Table, pa.Array]]:
    """What `after`, with which history went back, has otherwise than the version `before` it.

    Keys with their values in `after`, and for each row whether `after` has no such key.
    """
    touched = _touched_pieces(before, after, open_segment, went_back=True)
    whole = after.pieces() if touched is None else touched
    others = before.pieces() if touched is None else iter(())
    for piece, only_removed in chain(zip(whole, repeat(False)), zip(others, repeat(True))):
        pairs = _Pairs(before, after, piece, values)
        gone = pairs.was & ~pairs.stays
        written = pairs.stays & ~(pairs.was & pairs.same())
        yield pairs.rows(gone if only_removed else gone | written, gone)


def _touched_pieces(
    before: PartitionReader,
    after: PartitionReader,
    open_segment: Callable[[SegmentRef], Segment],
    *,
    went_back: bool,
) -> Iterator[Rows] | None:
    """Every key that may differ, tombstones included, or None when that takes a full read."""
    old, new = sorted((before, after), key=lambda reader: reader.chain.version)
    refs = _own_segments(old, new) if went_back else _fresh_segments(old, new)
    if refs is None:
        return None
    try:
        segments = [open_segment(ref) for ref in refs]
        for segment in segments:
            segment.check()
    except BadSegment:
        return None
    return SegmentStack(segments, new.shape.layout, Bounds()).pieces(keep_dead=True)


def _fresh_segments(old: PartitionReader, new: PartitionReader) -> list[SegmentRef] | None:
    """The segments of `new` that hold what came after `old`, or None when they cannot tell."""
    if old.chain.bounds != new.chain.bounds or old.shape is not new.shape:
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


def _own_segments(old: PartitionReader, new: PartitionReader) -> list[SegmentRef] | None:
    """The segments that only one of both has, None where the others are not the same in both.

    Older segments that both have give a key the same value in both, unless a newer one has it too.
    """
    if old.chain.bounds != new.chain.bounds or old.shape is not new.shape:
        return None
    ours, theirs = list(new.chain.entry.segments), list(old.chain.entry.segments)
    while ours and theirs and ours[-1].name == theirs[-1].name:
        ours.pop()
        theirs.pop()
    return sorted((*ours, *theirs), key=lambda ref: ref.high, reverse=True)


def _compare(
    found: PartitionDiff,
    pieces: Iterator[Rows],
    before: PartitionReader,
    after: PartitionReader,
    *,
    only_removed: bool = False,
) -> None:
    for piece in pieces:
        pairs = _Pairs(before, after, piece, found.values)
        found.add("removed", pairs, np.flatnonzero(pairs.was & ~pairs.stays))
        if only_removed:
            continue
        found.add("added", pairs, np.flatnonzero(~pairs.was & pairs.stays))
        both = pairs.was & pairs.stays
        found.add("changed", pairs, np.flatnonzero(both & ~pairs.same()))


def _lookup(reader: PartitionReader, rows: Rows) -> KeyMatches:
    return reader.chain.run(lambda view: view.lookup(rows.hashes, rows.keys), reader.shape.layout)


class _Pairs:
    """Keys with their values on both sides, column by column."""

    def __init__(
        self, before: PartitionReader, after: PartitionReader, rows: Rows, values: Schema
    ) -> None:
        self._key_codec, self._key_schema = before.shape.keys, before.shape.key_schema
        self._values = values
        self._keys = rows.keys
        was, stays = _lookup(before, rows), _lookup(after, rows)
        self.was: Mask = was.mask()
        self.stays: Mask = stays.mask()
        self._before = self._columns(was, before)
        self._after = self._columns(stays, after)

    def _columns(self, found: KeyMatches, reader: PartitionReader) -> list[pa.Array]:
        stored = reader.shape.value_schema
        return fit_columns(
            found.values(reader.shape.layout), stored, self._values, len(self._keys[0])
        )

    def same(self) -> Mask:
        """Where both sides have the same bits and nulls."""
        same = np.ones(len(self.was), bool)
        fields = zip(self._values.fields, self._before, self._after, strict=True)
        for column, before, after in fields:
            if any(isinstance(kind, MapType) for kind in column.type.walk()):
                pairs = zip(before.to_pylist(), after.to_pylist(), strict=True)
                same &= np.array([left == right for left, right in pairs], bool)
            else:
                same &= equal(before, after)
        return same

    def rows(self, which: Mask, gone: Mask) -> tuple[pa.Table, pa.Array]:
        """Some of the keys with their values afterwards, and which of them are gone."""
        schema = pa.schema([*self._key_schema.arrow, *self._values.arrow])
        table = pa.table([*self._keys, *self._after], schema=schema)
        return table.filter(pa.array(which)), pa.array(gone[which])

    def changes(self, kind: ChangeKind, which: Index) -> list[Change]:
        """Some of the pairs as rows."""
        at = pa.array(which)
        values = RowCodec(self._values)
        keys = _rows(self._key_codec, self._keys, at)
        old = _rows(values, self._before, at)
        new = _rows(values, self._after, at)
        return [
            Change(kind, key, None if kind == "added" else b, None if kind == "removed" else a)
            for key, b, a in zip(keys, old, new, strict=True)
        ]


def _rows(codec: RowCodec, columns: Sequence[pa.Array], at: pa.Array) -> list[tuple[object, ...]]:
    return codec.from_arrow([column.take(at) for column in columns], len(at))
