"""What a repair changes: each key with its value before and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.admin.repair_input import InputReader, RepairInput, WantedRow, named
from holdfast.admin.repair_rules import StoreRules
from holdfast.errors import InvalidArgument
from holdfast.reading.lists import ListCounter
from holdfast.reading.reader import VersionReader
from holdfast.reserved import FOUND
from holdfast.types import Row, RowCodec


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key of a partition with its value before and after; None where there is none."""

    partition: int
    key: Row
    before: Row | None
    after: Row | None
    expires_ms: int | None = None
    moves_expiry: bool = False
    """Whether it expires at another time than before."""


class ChangeFinder:
    """Finds what a repair changes in a store at a version."""

    def __init__(self, reader: VersionReader, rules: StoreRules, *, keep_equal: bool) -> None:
        self._reader, self._rules, self._keep_equal = reader, rules, keep_equal
        self._lists = ListCounter.of(reader)
        self._keys = RowCodec(reader.key_schema)
        self._values = RowCodec(reader.value_schema)
        self._added: dict[Row, int] = {}
        """How many entries are appended to each list."""
        self._positions: dict[Row, Row] = {}
        """The appended entries by their stored keys, as people count them."""

    def of(self, given: RepairInput) -> Iterator[KeyChange]:
        """Each key that is set or removed. Raises InvalidArgument where one cannot be."""
        reader = self._reader
        read = InputReader(reader.key_schema, reader.value_schema, self._rules.check_names)
        wanted = [self._stored(row) for row in read.rows(given)]
        if given.delete_where is not None:
            wanted += self._filtered(given.delete_where)
        self._check_distinct(wanted)
        for change in self._compared(wanted):
            is_same = not change.moves_expiry and _same(change.before, change.after)
            if self._keep_equal or not is_same:
                yield change

    def shown(self, change: KeyChange) -> Row:
        """The key of a change as people read it."""
        if self._lists is None:
            return change.key
        return self._positions.get(change.key) or self._lists.count(change.key)

    def _stored(self, row: WantedRow) -> WantedRow:
        """The row with its key as it is stored; another one only for the entry of a list."""
        if self._lists is None:
            return row
        with named(row.where):
            return WantedRow(self._entry_of_list(row), row.cells, row.expires_ms, row.where)

    def _entry_of_list(self, row: WantedRow) -> Row:
        assert self._lists is not None
        stored = self._lists.stored(row.key)
        if stored is not None:
            return stored
        *group, at = row.key
        name = self._keys.hashable(row.key)[:-1]
        end = self._lists.length(tuple(group)) + self._added.get(name, 0)
        if row.cells is None or at != end:
            raise InvalidArgument(
                f"The list has no entry {at}, and its next one is {end}. Entries are set one "
                "after the other."
            )
        self._added[name] = self._added.get(name, 0) + 1
        key = (*group, (self._reader.version + 1 << 32) + self._added[name])
        self._positions[key] = row.key
        return key

    def _filtered(self, where: Any) -> Iterator[WantedRow]:
        names = self._reader.key_schema.names
        for table in self._reader.tables(names, where):
            for key in self._keys.from_arrow([table.column(n) for n in names], table.num_rows):
                yield WantedRow(key, None, where="delete-where")

    def _check_distinct(self, wanted: Sequence[WantedRow]) -> None:
        seen: dict[Row, str] = {}
        for row in wanted:
            key = self._keys.hashable(row.key)
            if key in seen:
                raise InvalidArgument(
                    f"{seen[key]} and {row.where} are of the same key. Nothing was changed. Give "
                    "each key once."
                )
            seen[key] = row.where

    def _compared(self, wanted: Sequence[WantedRow]) -> Iterator[KeyChange]:
        """What becomes of each row, with what was there before."""
        if not wanted:
            return
        schema = self._reader.key_schema.arrow
        table = pa.table(self._keys.to_arrow([row.key for row in wanted]), schema=schema)
        for position, share, rows in self._reader.shares(table):
            part = self._reader.parts[position]
            found = part.get_many(share)
            values = self._values.from_arrow(
                [found.column(name) for name in self._values.schema.names], found.num_rows
            )
            there = found.column(FOUND).to_pylist()
            expiries = part.expiries(share).to_pylist()
            for at, value, is_there, expires in zip(rows, values, there, expiries, strict=True):
                before = value if is_there else None
                yield self._change(wanted[at], position, before, expires)

    def _change(
        self, row: WantedRow, position: int, before: Row | None, before_ms: int | None
    ) -> KeyChange:
        part = self._reader.parts[position]
        entry = part.chain.entry
        with named(row.where):
            if row.cells is None:
                if before is None:
                    raise InvalidArgument("There is no such key.")
                return KeyChange(entry.index, row.key, before, None)
            is_new = before is None
            if is_new and self._lists is not None and row.key not in self._positions:
                raise InvalidArgument("The list has no such entry.")
            self._rules.check_key(row.key, entry, is_new=is_new)
            value = self._rules.value(row.cells, before)
            expires = self._rules.expiry(
                row.expires_ms,
                value,
                before_ms,
                entry,
                is_new=is_new,
                has_ttl=is_new and self._has_ttl(position),
            )
        moves = not is_new and expires != before_ms
        return KeyChange(entry.index, row.key, before, value, expires, moves)

    def _has_ttl(self, position: int) -> bool:
        """Whether rows of the store expire, as far as that can be told."""
        parts = self._reader.parts
        if any(part.chain.entry.expire is not None for part in parts):
            return True
        return any(segment.has_expiry for segment in parts[position].chain.segments())


def _same(before: Row | None, after: Row | None) -> bool:
    return before is not None and repr(before) == repr(after)  # NaN differs from itself
