"""A view in Cassandra.

Every column of a row is written with the version as its timestamp, nulls too, and rows are deleted
with it: of two writes of a key Cassandra keeps the one of the newer version, in whatever order
they come.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidArgument, Unavailable
from holdfast.types import Field
from holdfast.views.cells import plain_cells
from holdfast.views.cql import cql, quoted
from holdfast.views.keys import fits_in_columns, key_texts
from holdfast.views.mapping import applied
from holdfast.views.owning import BEFORE_FIRST, NOTES, Note, check_columns, check_note, columns_text
from holdfast.views.statements import Statements
from holdfast.views.view import ENCODED, KEY, VERSION, Standing, View, ViewSpec

_TABLE = re.compile(r"[A-Za-z0-9_]{1,39}")
_COMMENT = "A view of Holdfast: for reading. Rows are written with their version as timestamp."


class CassandraView(View):
    """The first key column is the partition key, the others cluster its rows."""

    number_sizes = (0.0, float.fromhex("0x1.fffffffffffffp+1023"))

    def __init__(self, spec: ViewSpec) -> None:
        self.spec = spec
        self._cql = Statements(
            spec.location, spec.options, spec.retry_timeout_ms, columns_text(spec.schema)
        )
        self._keyspace, self._name = self._cql.address.keyspace, self._cql.address.path
        if not _TABLE.fullmatch(self._name):
            raise InvalidArgument(
                f"{self._name!r} cannot be the name of a table in Cassandra: take letters, digits "
                "and '_', at most 39."
            )
        self._owner = ""
        keys = spec.schema.keys
        self.is_by_columns = all(fits_in_columns(f.type, booleans=True) for f in keys)

    # -- making it -----------------------------------------------------------------------------

    def prepare(self, owner: str, root: str) -> Standing:
        self._check_keyspace()
        note = self._note() if self._columns_of(NOTES) else None
        exists = bool(self._columns_of(self._name))
        check_note(note, owner, self.spec.schema, self.spec.location, has_table=exists)
        self._owner = owner
        if note is None or not exists:
            return self._made(note, owner, root).standing
        return self._checked(note)

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
                f"{quoted(self._keyspace)} WITH replication = …"
            )

    def _checked(self, note: Note) -> Standing:
        """How far the view is, once its tables are seen to be as it made them."""
        self._check_table(self._name, by_columns=self.is_by_columns)
        if not note.has_encoded:
            return note.standing
        if not self._columns_of(self._name + ENCODED):
            # Somebody dropped it, or a crash came before it was made: it has to be filled.
            self._create(self._name + ENCODED, by_columns=False)
            return replace(note.standing, through=None)
        self._check_table(self._name + ENCODED, by_columns=False)
        return note.standing

    def _made(self, before: Note | None, owner: str, root: str) -> Note:
        """Claim the name, then make the table: a claim without a table is made good later."""
        if self._columns_of(self._name + ENCODED):
            raise InvalidArgument(
                f"There is no table of the view {self.spec.location}, but one called "
                f"{self._name + ENCODED!r}, of an earlier view perhaps. Nothing was touched. "
                "Drop it, or name another table.",
                condition="STATE_STORE_NOT_A_VIEW",
            )
        self._cql.define(
            "create the table of notes",
            f"CREATE TABLE IF NOT EXISTS {self._table(NOTES)} (name text PRIMARY KEY, owner text, "
            "root text, columns text, has_encoded boolean, through bigint)",
        )
        note = Note(owner, root, columns_text(self.spec.schema), BEFORE_FIRST)
        self._claim(before, note)
        self._create(self._name, by_columns=self.is_by_columns)
        return note

    def _claim(self, before: Note | None, note: Note) -> None:
        fields = (note.owner, note.root, note.columns, False, BEFORE_FIRST)
        if before is None:
            done = self._cql.run(
                "note the view",
                f"INSERT INTO {self._table(NOTES)} (owner, root, columns, has_encoded, through, "
                "name) VALUES (?, ?, ?, ?, ?, ?) IF NOT EXISTS",
                *fields, self._name,
            )  # fmt: skip
        else:
            done = self._cql.run(
                "note the view",
                f"UPDATE {self._table(NOTES)} SET owner = ?, root = ?, columns = ?, "
                "has_encoded = ?, through = ? WHERE name = ? IF owner = ?",
                *fields, self._name, before.owner,
            )  # fmt: skip
        # After a reply that was lost it is noted already.
        found = self._note()
        if not done[0].applied and (found is None or found.owner != note.owner):
            raise Unavailable(
                f"Another query has just claimed the view {self.spec.location}. Give each its own."
            )

    def _create(self, name: str, *, by_columns: bool) -> None:
        keys = [field.name for field in self.spec.schema.keys] if by_columns else [KEY]
        columns = ", ".join(
            f"{quoted(column)} {kind}" for column, (kind, _) in self._shape(by_columns).items()
        )
        primary = ", ".join(quoted(key) for key in keys)
        self._cql.define(
            "create the table",
            f"CREATE TABLE IF NOT EXISTS {self._table(name)} ({columns}, PRIMARY KEY ({primary})) "
            f"WITH comment = '{_COMMENT}'",
        )

    def _shape(self, by_columns: bool) -> dict[str, tuple[str, str]]:
        """The columns of a table: their types, and what they are in the primary key."""
        schema = self.spec.schema
        found: dict[str, tuple[str, str]] = {} if by_columns else {KEY: ("text", "partition_key")}
        for place, field in enumerate(schema.keys):
            role = ("partition_key" if place == 0 else "clustering") if by_columns else "regular"
            found[field.name] = (cql(field.type).type, role)
        found |= {field.name: (cql(field.type).type, "regular") for field in schema.values}
        found[VERSION] = ("bigint", "regular")
        return found

    def _check_table(self, name: str, *, by_columns: bool) -> None:
        wanted = {c: f"{kind} {role}" for c, (kind, role) in self._shape(by_columns).items()}
        check_columns(self._columns_of(name), wanted, f"{self._keyspace}.{name}")

    def _columns_of(self, name: str) -> dict[str, str]:
        rows = self._cql.run(
            "look at the table",
            "SELECT column_name, type, kind FROM system_schema.columns WHERE keyspace_name = ? "
            "AND table_name = ?",
            self._keyspace,
            name,
        )
        return {row.column_name: f"{row.type} {row.kind}" for row in rows}

    def _note(self) -> Note | None:
        rows = self._cql.run(
            "read what is noted of the view",
            f"SELECT owner, root, columns, has_encoded, through FROM {self._table(NOTES)} "
            "WHERE name = ?",
            self._name,
            serial=True,
        )
        if not rows or rows[0].owner is None:
            return None
        row = rows[0]
        return Note(row.owner, row.root, row.columns, row.through, bool(row.has_encoded))

    def add_encoded(self) -> None:
        name = self._name + ENCODED
        note = self._note()
        if not (note is not None and note.has_encoded) and self._columns_of(name):
            raise InvalidArgument(
                f"The view {self.spec.location} needs a table {name!r} for keys that no primary "
                "key takes, and there is one that is not its own. Rename that one.",
                condition="STATE_STORE_NOT_A_VIEW",
            )
        self._cql.run(
            "note the view",
            f"UPDATE {self._table(NOTES)} SET has_encoded = true WHERE name = ? IF owner = ?",
            self._name,
            self._owner,
        )
        self._create(name, by_columns=False)

    # -- keeping it up to date -----------------------------------------------------------------

    def write(self, version: int, rows: pa.Table, *, encoded: bool) -> None:
        names = [*self._key_names(encoded), *self._other_names(encoded), VERSION]
        columns = ", ".join(quoted(name) for name in names)
        marks = ", ".join("?" * len(names))
        self._cql.run_all(
            "write rows",
            f"INSERT INTO {self._table(self._table_of(encoded))} ({columns}) VALUES ({marks}) "
            "USING TIMESTAMP ?",
            self._arguments(rows, names[:-1], (version, version)),
        )

    def remove(self, version: int, rows: pa.Table, *, encoded: bool) -> None:
        names = self._key_names(encoded)
        keys = self._arguments(rows, names, ())
        self._delete(version, self._table_of(encoded), names, keys)

    def _delete(
        self, version: int, table: str, names: Sequence[str], keys: Iterator[tuple[Any, ...]]
    ) -> None:
        where = " AND ".join(f"{quoted(name)} = ?" for name in names)
        self._cql.run_all(
            "remove rows",
            f"DELETE FROM {self._table(table)} USING TIMESTAMP ? WHERE {where}",
            ((version, *key) for key in keys),
        )

    def remove_older(self, version: int, *, has_encoded: bool) -> int:
        removed = 0
        for encoded in (False, True) if has_encoded else (False,):
            names = self._key_names(encoded)
            columns = ", ".join(quoted(name) for name in [VERSION, *names])
            table = self._table_of(encoded)
            for page in self._cql.pages("read rows", f"SELECT {columns} FROM {self._table(table)}"):
                old = [tuple(row[1:]) for row in page if row[0] is None or row[0] < version]
                self._delete(version, table, names, iter(old))
                removed += len(old)
        return removed

    def note(self, version: int) -> None:
        self._cql.run(
            "note the version",
            f"UPDATE {self._table(NOTES)} SET through = ? WHERE name = ? IF owner = ? AND "
            "through < ?",
            version,
            self._name,
            self._owner,
            version,
        )

    # -- names and cells -----------------------------------------------------------------------

    def _table(self, name: str) -> str:
        return f"{quoted(self._keyspace)}.{quoted(name)}"

    def _table_of(self, encoded: bool) -> str:
        return self._name + ENCODED if encoded else self._name

    def _key_names(self, encoded: bool) -> list[str]:
        by_columns = self.is_by_columns and not encoded
        return list(self.spec.schema.keys.names) if by_columns else [KEY]

    def _other_names(self, encoded: bool) -> list[str]:
        by_columns = self.is_by_columns and not encoded
        keys = () if by_columns else self.spec.schema.keys.names
        return [*keys, *self.spec.schema.values.names]

    @cached_property
    def _fields(self) -> dict[str, Field]:
        schema = self.spec.schema
        return {field.name: field for field in (*schema.keys, *schema.values)}

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
