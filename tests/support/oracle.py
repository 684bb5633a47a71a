"""What the recovery tests share: a dict that knows every version, and ways to run a store on it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pyarrow as pa

from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.storage import Runtime, Storage
from holdfast.engine.versions.log import VersionLog
from holdfast.ids import StateStoreId
from holdfast.standalone import VersionedStore, open_on
from holdfast.types import RowCodec, parse_schema

Key = tuple[Any, ...]
Value = tuple[Any, ...]
KEY, VALUE = "p string, t long", "v long, s string"
INDEX = 1


def normal(key: Key) -> Key:
    """A key in which equal keys are equal: one NaN, one zero."""
    return tuple(_normal(cell) for cell in key)


def _normal(cell: Any) -> Any:
    if isinstance(cell, float):
        return "NaN" if math.isnan(cell) else cell + 0.0
    return cell


@dataclass(frozen=True)
class State:
    """The oracle: rows with their expiry, and the two bounds. Immutable."""

    rows: dict[Key, tuple[Key, Value, int | None]] = field(default_factory=dict)
    evict: int | None = None
    expire: int | None = None

    def put(self, key: Key, value: Value, expires: int | None = None) -> State:
        return replace(self, rows={**self.rows, normal(key): (key, value, expires)})

    def remove(self, key: Key) -> State:
        return replace(self, rows={k: v for k, v in self.rows.items() if k != normal(key)})

    def evicted(self, upto: int) -> State:
        return replace(self, evict=upto if self.evict is None else max(self.evict, upto))

    def expired(self, now: int) -> State:
        return replace(self, expire=now if self.expire is None else max(self.expire, now))

    def visible(self, index: int = INDEX) -> dict[Key, Value]:
        return {k: row[1] for k, row in self.rows.items() if self._lives(row, index)}

    def _lives(self, row: tuple[Key, Value, int | None], index: int) -> bool:
        key, _, expires = row
        number = key[index]
        if self.evict is not None and number is not None and number <= self.evict:
            return False
        return self.expire is None or expires is None or expires > self.expire


class FakeTime:
    """Clocks a test can move, and ids that say which process made them."""

    _processes = itertools.count(1)

    def __init__(self, process: int | None = None) -> None:
        self.now_ms = 1_000_000
        self.process = next(self._processes) if process is None else process
        self._ids = itertools.count(1)

    def runtime(self) -> Runtime:
        return Runtime(self._tick, lambda: self.now_ms, self._new_id)

    def _tick(self) -> int:
        self.now_ms += 1
        return self.now_ms

    def _new_id(self) -> str:
        return f"{self.process:016x}{next(self._ids):016x}"


@cache
def codec(schema: str) -> RowCodec:
    """The codec of a DDL schema, made once."""
    return RowCodec(parse_schema(schema))


def table_of(key_schema: str, value_schema: str, rows: Iterable[tuple[Key, Value]]) -> pa.Table:
    """Pairs as a table of key and value columns."""
    keys, values = codec(key_schema), codec(value_schema)
    pairs = list(rows)
    columns = [
        *keys.to_arrow([keys.encode(key) for key, _ in pairs]),
        *values.to_arrow([values.encode(value) for _, value in pairs]),
    ]
    fields = [*parse_schema(key_schema).arrow, *parse_schema(value_schema).arrow]
    return pa.table(columns, schema=pa.schema(fields))


def keys_of(key_schema: str, keys: Iterable[Key]) -> pa.Table:
    """Keys as a table."""
    rows = [codec(key_schema).encode(key) for key in keys]
    return pa.table(codec(key_schema).to_arrow(rows), schema=parse_schema(key_schema).arrow)


def contents(store: Any) -> dict[Key, Value]:
    """A version, read by iterating."""
    found: dict[Key, Value] = {}
    for key, value in store.iterator():
        assert normal(key) not in found, "a key came twice"
        found[normal(key)] = value
    return found


class Standalone:
    """A provider used alone, under the few verbs the scripts need."""

    name = "provider"

    def __init__(self, storage: Storage, time: FakeTime, conf: StateStoreConf) -> None:
        self.versions = VersionLog(storage, time.runtime())
        self.provider = HDFSBackedStateStoreProvider(runtime=time.runtime(), storage=storage)
        self.provider.init(
            StateStoreId(storage.location, 0, 0),
            parse_schema(KEY),
            parse_schema(VALUE),
            INDEX,
            1,
            conf,
        )

    def update(self) -> Any:
        return self.provider.get_store(self.versions.newest() or 0)

    def read(self, version: int) -> Any:
        return self.provider.get_read_store(version)

    def maintain(self) -> None:
        self.provider.do_snapshot()
        self.provider.cleanup()

    def snapshot(self) -> None:
        self.provider.do_snapshot()

    def tag(self, name: str, version: int) -> None:
        self.versions.tag(name, version)

    def close(self) -> None:
        self.provider.close()


class Facade:
    """A versioned store with two partitions, under the same verbs."""

    name = "facade"

    def __init__(self, storage: Storage, time: FakeTime, conf: StateStoreConf) -> None:
        self.versions = VersionLog(storage, time.runtime())
        self.database: VersionedStore = open_on(
            storage,
            time.runtime(),
            KEY,
            VALUE,
            partitions=2,
            key_index_ordinal=INDEX,
            num_cols_prefix_key=1,
            conf=conf,
        )

    def update(self) -> Any:
        return self.database.update()

    def read(self, version: int) -> Any:
        return self.database.at(version)

    def maintain(self) -> None:
        self.database.maintain()

    def snapshot(self) -> None:
        for provider in self.database._providers:
            provider.do_snapshot()

    def tag(self, name: str, version: int) -> None:
        self.database.tag(name, version)

    def close(self) -> None:
        self.database.close()


@contextmanager
def opened(kind: Any, storage: Storage, time: FakeTime, conf: StateStoreConf) -> Iterator[Any]:
    """One of the two, closed afterwards."""
    store = kind(storage, time, conf)
    try:
        yield store
    finally:
        store.close()


def copy_of(storage: MemoryStorage) -> MemoryStorage:
    """The same blobs in a storage of their own."""
    copy = MemoryStorage()
    copy._blobs = dict(storage._blobs)
    return copy
