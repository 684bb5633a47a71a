"""The entries of list variables, counted from 0 as people count them.

A list is stored under positions that ascend with gaps, so that an append writes its entry alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.reading.model import Diff
from holdfast.reading.reader import VersionReader
from holdfast.reading.store import InspectedStore
from holdfast.store import Row
from holdfast.types import LIST_POSITION, AtomicType, Field, RowCodec, Schema, StructType

_POSITION = "position"
_FIRST = 1 << 32
"""Positions that a version after the initial one wrote are at least this."""
_MOST_GROUPS = 64
"""With lists of more keys than this, reading all of the store is faster than each list alone."""


class ListCounter:
    """Counts the entries of the lists of a store at one version. Made by `ListCounter.of`."""

    def __init__(self, reader: VersionReader) -> None:
        self._reader = reader
        self._keys = reader.key_schema
        self.position = self._keys.names[-1]
        """The name of the column with positions."""
        self._groups = RowCodec(Schema(StructType(self._keys.fields[:-1])))
        self._lists: dict[Row, list[int]] = {}
        self._has_all = False

    @classmethod
    def of(cls, reader: VersionReader) -> ListCounter | None:
        """The counter of a store whose rows are entries of lists; None for any other store.

        A store that an earlier release made does not say that it has lists. It is one by the name
        of its last column and by positions that no map of people's own numbers would have.
        """
        *others, last = reader.key_schema.fields
        has_form = reader.shape.prefix == len(others) > 0 and last.type == AtomicType("long")
        if not has_form:
            return None
        is_marked = last.meaning == LIST_POSITION
        named = last.name.rstrip("_") == _POSITION and reader.shape.key_index is None
        return cls(reader) if is_marked or (named and _are_positions(reader, last)) else None

    def counted(self, table: pa.Table) -> pa.Table:
        """Rows with all key columns, their positions counted from 0, in the order of the lists."""
        keys = self._rows(table)
        groups = [self._groups.hashable(row[:-1]) for row in keys]
        if not self._has_all and len(set(groups)) > _MOST_GROUPS:
            self._load(self._reader.scan(self._keys.names))
            self._has_all = True
        counts = [
            bisect_left(self._positions(group, row[:-1]), row[-1])
            for group, row in zip(groups, keys, strict=True)
        ]
        place = table.column_names.index(self.position)
        return table.set_column(place, table.schema.field(place), pa.array(counts, pa.int64()))

    def count(self, key: Row) -> Row:
        """A stored key with its position counted from 0."""
        positions = self._positions(self._groups.hashable(key[:-1]), key[:-1])
        return (*key[:-1], bisect_left(positions, key[-1]))

    def stored(self, key: Row) -> Row | None:
        """The stored key of the entry that stands at the position in `key`; None without one.

        A position that is itself a stored one stays.
        """
        positions = self._positions(self._groups.hashable(key[:-1]), key[:-1])
        at = key[-1]
        if at is None or at >= _FIRST:
            return key
        return (*key[:-1], positions[at]) if 0 <= at < len(positions) else None

    def length(self, group: Row) -> int:
        """How many entries the list of a grouping key has."""
        return len(self._positions(self._groups.hashable(group), group))

    def _positions(self, name: Row, group: Row) -> Sequence[int]:
        """The positions of one list, ascending."""
        if name not in self._lists and not self._has_all:
            self._load(self._reader.scan(self._keys.names, prefix=group))
        return self._lists.get(name, [])

    def _load(self, keys: pa.Table) -> None:
        found: dict[Row, list[int]] = {}
        for row in self._rows(keys):
            found.setdefault(self._groups.hashable(row[:-1]), []).append(row[-1])
        self._lists |= {name: sorted(positions) for name, positions in found.items()}

    def _rows(self, table: pa.Table) -> Sequence[Row]:
        codec = RowCodec(self._keys)
        return codec.from_arrow([table.column(n) for n in self._keys.names], table.num_rows)


def _are_positions(reader: VersionReader, last: Field) -> bool:
    """Whether the cells of the last key column are positions of lists, and there are some."""
    lowest = [pc.min(table.column(last.name)).as_py() for table in reader.tables([last.name])]
    return all(low is None or low >= _FIRST for low in lowest) and any(lowest)


def counted_changes(store: InspectedStore, diff: Diff) -> Diff:
    """A difference with positions of lists counted from 0, in the version that has the entry."""
    if ListCounter.of(store.at(diff.before)) is ListCounter.of(store.at(diff.after)) is None:
        return diff
    counters = {at: ListCounter(store.at(at)) for at in (diff.before, diff.after)}
    changes = (
        (change, counters[diff.before if change.change == "removed" else diff.after])
        for change in diff.changes
    )
    counted = tuple(replace(change, key=lists.count(change.key)) for change, lists in changes)
    return replace(diff, changes=counted)


def in_order(table: pa.Table, keys: Schema) -> pa.Table:
    """Rows by their keys, as far as those have an order."""
    ordered = [f.name for f in keys.fields if not pa.types.is_nested(f.type.arrow)]
    return table.sort_by([(name, "ascending") for name in ordered if name in table.column_names])
