"""One store over all partitions: rows and batches go where their key's hash says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.engine.files.segment import HASH
from holdfast.engine.hashing.spark_hash import partition_of
from holdfast.engine.partition.writer import hashes_of
from holdfast.engine.statestore import EngineReadStateStore, EngineStateStore, State
from holdfast.errors import Conflict, IllegalState
from holdfast.ids import OPERATOR, StateStoreId
from holdfast.store import ReadStateStore, Row, RowPair, StateStore, StateStoreMetrics
from holdfast.types import Schema, as_table, columns_of, parts_of


class PartitionedReader(ReadStateStore):
    """A version over all partitions, for reading."""

    def __init__(self, root: str, version: int, parts: list[EngineReadStateStore]) -> None:
        self._root = root
        self._version = version
        self._parts = parts
        self._hasher = parts[0]._partition.shape.hasher

    @property
    def id(self) -> StateStoreId:
        return StateStoreId(self._root, OPERATOR, 0)

    @property
    def version(self) -> int:
        return self._version

    @property
    def key_schema(self) -> Schema:
        return self._parts[0].key_schema

    @property
    def value_schema(self) -> Schema:
        return self._parts[0].value_schema

    def get(self, key: Any) -> Row | None:
        return self._part(key).get(key)

    def get_many(self, keys: pa.Table) -> pa.Table:
        if len(self._parts) == 1:
            return self._parts[0].get_many(keys)
        found, places = [], []
        for part, share, rows in self._shares(as_table(keys)):
            found.append(part.get_many(share))
            places.append(rows)
        if not found:
            return self._parts[0].get_many(keys)
        back = np.argsort(np.concatenate(places))
        return pa.concat_tables(found).take(pa.array(back))

    def iterator(self) -> Iterator[RowPair]:
        iterators = [part.iterator() for part in self._parts]
        return (pair for each in iterators for pair in each)

    def get_range(self, start: Any = None, end: Any = None) -> Iterator[RowPair]:
        iterators = [part.get_range(start, end) for part in self._parts]
        return (pair for each in iterators for pair in each)

    def prefix_scan(self, prefix: Any) -> Iterator[RowPair]:
        iterators = [part.prefix_scan(prefix) for part in self._parts]
        return (pair for each in iterators for pair in each)

    def scan(self, columns: list[str] | None = None, where: Any = None) -> pa.Table:
        return pa.concat_tables([part.scan(columns, where) for part in self._parts])

    @property
    def metrics(self) -> StateStoreMetrics:
        each = [part.metrics for part in self._parts]
        names = each[0].custom_metrics
        return StateStoreMetrics(
            sum(m.num_keys for m in each),
            sum(m.memory_used_bytes for m in each),
            {name: sum(m.custom_metrics[name] for m in each) for name in names},
        )

    def abort(self) -> None:
        for part in self._parts:
            part.abort()

    def _part(self, key: Any) -> EngineReadStateStore:
        if len(self._parts) == 1:
            return self._parts[0]
        encoded = self._parts[0]._partition.shape.keys.encode(key)
        hashed = self._hasher.hash_row(encoded)
        return self._parts[(hashed >> 32) % len(self._parts)]

    def _shares(self, table: pa.Table) -> Iterator[tuple[Any, pa.Table, Any]]:
        """Each partition's share of a table, hashed once, with the rows it came from."""
        hashes = hashes_of(table, columns_of(table, self.key_schema), self._hasher)
        if HASH not in table.column_names:
            table = table.append_column(HASH, pa.array(hashes))
        where = partition_of(hashes, len(self._parts))
        for number, part in enumerate(self._parts):
            rows = np.flatnonzero(where == number)
            if len(rows):
                yield part, table.take(pa.array(rows)), rows

    def __repr__(self) -> str:
        return f"StateReader[version={self._version},dir={self._root}]"


class PartitionedStore(PartitionedReader, StateStore):
    """The newest version over all partitions, open for update."""

    _parts: list[EngineStateStore]  # type: ignore[assignment]  # narrower than the reader's

    def __init__(
        self,
        root: str,
        version: int,
        parts: list[EngineStateStore],
        commit: Callable[[list[EngineStateStore]], None],
        committed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(root, version, list(parts))
        self._commit = commit
        self._committed = committed
        """Called once the version is there; what it raises does not undo that."""
        self._state = State.UPDATING
        self._unclear = False
        """Whether a manifest may name the files of this update; then clean-up decides on them."""

    def put(self, key: Any, value: Any, expires_ms: int | None = None) -> None:
        """Set a key; with `expires_ms` it is gone once `expire` is called with that time."""
        self._part(key).put(key, value, expires_ms)  # type: ignore[attr-defined]

    def remove(self, key: Any) -> None:
        self._part(key).remove(key)  # type: ignore[attr-defined]

    def put_many(self, rows: pa.Table) -> None:
        if len(self._parts) == 1:
            self._parts[0].put_many(rows)
            return
        for whole in parts_of(as_table(rows)):
            for part, share, _ in self._shares(whole):
                part.put_many(share)

    def remove_many(self, keys: pa.Table) -> None:
        if len(self._parts) == 1:
            self._parts[0].remove_many(keys)
            return
        for whole in parts_of(as_table(keys)):
            for part, share, _ in self._shares(whole):
                part.remove_many(share)

    def update_many(self, rows: pa.Table, change: Callable[[pa.Table, pa.Table], pa.Table]) -> None:
        """Read, change and write back many keys; `change` is called once for each partition.

        `change(rows, state)` gets some of `rows` in another order and, row for row, the value
        columns with `_found`. It returns the new value columns in that order, and optionally a
        boolean `_dead` (remove the key) and `_expires`. Requires: the keys are distinct.
        """
        if len(self._parts) == 1:
            self._parts[0].update_many(rows, change)
            return
        for part, share, _ in self._shares(as_table(rows)):
            part.update_many(share, change)

    def evict(self, upto: Any) -> int:
        """Drop every key whose index column is at or below `upto`; return how many those were."""
        return sum(part.evict(upto) for part in self._parts)

    def expire(self, now_ms: int) -> int:
        """Drop every key put with `expires_ms` at or before `now_ms`; return how many."""
        return sum(part.expire(now_ms) for part in self._parts)

    def commit(self) -> int:
        if self._state is not State.UPDATING:
            raise IllegalState("Cannot commit after already committed or aborted")
        try:
            for part in self._parts:
                if not part.has_committed:
                    part.commit()
            self._unclear = True
            self._commit(self._parts)
        except Conflict:
            self.abort()
            raise
        self._state = State.COMMITTED
        self._committed()
        return self._version + 1

    def abort(self) -> None:
        if self._state is not State.UPDATING:
            return
        self._state = State.ABORTED
        for part in self._parts:
            part.discard(keep_files=self._unclear)

    @property
    def has_committed(self) -> bool:
        return self._state is State.COMMITTED

    def __enter__(self) -> PartitionedStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._state is State.UPDATING:
            self.commit()

    def __repr__(self) -> str:
        return f"StateStore[version={self._version},dir={self._root}]"
