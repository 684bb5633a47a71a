"""A view in Cassandra.

Every column of a row, including nulls, is written with the version as its timestamp, and rows are
deleted with it. So of two writes of a key Cassandra keeps the one with the newer version, in
whatever order they come, without a read or a lightweight transaction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidArgument
from holdfast.views.cassandra.statements import Statements
from holdfast.views.cassandra.types import cql, quote_cql
from holdfast.views.cells import plain_cells
from holdfast.views.keys import fits_in_columns, key_texts
from holdfast.views.mapping import applied
from holdfast.views.ownership import (
    NOTES,
    Note,
    check_notes,
    check_table_name,
    columns_text,
    noted_begun,
    noted_standing,
    noted_through,
)
from holdfast.views.tables import TableView
from holdfast.views.view import KEY, VERSION, ViewProgress, ViewSpec

_TABLE = re.compile(r"[A-Za-z0-9_]{1,39}")
_NOTED = {
    "owner": "text", "root": "text", "columns": "text", "has_encoded": "boolean",
    "through": "bigint", "commit_id": "text", "filled": "bigint",
    "begun": "text",
}  # fmt: skip
"""The columns of the table of notes, except the view's name."""
_COMMENT = "A view of Holdfast: for reading. Rows are written with their version as timestamp."


class CassandraView(TableView):
    """The first key column is the partition key, the others cluster its rows."""

    number_sizes = (0.0, float.fromhex("0x1.fffffffffffffp+1023"))

    def __init__(self, spec: ViewSpec) -> None:
        self.spec = spec
        self._cql = Statements(
            spec.location, spec.options, spec.retry_timeout_ms, columns_text(spec.schema)
        )
        self._keyspace, self.name = self._cql.address.keyspace, self._cql.address.path
        if not _TABLE.fullmatch(self.name):
            raise InvalidArgument(
                f"{self.name!r} cannot be the name of a view's table in Cassandra. Use at most 39 "
                "letters, digits and '_'."
            )
        check_table_name(self.name)
        self._has_notes = False
        keys = spec.schema.keys
        self.is_by_columns = all(fits_in_columns(f.type, booleans=True) for f in keys)

    # -- creating it ---------------------------------------------------------------------------

    def prepare(self, owner: str, root: str) -> ViewProgress:
        self._check_keyspace()
        found = self._found(NOTES) or {}
        key = {name: what for name, what in found.items() if not what.endswith("regular")}
        check_notes(key, {"name": "text partition_key"}, self.spec.location)
        self._has_notes = bool(found)
        for name in _NOTED:
            if found and name not in found:
                self._widen_notes(name)
        return super().prepare(owner, root)

    def _check_keyspace(self) -> None:
        found = self._cql.run(
            "look for the keyspace",
            "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?",
            self._keyspace,
        )
        if not found:
            raise InvalidArgument(
                f"There is no keyspace {self._keyspace!r} for the view "
                f"{self.spec.location}. Create it, with the replication you want: CREATE KEYSPACE "
                f"{quote_cql(self._keyspace)} WITH replication = …"
            )

    def _make_notes(self) -> None:
        columns = ", ".join(f"{name} {kind}" for name, kind in _NOTED.items())
        self._cql.define(
            "create the table of notes",
            f"CREATE TABLE IF NOT EXISTS {self._table(NOTES)} (name text PRIMARY KEY, {columns})",
        )
        self._has_notes = True

    def _widen_notes(self, name: str) -> None:
        """Add a column that earlier releases did not have."""
        add = f"ALTER TABLE {self._table(NOTES)} ADD {name} {_NOTED[name]}"
        try:
            self._cql.define("widen the table of notes", add)
        except InvalidArgument:
            if name not in (self._found(NOTES) or ()):  # else another process was faster
                raise

    def _claim(self, before: Note | None, note: Note) -> bool:
        fields = (note.owner, note.root, note.columns, False, noted_through(note.standing))
        if before is None:
            done = self._cql.run(
                "note the view",
                f"INSERT INTO {self._table(NOTES)} (owner, root, columns, has_encoded, through, "
                "name) VALUES (?, ?, ?, ?, ?, ?) IF NOT EXISTS",
                *fields,
                self.name,
            )
        else:
            done = self._cql.run(
                "note the view",
                f"UPDATE {self._table(NOTES)} SET owner = ?, root = ?, columns = ?, "
                "has_encoded = ?, through = ?, commit_id = null, filled = null, "
                "begun = null WHERE name = ? "
                "IF owner = ? AND has_encoded = ? AND through = ? AND commit_id = ?",
                *fields,
                self.name,
                before.owner,
                before.standing.has_encoded,
                noted_through(before.standing),
                before.standing.commit_id,
            )
        return bool(done[0].applied)

    def _create(self, table: str, *, by_columns: bool) -> None:
        keys = [field.name for field in self.spec.schema.keys] if by_columns else [KEY]
        columns = ", ".join(
            f"{quote_cql(column)} {kind}" for column, (kind, _) in self._typed(by_columns).items()
        )
        primary = ", ".join(quote_cql(key) for key in keys)
        self._cql.define(
            "create the table",
            f"CREATE TABLE IF NOT EXISTS {self._table(table)} ({columns}, PRIMARY KEY ({primary})) "
            f"WITH comment = '{_COMMENT}'",
        )

    def _typed(self, by_columns: bool) -> dict[str, tuple[str, str]]:
        """The columns of a table: their types, and their role in the primary key."""
        schema = self.spec.schema
        found: dict[str, tuple[str, str]] = {} if by_columns else {KEY: ("text", "partition_key")}
        for place, field in enumerate(schema.keys):
            role = ("partition_key" if place == 0 else "clustering") if by_columns else "regular"
            found[field.name] = (cql(field.type).type, role)
        found |= {field.name: (cql(field.type).type, "regular") for field in schema.values}
        found[VERSION] = ("bigint", "regular")
        return found

    def _shape(self, *, by_columns: bool) -> dict[str, str]:
        return {name: f"{kind} {role}" for name, (kind, role) in self._typed(by_columns).items()}

    def _found(self, table: str) -> dict[str, str] | None:
        rows = self._cql.run(
            "look at the table",
            "SELECT column_name, type, kind FROM system_schema.columns WHERE keyspace_name = ? "
            "AND table_name = ?",
            self._keyspace,
            table,
        )
        return {row.column_name: f"{row.type} {row.kind}" for row in rows} or None

    def _note(self) -> Note | None:
        if not self._has_notes:
            return None
        rows = self._cql.run(
            "read what is noted of the view",
            f"SELECT {', '.join(_NOTED)} FROM {self._table(NOTES)} WHERE name = ?",
            self.name,
            serial=True,
        )
        if not rows or rows[0].owner is None:
            return None
        row = rows[0]
        standing = noted_standing(
            row.through, bool(row.has_encoded), row.commit_id, row.filled, row.begun
        )
        return Note(row.owner, row.root, row.columns, standing)

    def _note_encoded(self) -> None:
        self._cql.run(
            "note the view",
            f"UPDATE {self._table(NOTES)} SET has_encoded = true WHERE name = ? IF owner = ?",
            self.name,
            self._owner,
        )

    def note(self, before: ViewProgress, after: ViewProgress) -> ViewProgress:
        sets, condition = "through = ?, commit_id = ?, filled = ?", "through = ? AND commit_id = ?"
        new = [noted_through(after), after.commit_id, after.filled]
        old = [noted_through(before), before.commit_id]
        if after.begun != before.begun:
            sets, condition = f"{sets}, begun = ?", f"{condition} AND begun = ?"
            new, old = [*new, noted_begun(after)], [*old, noted_begun(before)]
        done = self._cql.run(
            "note the version",
            f"UPDATE {self._table(NOTES)} SET {sets} WHERE name = ? IF owner = ? AND {condition}",
            *new,
            self.name,
            self._owner,
            *old,
        )
        return after if done[0].applied else self.standing()

    # -- keeping it up to date -----------------------------------------------------------------

    def write(self, version: int, rows: pa.Table, *, encoded: bool) -> None:
        names = [*self._key_names(encoded=encoded), *self._other_names(encoded=encoded), VERSION]
        columns = ", ".join(quote_cql(name) for name in names)
        marks = ", ".join("?" * len(names))
        table = self._table(self._table_name(encoded=encoded))
        self._cql.run_all(
            "write rows",
            f"INSERT INTO {table} ({columns}) VALUES ({marks}) USING TIMESTAMP ?",
            self._arguments(rows, names[:-1], (version, version)),
        )

    def remove(self, version: int, rows: pa.Table, *, encoded: bool) -> None:
        names = self._key_names(encoded=encoded)
        keys = self._arguments(rows, names, ())
        self._delete(version, self._table_name(encoded=encoded), names, keys)

    def _delete(
        self, version: int, table: str, names: Sequence[str], keys: Iterator[tuple[Any, ...]]
    ) -> None:
        where = " AND ".join(f"{quote_cql(name)} = ?" for name in names)
        self._cql.run_all(
            "remove rows",
            f"DELETE FROM {self._table(table)} USING TIMESTAMP ? WHERE {where}",
            ((version, *key) for key in keys),
        )

    def remove_older(self, version: int, *, has_encoded: bool) -> int:
        removed = 0
        for encoded in (False, True) if has_encoded else (False,):
            names = self._key_names(encoded=encoded)
            columns = ", ".join(quote_cql(name) for name in [VERSION, *names])
            table = self._table_name(encoded=encoded)
            select = f"SELECT {columns} FROM {self._table(table)}"
            for page in self._cql.pages("read rows", select, quote_cql(names[0])):
                old = [tuple(row[1:]) for row in page if row[0] is None or row[0] < version]
                self._delete(version, table, names, iter(old))
                removed += len(old)
        return removed

    # -- names and cells -----------------------------------------------------------------------

    def _table(self, name: str) -> str:
        return f"{quote_cql(self._keyspace)}.{quote_cql(name)}"

    def _arguments(
        self, rows: pa.Table, names: Sequence[str], more: tuple[Any, ...]
    ) -> Iterator[tuple[Any, ...]]:
        columns = [self._cells(rows, name) for name in names]
        return ((*cells, *more) for cells in zip(*columns, strict=True))

    def _cells(self, rows: pa.Table, name: str) -> list[Any]:
        if name == KEY:
            return list(key_texts(self.spec.schema.keys, self._keys(rows)))
        kind = self._fields[name].type
        return applied(cql(kind).encode, plain_cells(kind, rows.column(name)))
