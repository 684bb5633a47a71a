"""The stores of a columnar provider: the contract on top of a partition reader or writer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.engine.partition.bounds import Bounds
from holdfast.engine.partition.ranges import index_number, range_pieces, row_pairs
from holdfast.engine.partition.reader import PartitionReader, rows_table
from holdfast.engine.partition.rows import Rows
from holdfast.engine.partition.writer import PartitionWriter
from holdfast.engine.versions.commit import PreparedPartition
from holdfast.errors import Closed, IllegalState, InvalidArgument
from holdfast.ids import StateStoreId
from holdfast.store import ReadStateStore, Row, RowPair, StateStore, StateStoreMetrics
from holdfast.types import Schema

if TYPE_CHECKING:
    from holdfast.engine.provider import Attempt, EngineProvider, OpenVersion

log = logging.getLogger(__name__)


class State(Enum):
    """The state of a store that is open for update."""

    UPDATING = "UPDATING"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


class EngineReadStateStore(ReadStateStore):
    """One version, for reading. Raises Closed after `abort`."""

    def __init__(self, provider: EngineProvider, version: int, reader: PartitionReader) -> None:
        self._provider = provider
        self._version = version
        self.partition = reader
        """The partition that is read, for those who read several as one."""
        self._state = State.UPDATING

    @property
    def id(self) -> StateStoreId:
        return self._provider.state_store_id

    @property
    def version(self) -> int:
        return self._version

    @property
    def key_schema(self) -> Schema:
        return self.partition.shape.key_schema

    @property
    def value_schema(self) -> Schema:
        return self.partition.shape.value_schema

    def get(self, key: Any) -> Row | None:
        if self._state is State.ABORTED:
            raise self._closed()
        return self.partition.get(key)

    def get_many(self, keys: pa.Table) -> pa.Table:
        return self._readable().get_many(keys)

    def iterator(self) -> Iterator[RowPair]:
        return self._pairs(self._readable().pieces())

    def get_range(self, start: Any = None, end: Any = None) -> Iterator[RowPair]:
        return self._pairs(range_pieces(self._readable(), start, end))

    def prefix_scan(self, prefix: Any) -> Iterator[RowPair]:
        return self._pairs(self._readable().prefix_pieces(prefix))

    def scan(self, columns: list[str] | None = None, where: Any = None) -> pa.Table:
        partition = self._readable()
        return scan_table(partition, partition.pieces(), columns, where)

    def tables(self) -> Iterator[pa.Table]:
        """The whole state, a table of key and value columns at a time."""
        return self._readable().tables()

    def delta_tables(self) -> Iterator[pa.Table]:
        """The keys this version put, with their values, a table at a time."""
        for piece in self._readable().delta_pieces():
            live = piece if piece.dead is None else piece.where(~piece.dead)
            yield rows_table(self.partition.shape, live)

    def changed_tables(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """What this version changed, a piece at a time: rows it put, and rows it removed.

        Only the keys of removed rows have a meaning. Rows that a bound hid are not among them.
        """
        shape = self.partition.shape
        for piece, live in self._readable().changed_pieces():
            if live is None:
                yield rows_table(shape, piece), rows_table(shape, piece).slice(0, 0)
            else:
                yield rows_table(shape, piece.where(live)), rows_table(shape, piece.where(~live))

    def hidden_tables(self, before: Bounds) -> Iterator[pa.Table]:
        """Keys that this version's bounds hid; `before` are those of the version before it."""
        for piece in self._readable().hidden_pieces(before):
            yield rows_table(self.partition.shape, piece)

    def evicted_tables(self, above: int | None, upto: int) -> Iterator[pa.Table]:
        """Keys whose index lies above `above` and at or below `upto`, evicted or not."""
        for piece in self._readable().evicted_pieces(above, upto):
            yield rows_table(self.partition.shape, piece)

    @property
    def evict_bound(self) -> int | None:
        """The index at or below which keys are hidden; None where nothing was ever evicted."""
        return self._readable().bounds.evict

    def earliest_index(self, after: int) -> int | None:
        """The lowest index above a number; it may be that of a removed key."""
        return self._readable().earliest(after, expiry=False)

    def earliest_expiry(self, after_ms: int) -> int | None:
        """The next time after `after_ms` at which a key may expire."""
        return self._readable().earliest(after_ms, expiry=True)

    def prefix_table(self, rows: pa.Table) -> pa.Table:
        """All rows with the prefixes of `rows`, which has the prefix columns or `_hash`.

        Rows of another prefix with the same hash may be included.
        """
        partition = self._readable()
        return scan_table(partition, iter(partition.with_prefixes(rows)), None, None)

    def abort(self) -> None:
        self._state = State.ABORTED

    @property
    def metrics(self) -> StateStoreMetrics:
        chain = self._readable().chain
        entry = chain.entry
        return self._provider.metrics_of(entry.segments, entry.num_keys, chain.private_bytes)

    def _readable(self) -> PartitionReader:
        if self._state is State.ABORTED:
            raise self._closed()
        return self.partition

    def _closed(self) -> Closed:
        return Closed(f"{self} was aborted; ask its provider for a new store.")

    def _pairs(self, pieces: Iterator[Rows]) -> Iterator[RowPair]:
        return row_pairs(self.partition.shape, pieces)

    def __repr__(self) -> str:
        return f"HDFSStateStore[id={self.id},dir={self._provider.base_dir}]"


