"""Roots of every kind, small and always the same, for tests that look into them."""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast import StateStoreConf, StateStoreId
from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.backends.locations import open_storage
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.hashing.samples import HASH_NAME
from holdfast.engine.partition.shape import StoreShape
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.committer import Committer
from holdfast.engine.versions.first import new_store_entry
from holdfast.engine.versions.log import VersionLog
from holdfast.types import parse_schema


def shop(root: Path) -> Path:
    """The shop of the guide in a versioned store: four versions, two partitions, a tag on 2.

    Without second copies, as the other store here: what is damaged in tests shall be damage.
    """
    conf = {"keep_copies": "off"}
    db = holdfast.open(root, key="user string", value="total long", partitions=2, conf=conf)
    for changes in [{"Sankar": 200}, {"Jade": 800}, {"Sankar": 500}, {"Kun": 100, "Jade": None}]:
        with db.update() as store:
            for user, total in changes.items():
                if total is None:
                    store.remove((user,))
                else:
                    store.put((user,), (total,))
    db.tag("two-users", 2)
    db.close()
    return root


def merged_shop(root: Path) -> Path:
    """A versioned store of one partition whose newest version reads a snapshot with fallbacks."""
    conf = {"pack_threshold_bytes": 0, "keep_copies": "off"}
    db = holdfast.open(root, key="user string", value="total long", conf=conf)
    for number in range(6):
        with db.update() as store:
            store.put(("Sankar",), (number,))
            store.put((f"user-{number}",), (number,))
    db.maintain()
    with db.update() as store:
        store.put(("Sankar",), (6,))
    db.close()
    return root


def providers(root: Path) -> Path:
    """A folder of providers used alone: operator 0 with two partitions, one of two stores."""
    for partition, name, versions in [(0, "default", 2), (0, "left", 1), (1, "default", 3)]:
        provider = HDFSBackedStateStoreProvider()
        provider.init(
            StateStoreId(str(root), 0, partition, name),
            parse_schema("k int"),
            parse_schema("v string"),
        )
        for version in range(versions):
            store = provider.get_store(version)
            store.put((version,), (f"{name}-{partition}",))
            store.commit()
        provider.close()
    return root


QUERY = {(0, "default"): ("word string", "count long"), (1, "left"): ("k int", "v double"),
         (1, "right"): ("k int", "w binary")}  # fmt: skip


def query(root: Path, versions: int = 2) -> Path:
    """The state of a query: two operators, three stores, two partitions, one manifest each."""
    runtime = Runtime.system()
    log = VersionLog(open_storage(root), runtime)
    operators: dict[int, dict[str, object]] = {}
    stores = []
    for (operator, name), (key, value) in QUERY.items():
        shape = StoreShape.of(parse_schema(key), parse_schema(value), None, 0)
        operators.setdefault(operator, {})[name] = new_store_entry(shape, [(0, 2), (1, 2)])
        for partition in range(2):
            provider = HDFSBackedStateStoreProvider(prepares_only=True, runtime=runtime)
            provider.init(
                StateStoreId(str(root), operator, partition, name),
                shape.key_schema,
                shape.value_schema,
            )
            stores.append(provider)
    base = Manifest(0, None, runtime.new_id(), runtime.new_id(), 0, 0, HASH_NAME, operators)
    log.publish(base, 1, runtime.monotonic_ms())
    committer = Committer(log, runtime, StateStoreConf.empty)
    for version in range(versions):
        prepared = []
        for provider in stores:
            store = provider.get_store(version)
            _put_where_it_belongs(store, provider, version)
            store.commit()
            prepared.append(store.prepared)
        base = committer.commit(
            base, runtime.monotonic_ms(), prepared, runtime.new_id(),
            batch={"id": version, "query_id": "q"}, watermark={"late": 0},
        )  # fmt: skip
        for provider in stores:
            provider.note_committed(base)
    return root


def _put_where_it_belongs(
    store: object, provider: HDFSBackedStateStoreProvider, version: int
) -> None:
    values = {"default": version, "left": version / 2, "right": bytes([version])}
    name = provider.state_store_id.store_name
    for number in range(4):
        key = (f"word-{number}",) if name == "default" else (number,)
        if (provider.shape.hasher.hash_row(key) >> 32) % 2 == provider.state_store_id.partition_id:
            store.put(key, (values[name],))  # type: ignore[attr-defined]


def flip_byte(path: Path, at: int = 200) -> None:
    """Damage a file as a bad disk would: its length stays."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
