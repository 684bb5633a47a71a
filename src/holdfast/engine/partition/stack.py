"""Reads a stack of sorted sources, newest first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from holdfast.engine.arrays import Hashes, Index, Mask
from holdfast.engine.files.hash_filter import HashFilter, Tops, tops
from holdfast.engine.files.segment import Layout, Zone
from holdfast.engine.partition.bounds import Bounds, IndexRange
from holdfast.engine.partition.columns import gather, take
from holdfast.engine.partition.rows import NEVER, Rows, index_numbers, merge_rows
from holdfast.types import RowCodec

_LOWEST = int(np.iinfo(np.int64).min)
_LOW_HALF = (1 << 32) - 1
_GETS_WORTH_FILTERS = 4096
PIECE_BYTES = 128 << 20
"""The most that is merged at a time, unless all of it has one hash."""


class Source(Protocol):
    """Sorted rows in chunks: an open segment, or a run of a memtable."""

    firsts: Hashes
    starts: list[int]

    @property
    def num_chunks(self) -> int: ...

    def __len__(self) -> int: ...
    def last(self, number: int) -> int: ...
    def zone(self, number: int) -> Zone: ...
    def chunk(self, number: int) -> Rows: ...
    def filter(self, wanted: int) -> HashFilter | None: ...


@dataclass(frozen=True, slots=True)
class KeyMatches:
    """Where wanted keys were found: chunks, in each the rows `at` for the wanted numbers `to`."""

    parts: list[tuple[Rows, Index, Index]]
    wanted: int

    def mask(self) -> Mask:
        """Which of the wanted keys were found."""
        found = np.zeros(self.wanted, bool)
        for _, _, to in self.parts:
            found[to] = True
        return found

    def values(self, layout: Layout) -> list[pa.Array]:
        """The value columns in the order of the wanted keys, null where not found."""
        return [
            gather([(rows.value(i), at, to) for rows, at, to in self.parts], kind, self.wanted)
            for i, kind in enumerate(layout.values.types)
        ]


class SegmentStack:
    """A partition's state: sources, newest first, seen through bounds. Immutable."""

    def __init__(self, sources: Sequence[Source], layout: Layout, bounds: Bounds) -> None:
        self._sources = [source for source in sources if source.num_chunks]
        self._layout = layout
        self.bounds = bounds
        self._bounded = bounds != Bounds()
        self._gets = 0
        self._filters: list[HashFilter | None] = [None] * len(self._sources)

    def lookup(self, hashes: Hashes, keys: Sequence[pa.Array]) -> KeyMatches:
        """Find keys, sorted by hash. The newest row of a key decides, then the bounds apply."""
        hits, _ = _hits(self._sources, hashes, keys)
        return KeyMatches([hit for hit in map(self._live_hit, hits) if len(hit[1])], len(hashes))

    def _live_hit(self, hit: tuple[Rows, Index, Index]) -> tuple[Rows, Index, Index]:
        rows, at, to = hit
        live = self.bounds.live(rows, at, self._layout)
        return hit if live is None else (rows, at[live], to[live])

    def get_one(
        self, key_hash: int, key: tuple[Any, ...], keys: RowCodec, values: RowCodec
    ) -> tuple[Any, ...] | None:
        """The value of one key, given in the form of `keys.hashable`; None without the key."""
        # Filters cost a pass over their sources, so single reads only get them after so many. The
        # oldest source needs none: it is asked last, and has most of the keys.
        self._gets += 1
        if self._gets == _GETS_WORTH_FILTERS:
            self._filters = [source.filter(len(source)) for source in self._sources[:-1]]
            self._filters.append(None)
        for source, bitmap in zip(self._sources, self._filters):  # noqa: B905 - equally long, hot
            if bitmap is not None and not bitmap.may_have(key_hash):
                continue
            starts = source.starts
            number = bisect_right(starts, key_hash) - 1 if len(starts) > 1 else 0
            rows = source.chunk(max(0, number))
            at = rows.find_one(key_hash, key, keys)
            if at >= 0:
                if rows.dead is not None or self._bounded:
                    live = self.bounds.live(rows, slice(at, at + 1), self._layout)
                    if live is not None and not live[0]:
                        return None
                return rows.value_at(at, values)
        return None

    def pieces(
        self,
        *,
        low: int = _LOWEST,
        high: int | None = None,
        within: IndexRange | None = None,
        keep_dead: bool = False,
    ) -> Iterator[Rows]:
        """The state in hash order, a piece at a time, each key once.

        `low`..`high` limits the hashes (`high` excluded), `within` the index. With `keep_dead`
        tombstones are included, and rows that the bounds hide become tombstones.
        """
        for runs in self._piece_runs(low, high, within):
            merged = merge_rows(runs)
            live = self.bounds.live(merged, slice(None), self._layout)
            if live is not None and keep_dead:
                merged = buried(merged, ~live)
            elif live is not None:
                merged = merged.where(live)
            if len(merged):
                yield merged

    def with_tops(self, tops: Hashes) -> list[Rows]:
        """The live rows whose hash has one of the given top halves, as one run or none.

        Requires: the top halves ascend.
        """
        lows, highs = tops << 32, tops << 32 | _LOW_HALF
        runs = [
            rows.take(at)
            for source in self._sources
            for number in range(source.num_chunks)
            for rows, at in _in_ranges(source, number, lows, highs)
        ]
        if not runs:
            return []
        merged = merge_rows(runs)
        live = self.bounds.live(merged, slice(None), self._layout)
        return [merged if live is None else merged.where(live)]

    def _piece_runs(
        self, low: int, high: int | None, within: IndexRange | None
    ) -> Iterator[list[Rows]]:
        """The runs to merge at a time.

        They are cut at the chunks of the largest source, and halved where they are still too large.
        """
        if not self._sources:
            return
        largest = max(self._sources, key=len)
        cuts = [int(first) for first in largest.firsts[1:] if first > low]
        if high is not None:
            cuts = [cut for cut in cuts if cut < high]
        for start, stop in zip([low, *cuts], [*cuts, high], strict=True):
            yield from self._bounded_runs(start, stop, within)

    def _bounded_runs(
        self, low: int, high: int | None, within: IndexRange | None
    ) -> Iterator[list[Rows]]:
        runs = [
            run
            for source in self._sources
            for run in self._runs(source, low, high, within)
            if len(run)
        ]
        cut = _middle(runs) if sum(run.nbytes for run in runs) > PIECE_BYTES else None
        if cut is not None:
            yield from self._bounded_runs(low, cut, within)
            yield from self._bounded_runs(cut, high, within)
        elif runs:
            yield runs

    def _runs(
        self, source: Source, low: int, high: int | None, within: IndexRange | None
    ) -> Iterator[Rows]:
        first = max(0, int(np.searchsorted(source.firsts, low, "right")) - 1)
        for number in range(first, source.num_chunks):
            if high is not None and source.firsts[number] >= high:
                return
            if source.last(number) < low:
                continue
            if within is not None and within.misses(source.zone(number)):
                continue
            rows = source.chunk(number).between(low, high)
            yield rows if within is None else within.cut(rows, self._layout)

    def dying(self, new: Bounds) -> int:
        """How many live keys the bounds `new` would hide. Reads no chunk that cannot have any."""
        return sum(len(at) for _, at in self._dying(new))

    def dying_rows(self, new: Bounds) -> Iterator[Rows]:
        """The live rows that the bounds `new` would hide, each key once."""
        for rows, at in self._dying(new):
            if len(at):
                yield rows.take(at)

    def _dying(self, new: Bounds) -> Iterator[tuple[Rows, Index]]:
        for place, source in enumerate(self._sources):
            for number in range(source.num_chunks):
                if self._may_die(source.zone(number), new):
                    rows, at = self._dying_rows(source.chunk(number), new)
                    yield rows, _not_in(self._sources[:place], rows, at)

    def earliest(self, after: int, *, expiry: bool) -> int | None:
        """The lowest index, or expiry, above a number; it may be that of a removed row.

        Chunks that lie completely above the number are not read.
        """
        found = NEVER
        for source in self._sources:
            for number in range(source.num_chunks):
                zone = source.zone(number)
                low, high = (
                    (zone.expires_min, zone.expires_max)
                    if expiry
                    else (zone.index_min, zone.index_max)
                )
                if low > after:
                    found = min(found, low)
                elif high > after:
                    numbers = self._numbers(source.chunk(number), expiry)
                    found = min(found, int(numbers[numbers > after].min(initial=NEVER)))
        return None if found == NEVER else found

    def _numbers(self, rows: Rows, expiry: bool) -> Hashes:
        if expiry:
            return np.empty(0, np.int64) if rows.expires is None else rows.expires
        assert self._layout.index is not None
        numbers = index_numbers(rows.keys[self._layout.index])
        assert numbers is not None
        return numbers

    def _may_die(self, zone: Zone, new: Bounds) -> bool:
        old = self.bounds
        by_index = new.evict is not None and zone.index_min <= new.evict
        if by_index and old.evict is not None and zone.index_max <= old.evict:
            by_index = False
        by_expiry = new.expire is not None and zone.expires_min <= new.expire
        return by_index or by_expiry

    def _dying_rows(self, rows: Rows, new: Bounds) -> tuple[Rows, Index]:
        live = new.live(rows, slice(None), self._layout)
        if live is None:
            return rows, np.empty(0, np.int64)
        was_live = self.bounds.live(rows, slice(None), self._layout)
        gone = ~live if was_live is None else ~live & was_live
        return rows, np.flatnonzero(gone)


