"""Other stores doing the same read-modify-write, each in the way that suits it best.

The batch reaches them as the Python objects they take, made outside the clock; Holdfast gets an
Arrow table. All but the dict commit durably.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import lmdb
from rocksdict import Options, Rdict, WriteBatch, WriteOptions

_PACK = struct.Struct(">Q").pack
_UNPACK = struct.Struct(">Q").unpack


class Peer(Protocol):
    """A store that adds one to the value of many keys."""

    name: str
    durable: bool

    def load(self, keys: range) -> None:
        """Put 1 for each key."""

    def prepare(self, keys: Sequence[int]) -> object:
        """A batch in the peer's own form."""

    def add_one(self, batch: object) -> None:
        """Read, add one, write, commit."""

    def close(self) -> None:
        """Let go of everything."""


class DictPeer:
    """A Python dict: no versions, no durability, the speed limit of row-at-a-time Python."""

    name, durable = "dict (not durable)", False

    def __init__(self, folder: Path) -> None:
        self._state: dict[int, int] = {}

    def load(self, keys: range) -> None:
        self._state = dict.fromkeys(keys, 1)

    def prepare(self, keys: Sequence[int]) -> object:
        return list(keys)

    def add_one(self, batch: list[int]) -> None:
        state = self._state
        for key in batch:
            state[key] = state.get(key, 0) + 1

    def close(self) -> None:
        self._state = {}


class RocksPeer:
    """RocksDB with multi-get, a write batch and a synced log."""

    name, durable = "RocksDB (rocksdict)", True

    def __init__(self, folder: Path) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self._db = Rdict(str(folder / "rocks"), options)
        self._sync = WriteOptions()
        self._sync.sync = True

    def load(self, keys: range) -> None:
        one = _PACK(1)
        for start in range(keys.start, keys.stop, 100_000):
            batch = WriteBatch(raw_mode=True)
            for key in range(start, min(start + 100_000, keys.stop)):
                batch.put(_PACK(key), one)
            self._db.write(batch)
        self._db.flush()
        self._db.compact_range(None, None)

    def prepare(self, keys: Sequence[int]) -> object:
        return [_PACK(key) for key in sorted(keys)]

    def add_one(self, batch: list[bytes]) -> None:
        found = self._db.get(batch)
        writes = WriteBatch(raw_mode=True)
        for key, value in zip(batch, found, strict=True):
            writes.put(key, _PACK((_UNPACK(value)[0] if value is not None else 0) + 1))
        self._db.write(writes, self._sync)

    def close(self) -> None:
        self._db.close()


class LmdbPeer:
    """LMDB with getmulti and putmulti in one synced transaction."""

    name, durable = "LMDB", True

    def __init__(self, folder: Path) -> None:
        self._env = lmdb.open(str(folder / "lmdb"), map_size=16 << 30)

    def load(self, keys: range) -> None:
        one = _PACK(1)
        with self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(((_PACK(key), one) for key in keys), append=True)

    def prepare(self, keys: Sequence[int]) -> object:
        return [_PACK(key) for key in sorted(keys)]

    def add_one(self, batch: list[bytes]) -> None:
        with self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
            found = dict(cursor.getmulti(batch))
            zero = _PACK(0)
            cursor.putmulti([(k, _PACK(_UNPACK(found.get(k, zero))[0] + 1)) for k in batch])

    def close(self) -> None:
        self._env.close()


class SqlitePeer:
    """SQLite with an upsert in one synced transaction."""

    name, durable = "SQLite", True

    def __init__(self, folder: Path) -> None:
        self._db = sqlite3.connect(folder / "state.sqlite", isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("PRAGMA cache_size=-1000000")
        self._db.execute("CREATE TABLE state (k INTEGER PRIMARY KEY, v INTEGER) WITHOUT ROWID")

    def load(self, keys: range) -> None:
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO state VALUES (?, 1)", ((key,) for key in keys))
        self._db.execute("COMMIT")

    def prepare(self, keys: Sequence[int]) -> object:
        return [(key,) for key in sorted(keys)]

    def add_one(self, batch: list[tuple[int]]) -> None:
        self._db.execute("BEGIN")
        self._db.executemany(
            "INSERT INTO state VALUES (?, 1) ON CONFLICT (k) DO UPDATE SET v = v + 1", batch
        )
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()


PEERS = (DictPeer, RocksPeer, LmdbPeer, SqlitePeer)
