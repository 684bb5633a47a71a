"""Rows sorted by key hash, of which memtables, segments and merges consist."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.engine.arrays import Hashes, Index, Mask
from holdfast.engine.partition.cells import RowReader, row_reader
from holdfast.engine.partition.columns import canonical_column, equal, take, valid_mask, words
from holdfast.engine.partition.ranks import RankTable
from holdfast.types import RowCodec

_WORTH_RANKS = 128
NEVER = np.iinfo(np.int64).max
"""The expiry of a row that does not expire."""


class Rows:
    """Rows in the order of their key hash. Immutable; at most one row for each key.

    `dead` marks tombstones (None: there are none), `expires` has the time in ms at which a row
    expires (None: no row does). The values of a tombstone are null and have no meaning.
    `is_private` rows are copies: whoever needs a few of them copies these, and drops the rest.
    """

    is_private = False

    def __init__(
        self,
        hashes: Hashes,
        keys: Sequence[pa.Array],
        values: Sequence[pa.Array],
        dead: Mask | None = None,
        expires: Hashes | None = None,
    ) -> None:
        self.hashes = hashes
        self.keys = list(keys)
        self._values = list(values)
        self.dead = dead
        self.expires = expires
        self._key_words: list[list[npt.NDArray[Any]] | None] | None = None
        self._hash_view: memoryview | None = None
        self._ranks: RankTable | None = None
        self._ranks_tried = False
        self._key_reader: RowReader | None = None
        self._value_reader: RowReader | None = None

    def __len__(self) -> int:
        return len(self.hashes)

    def value(self, ordinal: int) -> pa.Array:
        """One value column."""
        return self._values[ordinal]

    @property
    def num_values(self) -> int:
        """How many value columns there are."""
        return len(self._values)

    @property
    def nbytes(self) -> int:
        """Bytes the rows take in memory."""
        columns = sum(array.nbytes for array in [*self.keys, *self._values])
        flags = 0 if self.dead is None else self.dead.nbytes
        return int(self.hashes.nbytes + columns + flags)

    def find(
        self, hashes: Hashes, keys: Sequence[pa.Array], rows: Index | None = None
    ) -> tuple[Index, Index]:
        """Find keys; return the numbers of those found, and the row of each.

        `hashes` are sorted. `keys` are their key columns, or when `rows` is given the columns in
        which key i is row `rows[i]`. Runs of equal hashes are searched whole: Spark's hashes skip
        nulls inside arrays and structs, so different keys may well have one hash.
        """
        size = len(self.hashes)
        if size == 0 or len(hashes) == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        wanted, at = self._places(hashes)
        found: list[Index] = []
        places: list[Index] = []
        while len(wanted):
            same = self._same_keys(at, keys, wanted if rows is None else rows[wanted])
            if same.all():
                found.append(wanted)
                places.append(at)
                break
            found.append(wanted[same])
            places.append(at[same])
            wanted, at = wanted[~same], at[~same] + 1
            going_on = at < size
            wanted, at = wanted[going_on], at[going_on]
            going_on = self.hashes[at] == hashes[wanted]
            wanted, at = wanted[going_on], at[going_on]
        if len(found) == 1:
            return found[0], places[0]
        return _joined(found), _joined(places)

    def _places(self, hashes: Hashes) -> tuple[Index, Index]:
        """Which of the sorted `hashes` exist here, and the first row of each."""
        if not self._ranks_tried and len(hashes) * _WORTH_RANKS >= len(self.hashes):
            self._ranks_tried = True
            self._ranks = RankTable.for_even(self.hashes)
        low = int(np.searchsorted(hashes, self.hashes[0]))
        high = int(np.searchsorted(hashes, self.hashes[-1], "right"))
        inside = hashes[low:high]
        if self._ranks is not None:
            at = self._ranks.places(inside)
        else:
            at = np.searchsorted(self.hashes, inside)
        there = np.flatnonzero(self.hashes.take(at) == inside)
        return there + low, at.take(there)

    def find_one(self, key_hash: int, key: tuple[Any, ...], codec: RowCodec) -> int:
        """The row of a key, given in the form of `codec.hashable`; -1 when there is none."""
        hashes = self._hash_view
        if hashes is None:
            hashes = self._hash_view = self.hashes.data
        at = bisect_left(hashes, key_hash)
        size = len(hashes)
        while at < size and hashes[at] == key_hash:
            read = self._key_reader
            if read is None:
                read = self._key_reader = row_reader(codec, self.keys)
            found = read(at)
            if (found if codec.plain else codec.hashable(found)) == key:
                return at
            at += 1
        return -1

    def value_at(self, row: int, codec: RowCodec) -> tuple[Any, ...]:
        """The value of one row as Python objects."""
        read = self._value_reader
        if read is None:
            values = [self.value(i) for i in range(self.num_values)]
            read = self._value_reader = row_reader(codec, values)
        return read(row)

    def _same_keys(self, mine: Index, keys: Sequence[pa.Array], theirs: Index) -> Mask:
        if self._key_words is None:
            self._key_words = [
                words(array) if array.null_count == 0 else None for array in self.keys
            ]
        same = np.ones(len(mine), bool)
        for array, array_words, other in zip(self.keys, self._key_words, keys, strict=True):
            other_words = words(other) if other.null_count == 0 else None
            if array_words is not None and other_words is not None:
                for a, b in zip(array_words, other_words, strict=True):
                    same &= a.take(mine) == b.take(theirs)
            else:
                same &= equal(array.take(pa.array(mine)), other.take(pa.array(theirs)))
        return same

    def slice(self, start: int, stop: int) -> Rows:
        """Rows start..stop, without a copy."""
        return Rows(
            self.hashes[start:stop],
            [array.slice(start, stop - start) for array in self.keys],
            [self.value(i).slice(start, stop - start) for i in range(self.num_values)],
            None if self.dead is None else self.dead[start:stop],
            None if self.expires is None else self.expires[start:stop],
        )

    def take(self, rows: Index) -> Rows:
        """The given rows. Requires: their numbers ascend, so that rows stay in order."""
        return Rows(
            self.hashes[rows],
            [take(array, rows) for array in self.keys],
            [take(self.value(i), rows) for i in range(self.num_values)],
            None if self.dead is None else self.dead[rows],
            None if self.expires is None else self.expires[rows],
        )

    def where(self, mask: Mask) -> Rows:
        """The rows that the mask selects."""
        return self if mask.all() else self.take(np.flatnonzero(mask))

    def between(self, low: int, high: int | None) -> Rows:
        """Rows with low <= hash < high; `high` None means no upper end."""
        start = int(np.searchsorted(self.hashes, low))
        stop = len(self) if high is None else int(np.searchsorted(self.hashes, high))
        return self if (start, stop) == (0, len(self)) else self.slice(start, stop)


def sort_rows(
    hashes: Hashes,
    keys: Sequence[pa.Array],
    values: Sequence[pa.Array],
    dead: Mask | None = None,
    expires: Hashes | None = None,
) -> tuple[Rows, Index]:
    """Make rows from columns in any order; return them, and for each the position it came from.

    Of equal keys the last one stays.
    """
    # A batch seldom has equal hashes: the faster, unstable sort is tried first. If it has, a stable
    # sort of the reversed batch puts the last of equal keys first.
    order: Index = np.argsort(hashes)
    in_order = hashes[order]
    key_columns = [canonical_column(array) for array in keys]
    if len(in_order) > 1 and (in_order[1:] == in_order[:-1]).any():
        order = len(hashes) - 1 - np.argsort(hashes[::-1], kind="stable")
        in_order = hashes[order]
        order = order[_first_of_each_key(in_order, key_columns, order)]
        in_order = hashes[order]
    rows = Rows(
        in_order,
        [take(array, order) for array in key_columns],
        [take(array, order) for array in values],
        None if dead is None else dead[order],
        None if expires is None else expires[order],
    )
    return rows, order


def first_rows(hashes: Hashes, keys: Sequence[pa.Array]) -> Index:
    """The first row of each key among rows in any order; the result keeps that order."""
    order: Index = np.argsort(hashes, kind="stable")
    keep = _first_of_each_key(hashes[order], [canonical_column(array) for array in keys], order)
    return np.sort(order[keep])


def merge_rows(newest_first: Sequence[Rows]) -> Rows:
    """Merge runs into one. Of equal keys the row of the newest run stays, tombstones included."""
    # The runs are joined newest first and sorted stably, so the first row of a key is the newest.
    runs = [run for run in newest_first if len(run)]
    if len(runs) <= 1:
        return runs[0] if runs else newest_first[0]
    hashes = np.concatenate([run.hashes for run in runs])
    order: Index = np.argsort(hashes, kind="stable")
    in_order = hashes[order]
    keys = [pa.concat_arrays([run.keys[i] for run in runs]) for i in range(len(runs[0].keys))]
    keep = _first_of_each_key(in_order, keys, order)
    order = order[keep]
    return Rows(
        in_order[keep],
        [take(array, order) for array in keys],
        [
            take(pa.concat_arrays([run.value(i) for run in runs]), order)
            for i in range(runs[0].num_values)
        ],
        _joined_flags([run.dead for run in runs], [len(run) for run in runs], False, order),
        _joined_flags([run.expires for run in runs], [len(run) for run in runs], NEVER, order),
    )


def _joined_flags(parts: list[Any], sizes: list[int], default: Any, order: Index) -> Any:
    if all(part is None for part in parts):
        return None
    kind = next(part.dtype for part in parts if part is not None)
    filled = [
        np.full(size, default, kind) if part is None else part
        for part, size in zip(parts, sizes, strict=True)
    ]
    return np.concatenate(filled)[order]


def _first_of_each_key(hashes: Hashes, keys: Sequence[pa.Array], order: Index) -> Mask:
    """Which rows, sorted by hash, are the first of their key.

    Rows are compared with their neighbours. That finds all equal keys, except where different keys
    have one hash and may alternate: the rows of such a hash are compared one by one.
    """
    keep = np.ones(len(hashes), bool)
    twins = np.flatnonzero(hashes[1:] == hashes[:-1])
    if len(twins) == 0:
        return keep
    same = np.ones(len(twins), bool)
    for array in keys:
        same &= equal(take(array, order[twins]), take(array, order[twins + 1]))
    keep[twins[same] + 1] = False
    for collided in np.unique(hashes[twins[~same]]):
        start, stop = np.searchsorted(hashes, collided), np.searchsorted(hashes, collided, "right")
        seen: set[str] = set()
        for row in range(start, stop):
            token = repr([array[int(order[row])].as_py() for array in keys])
            keep[row] = token not in seen
            seen.add(token)
    return keep


def _joined(parts: list[Index]) -> Index:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def index_numbers(column: pa.Array) -> Hashes | None:
    """An index column as whole numbers in its own unit, null as NEVER; None for other types."""
    kind = column.type
    if not (pa.types.is_signed_integer(kind) or pa.types.is_temporal(kind)):
        return None
    views = words(column)
    if views is None or len(views) != 1:
        return None
    signed = views[0].view(f"i{views[0].dtype.itemsize}").astype(np.int64, copy=False)
    valid = valid_mask(column)
    return signed if valid is None else np.where(valid, signed, NEVER)
