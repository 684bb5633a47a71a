"""Roots of every kind, small and always the same, for tests that look into them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import holdfast
from holdfast import StateStoreConf, StateStoreId, admin
from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.backends.locations import open_storage
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.hashing.samples import HASH_NAME
from holdfast.engine.partition.shape import StoreShape
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.committer import Committer
from holdfast.engine.versions.first import new_store_entry
from holdfast.engine.versions.log import VersionLog
from holdfast.ids import TIMERS
from holdfast.streams.processors.variables import TIMER_VARIABLE, Variable
from holdfast.types import ArrayType, Field, Schema, StringType, StructType, parse_schema

NOON_MS = 1_767_268_800_000
"""Noon of 2026-01-01."""


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


def rolled_back_shop(root: Path) -> Path:
    """The same shop, taken back from version 4 to 2 and written to since, with its journal.

    Without the claim of the rollback, which has served, and which no copy has.
    """
    shop(root)
    admin.tag(root, "mistake", 4, reason="to look at it later").run()
    admin.rollback(root, 2, reason="a mistake").run()
    with holdfast.open(root) as db, db.update() as store:
        store.put(("Sankar",), (300,))
    shutil.rmtree(root / "claims")
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
    shapes = {
        place: StoreShape.of(parse_schema(key), parse_schema(value), None, 0)
        for place, (key, value) in QUERY.items()
    }
    values = {"default": int, "left": lambda v: v / 2, "right": lambda v: bytes([v])}
    changes = [
        {
            place: [
                ((f"word-{n}",) if place[1] == "default" else (n,), (values[place[1]](version),))
                for n in range(4)
            ]
            for place in QUERY
        }
        for version in range(versions)
    ]
    return _committed(root, shapes, changes)


def processor(root: Path) -> Path:
    """The state of a processor: a list, a map and timers, over two partitions and versions.

    The second version removes the first entry of "a", and appends to "b", which has 4 then.
    """
    grouping = parse_schema("user string")
    variables = [
        Variable("events", "list", parse_schema("n long")),
        Variable("seen", "map", parse_schema("n long"), parse_schema("day string")),
        TIMER_VARIABLE,
    ]
    shapes = {(0, each.name): each.shape(grouping) for each in variables}
    first, second = 1 << 32, 2 << 32
    begun = {
        (0, "events"): [
            ((u, first + at), (at,)) for u, at in zip("aabbb", range(1, 6), strict=True)
        ],
        (0, "seen"): [(("a", "mon"), (1,)), (("a", "tue"), (2,)), (("b", "mon"), (3,))],
        (0, TIMERS): [(("a", NOON_MS), (True,)), (("b", NOON_MS + 1), (True,))],
    }
    then = {(0, "events"): [(("a", first + 1), None), (("b", second + 1), (9,))]}
    return _committed(root, shapes, [begun, then])


DEFINITION = {
    "operator": "stateStoreSave",
    "keys": "user, window",
    "aggregate total": "sum(amount)",
    "aggregate price": "sum(price)",
    "aggregate n": "count(1)",
    "aggregate mean": "avg(amount)",
    "aggregate spread": "stddev(amount)",
    "aggregate users": "approx_count_distinct(other)",
    "aggregate last": "last(name) kept in last_, last_seen",
    "aggregate names": "collect_set(name)",
}
"""What the query of `aggregation` says of its operator."""


def aggregation(root: Path) -> Path:
    """The state of an aggregation by windows, up to NOON_MS evicted: "a" at noon and after it."""
    key = "user string, end timestamp"
    value = (
        "total long, price decimal(22,2), price_seen boolean, n long, mean_sum double, "
        "mean_count long, spread_count double, spread_mean double, spread_square double, "
        "users long, users_hyperloglog binary, last_ string, last_seen boolean"
    )
    row = (5, None, False, 2, 5.0, 2, 2.0, 2.5, 0.5, 1, b"sketch", "x", True, ["x"])
    noon = datetime.fromtimestamp(NOON_MS / 1000, UTC)
    names = Field("names", ArrayType(StringType(), contains_null=False))
    values = Schema(StructType((*parse_schema(value).fields, names)))
    shape = StoreShape.of(parse_schema(key), values, 1, 0)
    rows = [(("a", noon), row), (("a", noon + timedelta(minutes=5)), row)]
    scope = {"kind": "query", "id": "s", "operators": [DEFINITION]}
    return _committed(root, {(0, "default"): shape}, [{(0, "default"): rows}], scope, NOON_MS)


def _committed(
    root: Path,
    shapes: Mapping[tuple[int, str], StoreShape],
    changes: Sequence[Mapping[tuple[int, str], Sequence[tuple[Any, Any]]]],
    scope: Mapping[str, Any] | None = None,
    evicted_ms: int | None = None,
) -> Path:
    """A root of two partitions with a version for each of `changes`: keys with values, or None."""
    runtime = Runtime.system()
    log = VersionLog(open_storage(root), runtime)
    operators: dict[int, dict[str, object]] = {}
    stores = []
    for (operator, name), shape in shapes.items():
        operators.setdefault(operator, {})[name] = new_store_entry(shape, [(0, 2), (1, 2)])
        for partition in range(2):
            provider = HDFSBackedStateStoreProvider(prepares_only=True, runtime=runtime)
            provider.init(
                StateStoreId(str(root), operator, partition, name),
                shape.key_schema,
                shape.value_schema,
                key_index_ordinal=shape.key_index,
                num_cols_prefix_key=shape.prefix,
            )
            stores.append(provider)
    base = Manifest(
        0, None, runtime.new_id(), runtime.new_id(), 0, 0, HASH_NAME, operators, scope=scope or {}
    )
    log.publish(base, 1, runtime.monotonic_ms())
    committer = Committer(log, runtime, StateStoreConf.empty)
    for version, written in enumerate(changes):
        prepared = []
        for provider in stores:
            store = provider.get_store(version)
            _put_where_it_belongs(store, provider, written)
            if evicted_ms is not None:
                store.raise_evict_bound(evicted_ms * 1000)
            store.commit()
            prepared.append(store.prepared)
        base = committer.commit(
            base,
            runtime.monotonic_ms(),
            prepared,
            runtime.new_id(),
            batch={"id": version, "query_id": "q"},
            watermark={"late": 0},
        )
        for provider in stores:
            provider.note_committed(base)
    return root


def _put_where_it_belongs(
    store: Any,
    provider: HDFSBackedStateStoreProvider,
    written: Mapping[tuple[int, str], Sequence[tuple[Any, Any]]],
) -> None:
    where, shape = provider.state_store_id, provider.shape
    for key, value in written.get((where.operator_id, where.store_name), ()):
        hashed = shape.hasher.hash_row(key[: shape.prefix or len(key)])
        if (hashed >> 32) % 2 != where.partition_id:
            continue
        if value is None:
            store.remove(key)
        else:
            store.put(key, value)


def flip_byte(path: Path, at: int = 200) -> None:
    """Damage a file as a bad disk would: its length stays."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
