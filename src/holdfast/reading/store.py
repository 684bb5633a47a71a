"""Reading one store of a root at any of its versions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.engine.files.manifest import PartitionEntry, StoreEntry
from holdfast.errors import VersionNotFound
from holdfast.reading.diff import diff_partition, undone_rows
from holdfast.reading.meanings import key_meanings
from holdfast.reading.model import Change, ChangeKind, Diff, KeyVersion
from holdfast.reading.reader import StorePlace, VersionReader, scan_schema
from holdfast.store import Row
from holdfast.types import Field, Schema

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
        self._open: VersionReader | None = None
        """The version that was read last."""

    @property
    def key_schema(self) -> Schema:
        """The columns of a key in the newest version."""
        return key_meanings(self.name, self._newest().key_schema)

    @property
    def value_schema(self) -> Schema:
        """The columns of a value in the newest version."""
        return self._newest().value_schema

    def at(self, at: VersionLike = None) -> VersionReader:
        """A version, for reading. Raises VersionNotFound where the store was added later."""
        version, opened = self.root.resolve(at), self._open
        if opened is None or opened.version != version:
            opened = self._open = self._opened(version)
        return opened

    def find(self, keys: Sequence[Any], at: VersionLike = None) -> pa.Table:
        """Deprecated: `at(version).find(keys)` does the same."""
        return self._version("find", at).find(keys)

    def changes(self, at: VersionLike = None) -> Iterator[tuple[pa.Table, pa.Array]]:
        """Deprecated: `at(version).changes()` does the same."""
        return self._version("changes", at).changes()

    def partition_of(self, key: Any, at: VersionLike = None) -> int:
        """Deprecated: `at(version).partition_of(key)` does the same."""
        return self._version("partition_of", at).partition_of(key)

    def _version(self, method: str, at: VersionLike) -> VersionReader:
        warnings.warn(
            f"Call {method} on a version, at(...).{method}(...): the next release has it there "
            "only.",
            DeprecationWarning,
            stacklevel=3,
        )
        return self.at(at)

    def _opened(self, version: int) -> VersionReader:
        manifest = self.root.manifest(version)
        entries = self.entries(version)
        parts = [self.root.reader(manifest, self.operator, self.name, entry) for entry in entries]
        place = StorePlace(self.root.log, self.operator, self.name)
        return VersionReader(
            place, version, parts, self.value_schema, manifest, undone=self._undone
        )

    def _undone(self, after: VersionReader) -> Iterator[tuple[pa.Table, pa.Array]]:
        """What a version, with which history went back, has otherwise than the one before it."""
        before = self._opened(after.version - 1)
        older = {part.chain.entry.index: part for part in before.parts}
        for part in after.parts:
            index = part.chain.entry.index
            opener = self.root.cache(self.operator, self.name, index, part.shape).open
            yield from undone_rows(older[index], part, opener, self.value_schema)

    def get(self, key: Any, at: VersionLike = None) -> Row | None:
        """The value of a key at a version, or None; None also where the store was added later."""
        version = self.root.resolve(at)
        return self.at(version).get(key) if self._is_in(version) else None

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
            value = self.get(key, line.version)
            if not _same(before, value):
                change = _kind_of_change(before, value)
                found.append(KeyVersion(line.version, line.committed_at_ms, change, value))
            before = value
        return found

    def scan(
        self,
        at: VersionLike = None,
        columns: Sequence[str] | None = None,
        where: Any = None,
        prefix: Any = None,
    ) -> pa.Table:
        """The state at a version as a table.

        `where` is a filter as text, see `parse_where`, or a pyarrow.compute expression.
        """
        return self.at(at).scan(columns, where, prefix)

    def tables(
        self,
        at: VersionLike = None,
        columns: Sequence[str] | None = None,
        where: Any = None,
        prefix: Any = None,
    ) -> Iterator[pa.Table]:
        """The same a table at a time; `prefix` leaves only the keys that begin with it."""
        return self.at(at).tables(columns, where, prefix)

    def head(
        self,
        limit: int,
        at: VersionLike = None,
        columns: Sequence[str] | None = None,
        where: Any = None,
        prefix: Any = None,
    ) -> tuple[pa.Table, bool]:
        """The first rows of a scan, and whether there are more. Reads no further than that."""
        parts = [self.arrow_schema(columns).empty_table()]
        rows = 0
        for part in self.tables(at, columns, where, prefix):
            parts.append(part)
            rows += part.num_rows
            if rows > limit:
                break
        return pa.concat_tables(parts).slice(0, limit), rows > limit

    def arrow_schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """The columns of a scan."""
        return scan_schema(self.key_schema, self.value_schema, columns)

    def fields_of(self, table: pa.Table) -> tuple[Field, ...]:
        """The fields of the columns of a scan, as this store's schemas describe them."""
        known = {
            field.name: field for field in (*self.key_schema.fields, *self.value_schema.fields)
        }
        return tuple(known[name] for name in table.column_names)

    def diff(
        self, before: VersionLike, after: VersionLike = None, limit: int | None = None
    ) -> Diff:
        """What changed from one version to another, key by key.

        At most `limit` changes are listed (None: all); the counts are of all of them.
        """
        old, new = self.root.resolve(before), self.root.resolve(after)
        counts: dict[ChangeKind, int] = {"added": 0, "changed": 0, "removed": 0}
        changes: list[Change] = []
        went_back = self.root.manifest(old).lineage != self.root.manifest(new).lineage
        newer = {part.chain.entry.index: part for part in self.at(new).parts}
        for reader in self.at(old).parts:
            index = reader.chain.entry.index
            room = None if limit is None else limit - len(changes)
            opener = self.root.cache(self.operator, self.name, index, reader.shape).open
            part = diff_partition(
                reader, newer[index], opener, self.value_schema, room, went_back=went_back
            )
            changes += part.changes
            for kind in counts:
                counts[kind] += part.counts[kind]
        return Diff(old, new, **counts, changes=tuple(sorted(changes, key=_by_key)))

    def entries(self, version: int) -> list[PartitionEntry]:
        """The partitions at a version. Raises VersionNotFound where the store was added later."""
        entry = self.root.manifest(version).operators.get(self.operator, {}).get(self.name)
        if entry is None:
            raise VersionNotFound(
                f"Version {version} of {self.root.location} has no store {self.name!r} in operator "
                f"{self.operator}: it was added later."
            )
        return [part for part in entry.partitions if self.partition in (None, part.index)]

    def _is_in(self, version: int) -> bool:
        return self.name in self.root.manifest(version).operators.get(self.operator, {})

    def _newest(self) -> StoreEntry:
        return self.root.newest_readable().operators[self.operator][self.name]

    def __repr__(self) -> str:
        part = "" if self.partition is None else f", partition={self.partition}"
        return f"InspectedStore[{self.root.location}, {self.operator}/{self.name}{part}]"


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