class EngineStateStore(EngineReadStateStore, StateStore):
    """One version open for update."""

    partition: PartitionWriter

    def __init__(
        self, provider: EngineProvider, version: int, writer: PartitionWriter, opened: OpenVersion
    ) -> None:
        super().__init__(provider, version, writer)
        self._opened = opened
        self._attempt: Attempt | None = None

    def put(self, key: Any, value: Any, expires_ms: int | None = None) -> None:
        """Set a key; with `expires_ms` it is gone once `expire` is called with such a time."""
        if self._state is not State.UPDATING or self._attempt is not None:
            self._refuse("put")
        self.partition.put(key, value, expires_ms)

    def remove(self, key: Any) -> None:
        self._updating("remove").remove(key)

    def put_many(self, rows: pa.Table) -> None:
        self._updating("put").put_many(rows)

    def remove_many(self, keys: pa.Table) -> None:
        self._updating("remove").remove_many(keys)

    def update_many(self, rows: pa.Table, change: Callable[[pa.Table, pa.Table], pa.Table]) -> None:
        """Read, change and write back many keys in one go; see PartitionWriter.update_many."""
        self._updating("put").update_many(rows, change)

    def evict(self, upto: Any) -> int:
        """Drop every key whose index column is at or below `upto`; return how many it dropped.

        Nothing is rewritten: the manifest records the bound, which only grows.
        """
        writer = self._updating("remove")
        number = index_number(writer.shape, upto)
        if number is None:
            raise InvalidArgument(
                f"{self} cannot evict by its index column, which is not a whole number or a time."
            )
        return writer.raise_bounds(evict=number)

    def raise_evict_bound(self, number: int) -> int:
        """`evict` for an index that is already its stored whole number."""
        return self._updating("remove").raise_bounds(evict=number)

    def expire(self, now_ms: int) -> int:
        """Drop every key put with `expires_ms` at or before `now_ms`; return how many."""
        return self._updating("remove").raise_bounds(expire=now_ms)

    def commit(self) -> int:
        new_version = self._version + 1
        if self._state is not State.UPDATING:
            self._refuse("commit")
        try:
            if self._attempt is None:
                self._attempt = self._provider.prepare(self._opened, self.partition)
            if not self._provider.prepares_only:
                file = self._provider.publish(self._opened, self._attempt)
                log.info("Committed version %d for %s to file %s", new_version, self, file)
        except Exception as error:
            raise IllegalState(
                f"Error committing version {new_version} into {self}",
                condition="STATE_STORE_COMMIT_FAILED",
            ) from error
        self._state = State.COMMITTED
        return new_version

    @property
    def prepared(self) -> PreparedPartition:
        """What the driver needs to commit this store. Requires: `commit` was called in a query."""
        if self._attempt is None:
            raise IllegalState(f"{self} has not been committed yet.")
        return self._attempt.prepared

    def abort(self) -> None:
        if self._state is not State.UPDATING:
            return
        self._state = State.ABORTED
        self.partition.memtable.clear()
        if self._attempt is not None:
            self._provider.discard(self._attempt)
        log.info("Aborted version %d for %s", self._version + 1, self)

    def discard(self, *, keep_files: bool = False) -> None:
        """Abort, even after a commit in a query that the driver did not use.

        Set `keep_files` where a manifest may name the files.
        """
        if self._state is State.COMMITTED and self._provider.prepares_only:
            self._state = State.UPDATING
        if keep_files and self._attempt is not None:
            self._attempt.published = True
        self.abort()

    @property
    def has_committed(self) -> bool:
        return self._state is State.COMMITTED

    @property
    def metrics(self) -> StateStoreMetrics:
        self._readable()
        writer, attempt = self.partition, self._attempt
        base = writer.chain.entry
        return self._provider.metrics_of(
            attempt.segments(base) if attempt and self.has_committed else base.segments,
            writer.num_keys() if attempt is None else attempt.prepared.num_keys,
            writer.memtable.nbytes + writer.chain.private_bytes,
        )

    def _updating(self, what: str) -> PartitionWriter:
        if self._state is not State.UPDATING or self._attempt is not None:
            self._refuse(what)
        return self.partition

    def _refuse(self, what: str) -> None:
        raise IllegalState(f"Cannot {what} after already committed or aborted")


def scan_table(
    partition: PartitionReader, pieces: Iterator[Rows], columns: list[str] | None, where: Any
) -> pa.Table:
    """Join pieces to one table, each filtered and reduced to `columns` first."""
    shape = partition.shape
    schema = pa.schema([*shape.layout.keys, *shape.layout.values])
    if columns is not None:
        for name in columns:
            if name not in schema.names:
                raise InvalidArgument(f"There is no column {name!r}. There are {schema.names}.")
    tables = []
    for piece in pieces:
        table = rows_table(shape, piece)
        if where is not None:
            table = table.filter(where)
        tables.append(table if columns is None else table.select(columns))
    if not tables:
        empty = schema.empty_table()
        return empty if columns is None else empty.select(columns)
    return pa.concat_tables(tables)
