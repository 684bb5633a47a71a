"""Joining sessions against a plain model: lists of intervals, merged one by one."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.conf import StateStoreConf
from holdfast.engine.statestore import EngineStateStore
from holdfast.ids import StateStoreId
from holdfast.streams.aggregates.merging import Merge
from holdfast.streams.tasks.aggregation import ROWS
from holdfast.streams.tasks.session import SessionTask
from holdfast.streams.tasks.task import StoreSpec
from holdfast.types import parse_schema

KEY = parse_schema("id string, n long, start timestamp, end timestamp")
VALUE = parse_schema("total long")
Session = tuple[int, int, int]
State = dict[tuple[str | None, int], list[Session]]


def _provider(root: Path) -> HDFSBackedStateStoreProvider:
    provider = HDFSBackedStateStoreProvider()
    provider.init(StateStoreId(str(root), 0, 0), KEY, VALUE, 3, 2, StateStoreConf.empty)
    return provider


def _task(root: Path) -> SessionTask:
    spec = StoreSpec(str(root), 0, KEY, VALUE, 3, 2, 1, StateStoreConf.empty, "run")
    return SessionTask(spec, 0, (Merge("sum", ("total",)),), ansi=True, mode="update")


def _merged(sessions: list[Session]) -> list[Session]:
    """Sessions that overlap or touch become one."""
    merged: list[Session] = []
    for start, end, total in sorted(sessions):
        if merged and start <= merged[-1][1]:
            last = merged.pop()
            merged.append((last[0], max(last[1], end), last[2] + total))
        else:
            merged.append((start, end, total))
    return merged


def _table(rows: list[tuple[str | None, int, Session]], store: EngineStateStore) -> pa.Table:
    stamp = pa.timestamp("us", tz="UTC")
    table = pa.table(
        {
            "id": pa.array([row[0] for row in rows], pa.string()),
            "n": pa.array([row[1] for row in rows], pa.int64()),
            "start": pa.array([row[2][0] for row in rows], pa.int64()).cast(stamp),
            "end": pa.array([row[2][1] for row in rows], pa.int64()).cast(stamp),
            "total": pa.array([row[2][2] for row in rows], pa.int64()),
            ROWS: pa.array([1] * len(rows), pa.int64()),
        }
    )
    shape = store.partition.shape
    hashes = shape.hasher.hash_columns([table.column(n).combine_chunks() for n in KEY.names])
    return table.append_column("_hash", pa.array(hashes))


def _stored(store: EngineStateStore) -> State:
    found: State = {}
    for key, value in store.iterator():
        start, end = (int(stamp.timestamp() * 1e6) for stamp in key[2:])
        found.setdefault((key[0], key[1]), []).append((start, end, value[0]))
    return {group: sorted(sessions) for group, sessions in found.items()}


def test_sessions_are_joined_as_a_list_of_intervals_would_be(tmp_path: Path) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    rnd = random.Random(seed)
    provider, task = _provider(tmp_path), _task(tmp_path)
    model: State = {}
    for version in range(25):
        batch: State = {}
        for _ in range(rnd.randrange(1, 30)):
            group = (rnd.choice(["a", "b", None]), rnd.randrange(3))
            start = rnd.randrange(0, 3000) * 1_000_000
            length = rnd.choice([10, 60, 400]) * 1_000_000
            batch.setdefault(group, []).append((start, start + length, rnd.randrange(100)))
        rows = [(*group, one) for group, many in batch.items() for one in _merged(many)]
        rnd.shuffle(rows)
        store = provider.get_store(version)
        changed, gone = task._join(store, _table(rows, store))
        before = {(g, s) for g, many in model.items() for s in many}
        for group, many in batch.items():
            model[group] = _merged([*model.get(group, []), *_merged(many)])
        after = {(g, s) for g, many in model.items() for s in many}
        places = {(g, s[:2]) for g, s in after}
        assert _stored(store) == model
        assert after - before <= {
            ((row["id"], row["n"]),
             (int(row["start"].timestamp() * 1e6), int(row["end"].timestamp() * 1e6), row["total"]))
            for row in changed.to_pylist()
        }  # fmt: skip
        assert gone == sum((g, s[:2]) not in places for g, s in before)
        store.commit()


def test_a_session_that_was_joined_is_not_evicted_a_second_time(tmp_path: Path) -> None:
    provider, task = _provider(tmp_path), _task(tmp_path)
    for version, session in enumerate([(100, 200, 1), (150, 300, 2)]):
        store = provider.get_store(version)
        task._join(store, _table([("a", 1, session)], store))
        if version == 1:
            store.raise_evict_bound(300)
        store.commit()
    evicted = [t for t in provider.get_read_store(2).evicted_tables(None, 300) if t.num_rows]
    assert [table.column("total").to_pylist() for table in evicted] == [[3]]


@pytest.mark.parametrize("prefixes", [1, 50])
def test_all_rows_of_many_prefixes_are_found_in_one_pass(tmp_path: Path, prefixes: int) -> None:
    provider = _provider(tmp_path)
    for version in range(3):
        store = provider.get_store(version)
        rows = [(f"g{g}", 1, (version * 1000 + g, version * 1000 + g + 5, g)) for g in range(300)]
        store.put_many(_table(rows, store).drop_columns([ROWS]))
        store.commit()
    wanted = pa.table({"id": [f"g{g}" for g in range(prefixes)], "n": [1] * prefixes})
    found = provider.get_read_store(3).prefix_table(wanted)
    assert sorted(found.column("id").to_pylist()) == sorted(
        [f"g{g}" for g in range(prefixes) for _ in range(3)]
    )
