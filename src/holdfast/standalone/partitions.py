"""One store over all its partitions: rows and batches are routed by the hash of their keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from holdfast.engine.statestore import EngineReadStateStore, EngineStateStore, State
from holdfast.errors import Conflict, IllegalState
from holdfast.ids import OPERATOR, StateStoreId
from holdfast.reading.reader import StorePlace, VersionReader
from holdfast.reading.state import ReadableState
from holdfast.store import ReadStateStore, StateStore, StateStoreMetrics
from holdfast.types import as_table, parts_of


class PartitionedReader(ReadableState, ReadStateStore):
    """One version of a store over all its partitions, as `holdfast.open(…).at(version)` returns it.

    It reads like `holdfast.read`. `abort` closes it.
    """

    def __init__(
        self,
        place: StorePlace,
        version: int,
        parts: Sequence[EngineReadStateStore],
        reopened: Callable[[int | str | None], PartitionedReader],
        *,
        is_updated: bool = False,
    ) -> None:
        self._parts = parts
        self._reopened = reopened
        """Opens a version by number or tag; None opens the newest."""
        partitions = [part.partition for part in parts]
        self._at = VersionReader(place, version, partitions, is_updated=is_updated)

    @property
    def id(self) -> StateStoreId:
        return StateStoreId(self._root, OPERATOR, 0)

    @property
    def _root(self) -> str:
        return self._at.place.log.storage.location

    def refresh(self) -> Self:
        newest = self._reopened(None)
        self._parts, self._at = newest._parts, newest._at
        return self

    def at(self, version: int | str) -> PartitionedReader:
        return self._reopened(version)

    @property
    def metrics(self) -> StateStoreMetrics:
        self._at.check_open()
        each = [part.metrics for part in self._parts]
        names = each[0].custom_metrics
        return StateStoreMetrics(
            sum(m.num_keys for m in each),
            sum(m.memory_used_bytes for m in each),
            {name: sum(m.custom_metrics[name] for m in each) for name in names},
        )

    def abort(self) -> None:
        self._at.close(f"{self} was aborted; open the version again.")

    def __repr__(self) -> str:
        return f"StateReader[version={self.version},dir={self._root}]"


class PartitionedStore(PartitionedReader, StateStore):
    """The newest version of a store, open for update; all partitions commit in one step.

    As a context manager it commits on leaving, and aborts if the block raises.
    """

    _parts: list[EngineStateStore]

    def __init__(
        self,
        place: StorePlace,
        version: int,
        parts: list[EngineStateStore],
        reopened: Callable[[int | str | None], PartitionedReader],
        commit: Callable[[list[EngineStateStore]], None],
        committed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(place, version, parts, reopened, is_updated=True)
        self._commit = commit
        self._committed = committed
        """Called after the commit; what it raises does not undo it."""
        self._state = State.UPDATING
        self._unclear = False
        """Whether a manifest may name the files of this update; clean-up has to find out then."""

    @property
    def num_keys(self) -> int:
        return self.metrics.num_keys

    def refresh(self) -> Self:
        raise IllegalState(f"{self} is open for update and stays at its version; commit it first.")

    def put(self, key: Any, value: Any, expires_ms: int | None = None) -> None:
        """Set the value of a key.

        With `expires_ms` the key is removed by the first `expire` at or after that time.
        """
        self._part(key).put(key, value, expires_ms)

    def remove(self, key: Any) -> None:
        self._part(key).remove(key)

    def _part(self, key: Any) -> EngineStateStore:
        parts = self._parts
        return parts[0] if len(parts) == 1 else parts[self._at.position(key)]

    def put_many(self, rows: pa.Table) -> None:
        if len(self._parts) == 1:
            self._parts[0].put_many(rows)
            return
        for whole in parts_of(as_table(rows)):
            for position, share, _ in self._at.shares(whole):
                self._parts[position].put_many(share)

    def remove_many(self, keys: pa.Table) -> None:
        if len(self._parts) == 1:
            self._parts[0].remove_many(keys)
            return
        for whole in parts_of(as_table(keys)):
            for position, share, _ in self._at.shares(whole):
                self._parts[position].remove_many(share)

    def update_many(self, rows: pa.Table, change: Callable[[pa.Table, pa.Table], pa.Table]) -> None:
        """Read, change and write back many keys.

        `rows` has the key columns, and any others that `change` needs. `change(rows, state)` is
        called once for each partition with its share of `rows`, in another order, and row by row
        the value columns with `_found`. It returns a table with the new value columns in that
        order, and optionally a boolean `_dead` (remove the key) and `_expires` (when it expires,
        in ms). Requires: the keys are distinct.
        """
        if len(self._parts) == 1:
            self._parts[0].update_many(rows, change)
            return
        for position, share, _ in self._at.shares(as_table(rows)):
            self._parts[position].update_many(share, change)

    def evict(self, upto: Any) -> int:
        """Drop every key whose index column is at or below `upto`, and return how many there were.

        The bound never falls: keys that are put below it later stay hidden. Requires: the store
        was created with `key_index_ordinal`, on a column of whole numbers or times.
        """
        return sum(part.evict(upto) for part in self._parts)

    def expire(self, now_ms: int) -> int:
        """Drop every key put with `expires_ms` at or before `now_ms`, and return how many."""
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
        return self.version + 1

    def abort(self) -> None:
        if self._state is not State.UPDATING:
            return
        self._state = State.ABORTED
        super().abort()
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
        return f"StateStore[version={self.version},dir={self._root}]"
