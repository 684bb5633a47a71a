"""Reading one store of a root at any of its versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from holdfast.engine.files.manifest import PartitionEntry, StoreEntry
from holdfast.engine.partition.chain import StoreShape
from holdfast.engine.partition.writer import FOUND, PartitionReader, rows_table
from holdfast.errors import InvalidArgument, VersionNotFound
from holdfast.reading.diff import diff_partition
from holdfast.reading.evolution import fit_row, fit_table
from holdfast.reading.model import Change, ChangeKind, Diff, KeyVersion
from holdfast.reading.where import check_filter, parse_where
from holdfast.store import Row
from holdfast.types import Schema, StructType

if TYPE_CHECKING:
    from holdfast.reading.root import Root

VersionLike = int | str | None


class InspectedStore:
    """One store over all its partitions, or one of them, at any version.

    It has the columns of its newest version; those an older version lacks are null in it.
    """

    def __init__(self, root: Root, operator: int, name: str, partition: int | None) -> None:
        self.root = root
        self.operator = operator
        self.name = name
        self.partition = partition
        self._open: tuple[int, dict[int, PartitionReader]] | None = None
        """The version that was read last, with its partitions."""

    @property
    def key_schema(self) -> Schema:
        """The columns of a key in the newest version."""
        return self._newest().key_schema

    @property
    def value_schema(self) -> Schema:
        """The columns of a value in the newest version."""
        return self._newest().value_schema

    def get(self, key: Any, at: VersionLike = None) -> Row | None:
        """The value of a key at a version, or None."""
        return self._get(key, self.root.resolve(at))

    def key_history(self, key: Any) -> list[KeyVersion]:
        """The versions in which a key came, changed or went, oldest first.

        The oldest version there is counts as the one it came in. Versions whose manifest is
        damaged are left out.
        """
        found: list[KeyVersion] = []
        before: Row | None = None
        for line in reversed(self.root.history()):
            if line.problem is not None or line.committed_at_ms is None:
                continue
            value = self._get(key, line.version)
            if not _same(before, value):
                change = _kind_of_change(before, value)
                found.append(KeyVersion(line.version, line.committed_at_ms, change, value))
            before = value
        return found

    def scan(
        self, at: VersionLike = None, columns: Sequence[str] | None = None, where: Any = None
    ) -> pa.Table:
        """The state at a version as a table.

        `where` is a filter as text, see `parse_where`, or a pyarrow.compute expression.
        """
        empty = self.arrow_schema(columns).empty_table()
        return pa.concat_tables([empty, *self.tables(at, columns, where)])

    def tables(
        self, at: VersionLike = None, columns: Sequence[str] | None = None, where: Any = None
    ) -> Iterator[pa.Table]:
        """The same a table at a time, as of this call."""
        readers = self._readers(self.root.resolve(at)).values()
        wanted = self.arrow_schema(columns).names
        expression = self.expression(where)
        return (
            (table if expression is None else table.filter(expression)).select(wanted)
            for reader in readers
            for table in (self._fitted(reader, table) for table in reader.tables())
        )

    def expression(self, where: Any) -> Any:
        """A filter as Arrow takes it; None stays None. Raises InvalidArgument for one that cannot
        be applied to this store.
        """
        if where is None:
            return None
        columns = StructType((*self.key_schema.fields, *self.value_schema.fields))
        return (
            parse_where(where, columns) if isinstance(where, str) else check_filter(where, columns)
        )

    def changes(self, at: VersionLike = None) -> Iterator[tuple[pa.Table, pa.Array]]:
        """What a version wrote: keys with their new values, and for each row whether it is gone.

        Keys that a bound evicted are not among them: nothing is written for those.
        """
        for reader in self._readers(self.root.resolve(at)).values():
            for piece in reader.delta_pieces():
                dead = np.zeros(len(piece), bool) if piece.dead is None else piece.dead
                yield self._fitted(reader, rows_table(reader.shape, piece)), pa.array(dead)

    def find(self, keys: Sequence[Row], at: VersionLike = None) -> pa.Table:
        """Those of some keys that there are, with their values, as a table."""
        parts = []
        for reader in self._readers(self.root.resolve(at)).values():
            codec = reader.shape.keys
            columns = codec.to_arrow([codec.encode(key) for key in keys])
            found = reader.get_many(pa.table(columns, names=list(codec.schema.names)))
            present = found.filter(found.column(FOUND)).drop_columns([FOUND])
            parts.append(self._fitted(reader, present))
        return pa.concat_tables(parts)

    def partition_of(self, key: Any, at: VersionLike = None) -> int:
        """The partition a key belongs to, whether it is there or not."""
        entry = self.root.manifest(self.root.resolve(at)).operators[self.operator][self.name]
        shape = self.root.shape(entry)
        return _partition_of(shape, entry, shape.keys.encode(key)).index

    def head(
        self,
        limit: int,
        at: VersionLike = None,
        columns: Sequence[str] | None = None,
        where: Any = None,
    ) -> tuple[pa.Table, bool]:
        """The first rows of a scan, and whether there are more. Reads no further than that."""
        parts = [self.arrow_schema(columns).empty_table()]
        rows = 0
        for part in self.tables(at, columns, where):
            parts.append(part)
            rows += part.num_rows
            if rows > limit:
                break
        return pa.concat_tables(parts).slice(0, limit), rows > limit

    def arrow_schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """The columns of a scan."""
        schema = pa.schema([*self.key_schema.arrow, *self.value_schema.arrow])
        wanted = schema.names if columns is None else columns
        for name in wanted:
            if name not in schema.names:
                raise InvalidArgument(f"There is no column {name!r}; there are {schema.names}.")
        return pa.schema([schema.field(name) for name in wanted])

    def diff(
        self, before: VersionLike, after: VersionLike = None, limit: int | None = None
    ) -> Diff:
        """What changed from one version to another, key by key.

        VersionLike most `limit` changes are listed (None: all); the counts are of all of them.
        """
        old, new = self.root.resolve(before), self.root.resolve(after)
        counts: dict[ChangeKind, int] = {"added": 0, "changed": 0, "removed": 0}
        changes: list[Change] = []
        new_readers = self._readers(new)
        for index, reader in self._readers(old).items():
            room = None if limit is None else limit - len(changes)
            opener = self.root.cache(self.operator, self.name, index, reader.shape).open
            part = diff_partition(reader, new_readers[index], opener, self.value_schema, room)
            changes += part.changes
            for kind in counts:
                counts[kind] += part.counts[kind]
        return Diff(old, new, **counts, changes=tuple(sorted(changes, key=_by_key)))

    def _get(self, key: Any, version: int) -> Row | None:
        entry = self.root.manifest(version).operators.get(self.operator, {}).get(self.name)
        if entry is None:
            return None
        shape = self.root.shape(entry)
        part = _partition_of(shape, entry, shape.keys.encode(key))
        if self.partition not in (None, part.index):
            return None
        found = self._readers(version)[part.index].get(key)
        return fit_row(found, shape.value_schema, self.value_schema)

    def _fitted(self, reader: PartitionReader, table: pa.Table) -> pa.Table:
        shape = reader.shape
        return fit_table(table, shape.key_schema, shape.value_schema, self.value_schema)

    def _readers(self, version: int) -> dict[int, PartitionReader]:
        opened = self._open
        if opened is None or opened[0] != version:
            manifest = self.root.manifest(version)
            readers = {
                entry.index: self.root.reader(manifest, self.operator, self.name, entry)
                for entry in self.entries(version)
            }
            opened = self._open = (version, readers)
        return opened[1]

    def entries(self, version: int) -> list[PartitionEntry]:
        """The partitions at a version. Raises VersionNotFound where the store was added later."""
        entry = self.root.manifest(version).operators.get(self.operator, {}).get(self.name)
        if entry is None:
            raise VersionNotFound(
                f"Version {version} of {self.root.location} has no store {self.name!r} in operator "
                f"{self.operator}: it was added later."
            )
        return [part for part in entry.partitions if self.partition in (None, part.index)]

    def _newest(self) -> StoreEntry:
        return self.root.newest_readable().operators[self.operator][self.name]

    def __repr__(self) -> str:
        part = "" if self.partition is None else f", partition={self.partition}"
        return f"InspectedStore[{self.root.location}, {self.operator}/{self.name}{part}]"


def _partition_of(shape: StoreShape, entry: StoreEntry, key: Row) -> PartitionEntry:
    """Where a key lies. A provider's store on its own has one partition, whatever the hash."""
    if len(entry.partitions) == 1:
        return entry.partitions[0]
    top = shape.hasher.hash_row(key) >> 32
    return next(part for part in entry.partitions if top % part.modulus == part.index)


def _by_key(change: Change) -> tuple[tuple[bool, bool, Any], ...]:
    """An order people expect: numbers by size, text by alphabet, null last, the rest by text."""
    return tuple(
        (cell is None, not _has_order(cell), cell if _has_order(cell) else repr(cell))
        for cell in change.key
    )


def _has_order(cell: Any) -> bool:
    return isinstance(cell, (int, float, Decimal, str, bytes, date)) and cell == cell


def _kind_of_change(before: Row | None, after: Row | None) -> ChangeKind:
    if before is None:
        return "added"
    return "removed" if after is None else "changed"


def _same(before: Row | None, after: Row | None) -> bool:
    # By text too, for NaN differs from itself.
    return before == after or repr(before) == repr(after)