def _in_ranges(
    source: Source, number: int, lows: Hashes, highs: Hashes
) -> Iterator[tuple[Rows, Index]]:
    """A chunk and its rows in ascending ranges of hashes, both ends included; or nothing."""
    first = int(np.searchsorted(highs, source.firsts[number]))
    last = int(np.searchsorted(lows, source.last(number), "right"))
    if first >= last:
        return
    rows = source.chunk(number)
    starts = np.searchsorted(rows.hashes, lows[first:last])
    counts = np.searchsorted(rows.hashes, highs[first:last], "right") - starts
    ends = np.cumsum(counts)
    if ends[-1]:
        at = np.arange(ends[-1]) + np.repeat(starts - (ends - counts), counts)
        yield rows, at


def buried(rows: Rows, dead: Mask) -> Rows:
    """`rows` with tombstones where `dead`; their values become null."""
    if not dead.any():
        return rows
    values = []
    for i in range(rows.num_values):
        column = rows.value(i)
        at = pa.array(np.arange(len(rows)), mask=dead)
        values.append(column.take(at))
    return Rows(rows.hashes, rows.keys, values, dead, rows.expires)


def _middle(runs: Sequence[Rows]) -> int | None:
    """A hash that divides the largest run, or another one; None where each has a single hash."""
    for run in sorted(runs, key=lambda run: run.nbytes, reverse=True):
        for at in (len(run) // 2, int(np.searchsorted(run.hashes, run.hashes[0], "right"))):
            if at < len(run) and run.hashes[at] > run.hashes[0]:
                return int(run.hashes[at])
    return None


def _not_in(newer: Sequence[Source], rows: Rows, at: Index) -> Index:
    """Those of the rows `at` whose key is in no newer source."""
    if len(at) == 0 or not newer:
        return at
    _, missing = _hits(newer, rows.hashes[at], [take(array, at) for array in rows.keys])
    return at[missing]


def _hits(
    sources: Sequence[Source], hashes: Hashes, keys: Sequence[pa.Array]
) -> tuple[list[tuple[Rows, Index, Index]], Mask]:
    """The newest row, dead or not, of each of the keys, and which keys have none.

    Requires: the keys are sorted by hash.
    """
    hits: list[tuple[Rows, Index, Index]] = []
    missing = np.ones(len(hashes), bool)
    halves: Tops | None = None
    rest: Index | None = None
    for place, source in enumerate(sources):
        asked = rest
        oldest = place == len(sources) - 1
        bitmap = None if oldest else source.filter(len(hashes) if rest is None else len(rest))
        if bitmap is not None:
            halves = tops(hashes) if halves is None else halves
            asked = _likely(bitmap, halves, rest)
        before = len(hits)
        for rows, at, to in _find(source, hashes, keys, asked):
            missing[to] = False
            if rows.is_private:
                rows, at = rows.take(at), np.arange(len(at))
            hits.append((rows, at, to))
        if len(hits) > before:
            rest = np.flatnonzero(missing)
            if len(rest) == 0:
                break
    return hits, missing


def _likely(bitmap: HashFilter, halves: Tops, rest: Index | None) -> Index:
    """Of the rows `rest` (None: all), those the filter does not rule out."""
    maybe = np.flatnonzero(bitmap.may_contain(halves if rest is None else halves.take(rest)))
    return maybe if rest is None else rest.take(maybe)


def _find(
    source: Source, hashes: Hashes, keys: Sequence[pa.Array], rest: Index | None
) -> Iterator[tuple[Rows, Index, Index]]:
    """Chunk by chunk, where the source has the rows `rest` of `hashes` (None: all)."""
    wanted = hashes if rest is None else hashes[rest]
    cuts = np.searchsorted(wanted, source.firsts).tolist()
    cuts.append(len(wanted))
    for number in range(source.num_chunks):
        low, high = cuts[number], cuts[number + 1]
        if low == high:
            continue
        rows = source.chunk(number)
        if rest is None:
            slices = [array.slice(low, high - low) for array in keys]
            which, at = rows.find(wanted[low:high], slices)
            to = which + low
        else:
            which, at = rows.find(wanted[low:high], keys, rest[low:high])
            to = rest[low:high][which]
        if len(which):
            yield rows, at, to
