"""Blobs as rows of Cassandra, or of a database with its protocol and lightweight transactions.

Every change to a blob or upload row is a lightweight transaction: Paxos then decides the order and
the timestamps of all of them, and the clocks of clients do not matter. Chunks are written at
timestamp 1 and removed at timestamp 2, so that a late write does not bring back a removed one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cassandra.concurrent import execute_concurrent_with_args
from cassandra.protocol import ServerError

from holdfast.backends.chunked import ChunkedStorage
from holdfast.backends.root_rows import BlobRow, DirectoryEntry, RootRows, UploadRow
from holdfast.clients import cassandra as cassandra_client
from holdfast.clients.cassandra import (
    CassandraAddress,
    CassandraClient,
    CassandraOptions,
    client_of,
)
from holdfast.clients.retrying import retried
from holdfast.conf import StateStoreConf
from holdfast.errors import HoldfastError, InvalidArgument

TABLES: dict[str, dict[str, tuple[str, str]]] = {
    "holdfast_directories": {
        "root": ("partition_key", "text"),
        "directory": ("clustering", "text"),
    },
    "holdfast_rows": {
        "root": ("partition_key", "text"),
        "directory": ("partition_key", "text"),
        "kind": ("clustering", "tinyint"),
        "name": ("clustering", "text"),
        "upload": ("regular", "text"),
        "size": ("regular", "bigint"),
        "chunks": ("regular", "int"),
        "chunk_bytes": ("regular", "int"),
        "data": ("regular", "blob"),
        "touched_ms": ("regular", "bigint"),
        "live": ("regular", "boolean"),
    },
    "holdfast_chunks": {
        "upload": ("partition_key", "text"),
        "number": ("partition_key", "int"),
        "data": ("regular", "blob"),
    },
}
"""The columns of each table: which part of the key they are, and their type."""
_COMMENT = "Holdfast state, format 1"
# Rows of `versions` come and go with every batch, and a listing reads over those removed within the
# grace time, so it is short. A node that was down for longer must be repaired or replaced.
_GRACE_S = 3 * 3600
_KEYSPACE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")
_BLOB, _UPLOAD = 0, 1
_IN_FLIGHT = 16
_AGREE_S, _AGREEMENTS = 0.5, 20
_ROW = "root = ? AND directory = ? AND kind = ? AND name = ?"
_DEAD = (
    "INSERT INTO {}.holdfast_rows (root, directory, kind, name, chunks, touched_ms, live) "
    "VALUES (?, ?, ?, ?, ?, 0, false)"
)


class CassandraStorage(ChunkedStorage):
    """Blobs below a folder of one root in a keyspace, which must exist; tables are created."""

    def __init__(
        self,
        location: str,
        options: Mapping[str, str] | None = None,
        conf: StateStoreConf = StateStoreConf.empty,
    ) -> None:
        address = CassandraAddress.of(location)
        if not _KEYSPACE.fullmatch(address.keyspace):
            raise InvalidArgument(f"{address.keyspace!r} cannot be a keyspace of Cassandra.")
        root, _, folder = address.path.partition("/")
        rows = _CassandraRows(
            address, root, CassandraOptions.of(options or {}), conf.retry_timeout_ms
        )
        where = f"cassandra://{address.netloc}/{address.keyspace}/{address.path}"
        super().__init__(where, folder, rows)


class _CassandraRows(RootRows):
    chunk_bytes = 512 << 10
    errors = cassandra_client.ERRORS

    def __init__(
        self, address: CassandraAddress, root: str, options: CassandraOptions, limit_ms: int
    ) -> None:
        super().__init__(limit_ms)
        self._keyspace, self._root = address.keyspace, root
        self._netloc, self._options = address.netloc, options

    def passes(self, error: Exception) -> bool:
        return cassandra_client.passes(error)

    def mapped(self, error: Exception, failed: str) -> HoldfastError:
        return cassandra_client.mapped(error, failed)

    @property
    def client(self) -> CassandraClient:
        """The client in this process."""
        return client_of(self._netloc, self._options, self)

    # Tables

    def exist(self) -> bool:
        known = ("tables", self._keyspace)
        if known in self.client.known:
            return True
        self._check_keyspace()
        found = [name for name in TABLES if self._is_ours(name)]
        if len(found) < len(TABLES):
            return False
        self.client.known.add(known)
        return True

    def make(self) -> None:
        if self.exist():
            return
        for name, columns in TABLES.items():
            self.client.session.execute(self._creation(name, columns))
        # Others may be creating the tables as well; the nodes agree on them after a while.
        for _ in range(_AGREEMENTS):
            if self.exist():
                return
            time.sleep(_AGREE_S)
        raise ServerError(0, "The nodes do not agree on the tables", None)

    def _check_keyspace(self) -> None:
        if self.client.run(
            "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?",
            self._keyspace,
        ):
            return
        raise InvalidArgument(
            f"There is no keyspace {self._keyspace} at {self._netloc}. Create it, for example with "
            f'CREATE KEYSPACE "{self._keyspace}" WITH replication = '
            "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}"
        )

    def _is_ours(self, table: str) -> bool:
        """Whether the table exists. Raises InvalidArgument for one with other columns."""
        found = self.client.run(
            "SELECT column_name, kind, type FROM system_schema.columns "
            "WHERE keyspace_name = ? AND table_name = ?",
            self._keyspace,
            table,
        )
        columns = {row.column_name: (row.kind, row.type) for row in found}
        if not columns:
            return False
        if columns != TABLES[table]:
            wrong = sorted(
                name
                for name in columns.keys() | TABLES[table].keys()
                if columns.get(name) != TABLES[table].get(name)
            )
            raise InvalidArgument(
                f"The table {self._keyspace}.{table} at {self._netloc} is not Holdfast's: its "
                f"column {wrong[0]} is missing, unknown or of another type. Nothing was changed. "
                "Use another keyspace, or move that table away.",
                condition="STATE_STORE_SCHEMA_MISMATCH",
            )
        return True

    def _creation(self, table: str, columns: Mapping[str, tuple[str, str]]) -> str:
        partition = [name for name, (kind, _) in columns.items() if kind == "partition_key"]
        order = [name for name, (kind, _) in columns.items() if kind == "clustering"]
        key = ", ".join([f"({', '.join(partition)})", *order])
        typed = ", ".join(f"{name} {type_}" for name, (_, type_) in columns.items())
        return (
            f'CREATE TABLE IF NOT EXISTS "{self._keyspace}".{table} ({typed}, PRIMARY KEY ({key})) '
            f"WITH comment = '{_COMMENT}' AND gc_grace_seconds = {_GRACE_S}"
        )

    # Directories

    def note_directory(self, directory: str) -> None:
        known = ("directory", self._keyspace, self._root, directory)
        if known not in self.client.known:
            self._run(
                "INSERT INTO {}.holdfast_directories (root, directory) VALUES (?, ?)",
                self._root,
                directory,
            )
            self.client.known.add(known)

    def directories(self, prefix: str) -> list[str]:
        select = "SELECT directory FROM {}.holdfast_directories WHERE root = ?"
        if not prefix:
            found = self._run(select, self._root)
        else:
            after = chr(ord("/") + 1)
            found = [
                *self._run(f"{select} AND directory = ?", self._root, prefix),
                *self._run(
                    f"{select} AND directory >= ? AND directory < ?",
                    self._root,
                    f"{prefix}/",
                    f"{prefix}{after}",
                ),
            ]
        return [row.directory for row in found]

    # Blob and upload rows

    def blob(self, place: DirectoryEntry) -> BlobRow | None:
        found = self._run(
            f"SELECT upload, size, chunks, chunk_bytes, data FROM {{}}.holdfast_rows WHERE {_ROW}",
            *self._key(_BLOB, place),
            serial=True,
        )
        if not found:
            return None
        (row,) = found
        # An empty blob of bytes is stored as such, and one that was never set is None.
        data = row.data if row.chunks else row.data or b""
        return BlobRow(row.upload, row.size, row.chunks, row.chunk_bytes, data)

    def blobs(self, directories: Sequence[str]) -> list[tuple[DirectoryEntry, int]]:
        found = self._of_all(directories, "name, size", _BLOB)
        return [(DirectoryEntry(directory, row.name), row.size) for directory, row in found]

    def uploads(self, directories: Sequence[str]) -> list[UploadRow]:
        found = self._of_all(directories, "name, chunks, touched_ms, live", _UPLOAD)
        return [
            UploadRow(DirectoryEntry(directory, row.name), row.chunks, row.touched_ms, row.live)
            for directory, row in found
        ]

    def create(self, place: DirectoryEntry, row: BlobRow) -> bool:
        return self._decide(
            "INSERT INTO {}.holdfast_rows (root, directory, kind, name, upload, size, chunks, "
            "chunk_bytes, data) VALUES (?, ?, ?, ?, ?, ?, 0, 0, ?) IF NOT EXISTS",
            *self._key(_BLOB, place),
            row.upload,
            row.size,
            row.data,
        )

    def begin(self, upload: UploadRow) -> None:
        self._decide(
            "INSERT INTO {}.holdfast_rows (root, directory, kind, name, chunks, touched_ms, live) "
            "VALUES (?, ?, ?, ?, ?, ?, true) IF NOT EXISTS",
            *self._key(_UPLOAD, upload.place),
            upload.chunks,
            upload.touched_ms,
        )

    def touch(self, upload: UploadRow) -> bool:
        return self._decide(
            f"UPDATE {{}}.holdfast_rows SET chunks = ?, touched_ms = ? WHERE {_ROW} IF live = true",
            upload.chunks,
            upload.touched_ms,
            *self._key(_UPLOAD, upload.place),
        )

    def finish(self, place: DirectoryEntry, row: BlobRow) -> bool:
        return self._decide(
            "BEGIN BATCH INSERT INTO {}.holdfast_rows (root, directory, kind, name, upload, size, "
            "chunks, chunk_bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS; "
            f"DELETE FROM {{}}.holdfast_rows WHERE {_ROW} IF live = true; APPLY BATCH",
            *self._key(_BLOB, place),
            row.upload,
            row.size,
            row.chunks,
            row.chunk_bytes,
            *self._key(_UPLOAD, DirectoryEntry(place.directory, row.upload)),
        )

    def replace(self, place: DirectoryEntry, before: BlobRow, row: BlobRow) -> bool:
        changes = [
            "UPDATE {}.holdfast_rows SET upload = ?, size = ?, chunks = ?, chunk_bytes = ?, "
            f"data = ? WHERE {_ROW} IF upload = ?"
        ]
        values: list[object] = [
            row.upload,
            row.size,
            row.chunks,
            row.chunk_bytes,
            row.data,
            *self._key(_BLOB, place),
            before.upload,
        ]
        if row.data is None:
            changes.append(f"DELETE FROM {{}}.holdfast_rows WHERE {_ROW} IF live = true")
            values += self._key(_UPLOAD, DirectoryEntry(place.directory, row.upload))
        if before.chunks:
            changes.append(_DEAD)
            values += [
                *self._key(_UPLOAD, DirectoryEntry(place.directory, before.upload)),
                before.chunks,
            ]
        return self._decide(f"BEGIN BATCH {'; '.join(changes)}; APPLY BATCH", *values)

    def give_up(self, upload: UploadRow) -> bool:
        return self._decide(
            "UPDATE {}.holdfast_rows SET live = false "
            f"WHERE {_ROW} IF live = true AND touched_ms = ?",
            *self._key(_UPLOAD, upload.place),
            upload.touched_ms,
        )

    def remove(self, place: DirectoryEntry, row: BlobRow) -> None:
        removed = f"DELETE FROM {{}}.holdfast_rows WHERE {_ROW} IF upload = ?"
        values = (*self._key(_BLOB, place), row.upload)
        if not row.chunks:
            self._decide(removed, *values)
            return
        self._decide(
            f"BEGIN BATCH {removed}; {_DEAD}; APPLY BATCH",
            *values,
            *self._key(_UPLOAD, DirectoryEntry(place.directory, row.upload)),
            row.chunks,
        )

    def forget(self, upload: DirectoryEntry) -> None:
        self._decide(
            f"DELETE FROM {{}}.holdfast_rows WHERE {_ROW} IF EXISTS", *self._key(_UPLOAD, upload)
        )

    # Chunks

    def put_chunks(self, upload: str, first: int, chunks: Sequence[bytes]) -> None:
        self._run_all(
            "INSERT INTO {}.holdfast_chunks (upload, number, data) VALUES (?, ?, ?) "
            "USING TIMESTAMP 1",
            [(upload, number, data) for number, data in enumerate(chunks, first)],
        )

    def get_chunks(self, upload: str, numbers: range) -> list[bytes | None]:
        found = self._run_all(
            "SELECT data FROM {}.holdfast_chunks WHERE upload = ? AND number = ?",
            [(upload, number) for number in numbers],
        )
        return [rows[0].data if rows else None for rows in found]

    def delete_chunks(self, upload: str, count: int) -> None:
        self._run_all(
            "DELETE FROM {}.holdfast_chunks USING TIMESTAMP 2 WHERE upload = ? AND number = ?",
            [(upload, number) for number in range(count)],
        )

    # Statements; {} in them is the keyspace

    def _key(self, kind: int, place: DirectoryEntry) -> tuple[str, str, int, str]:
        return self._root, place.directory, kind, place.name

    def _decide(self, query: str, *values: object) -> bool:
        """Whether a lightweight transaction was applied."""
        return bool(self._run(query, *values)[0][0])

    def _run(self, query: str, *values: object, serial: bool = False) -> list[Any]:
        return self.client.run(self._in_keyspace(query), *values, serial=serial)

    def _run_all(
        self, query: str, values: Sequence[Sequence[object]], serial: bool = False
    ) -> list[list[Any]]:
        """Run a statement once for each of `values`; return the rows of each.

        A bounded number of runs is in flight, and those that fail are repeated.
        """
        found: list[list[Any]] = [[] for _ in values]
        left = list(range(len(values)))

        def run() -> None:
            nonlocal left
            client = self.client
            prepared = client.prepared(self._in_keyspace(query), serial=serial)
            done = execute_concurrent_with_args(
                client.session,
                prepared,
                [values[n] for n in left],
                concurrency=_IN_FLIGHT,
                raise_on_first_error=False,
            )
            failures: dict[int, Exception] = {}
            for number, (succeeded, given) in zip(left, done, strict=True):
                if succeeded:
                    found[number] = list(given)
                else:
                    failures[number] = given
            left = list(failures)
            if failures:
                raise min(failures.values(), key=self.passes)

        if values:
            retried(run, self.passes, self.limit_ms)
        return found

    def _of_all(self, directories: Sequence[str], columns: str, kind: int) -> list[tuple[str, Any]]:
        """The rows of a kind in several directories, each with its directory."""
        found = self._run_all(
            f"SELECT {columns} FROM {{}}.holdfast_rows "
            "WHERE root = ? AND directory = ? AND kind = ?",
            [(self._root, directory, kind) for directory in directories],
            serial=True,
        )
        return [
            (directory, row)
            for directory, rows in zip(directories, found, strict=True)
            for row in rows
        ]

    def _in_keyspace(self, query: str) -> str:
        return query.replace("{}", f'"{self._keyspace}"')
