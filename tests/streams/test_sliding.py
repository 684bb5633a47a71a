"""Panes dealt out to windows, against the rows themselves put into every window one by one."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.conf import StateStoreConf
from holdfast.engine.hashing.spark_hash import key_hashes
from holdfast.ids import StateStoreId
from holdfast.reserved import HASH
from holdfast.streams.aggregates.merging import Merge
from holdfast.streams.tasks.aggregation import ROWS
from holdfast.streams.tasks.sliding import SlidingTask, SlidingWindows
from holdfast.streams.tasks.task import StoreSpec
from holdfast.types import parse_schema

KEY = parse_schema("id string, start timestamp, end timestamp")
VALUE = parse_schema("total long")
SHAPES = [
    SlidingWindows(10, 2, 0),
    SlidingWindows(10, 4, 3),
    SlidingWindows(7, 5, -1),
    SlidingWindows(9, 6, 100),
]


def _windows(sliding: SlidingWindows, time: int) -> set[int]:
    """The starts of the windows a time is in, by trying every one."""
    first = (time - sliding.length_us - sliding.start_us) // sliding.slide_us
    starts = [sliding.start_us + (first + i) * sliding.slide_us for i in range(20)]
    return {start for start in starts if start <= time < start + sliding.length_us}


def _pane(sliding: SlidingWindows, time: int) -> int:
    return time - (time - sliding.start_us) % sliding.pane_us


@pytest.mark.parametrize("sliding", SHAPES)
def test_every_time_of_a_pane_is_in_the_windows_of_the_pane(sliding: SlidingWindows) -> None:
    for time in range(-60, 60):
        pane = _pane(sliding, time)
        number, starts = sliding.windows(np.array([pane]))
        assert set(starts.tolist()) == _windows(sliding, time)
        assert len(starts) == len(set(starts.tolist()))
        assert not number.any()


def _table(rows: list[tuple[str | None, int, int]], sliding: SlidingWindows) -> pa.Table:
    """Rows summed up by pane, as Spark hands them to the tasks."""
    totals: Counter[tuple[str | None, int]] = Counter()
    counts: Counter[tuple[str | None, int]] = Counter()
    for key, time, amount in rows:
        totals[key, _pane(sliding, time)] += amount
        counts[key, _pane(sliding, time)] += 1
    places = list(counts)
    stamp = pa.timestamp("us", tz="UTC")
    starts = np.array([pane for _, pane in places], np.int64)
    keys = [
        pa.array([key for key, _ in places], pa.string()),
        pa.array(starts).view(stamp),
        pa.array(starts + sliding.pane_us).view(stamp),
    ]
    return pa.table(
        {
            **dict(zip(KEY.names, keys, strict=True)),
            "total": pa.array([totals[place] for place in places], pa.int64()),
            ROWS: pa.array([counts[place] for place in places], pa.int64()),
            HASH: pa.array(key_hashes(keys, 1)),
        }
    )


@pytest.mark.parametrize("sliding", SHAPES)
def test_windows_of_panes_are_the_windows_of_the_rows(
    sliding: SlidingWindows, tmp_path: Path
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rnd = random.Random(seed)
    provider = HDFSBackedStateStoreProvider()
    provider.init(StateStoreId(str(tmp_path), 0, 0), KEY, VALUE, 2, 1, StateStoreConf.empty)
    spec = StoreSpec(str(tmp_path), 0, KEY, VALUE, 2, 1, 1, StateStoreConf.empty, "run")
    expected: Counter[tuple[str | None, int]] = Counter()
    seen: set[tuple[str | None, int]] = set()
    late = -25
    for version in range(6):
        task = SlidingTask(
            spec,
            version,
            (Merge("sum", ("total",)),),
            ansi=True,
            mode="update",
            late=late,
            sliding=sliding,
        )
        rows = [
            (rnd.choice(["a", "b", None]), rnd.randrange(-40, 80), rnd.randrange(100))
            for _ in range(60)
        ]
        dropped = 0
        for key, time, amount in rows:
            taken = [s for s in _windows(sliding, time) if s + sliding.length_us > late]
            dropped += not taken
            for start in taken:
                expected[key, start] += amount
                seen.add((key, start))
        store = provider.get_store(version)
        worked = task._work_in(store, _table(rows, sliding))
        assert worked.late_rows == dropped
        store.commit()
        state = provider.get_store(version + 1).scan()
        starts = state.column("start").cast(pa.int64()).to_pylist()
        places = zip(state.column("id").to_pylist(), starts, strict=True)
        held = dict(zip(places, state.column("total").to_pylist(), strict=True))
        assert held == {place: expected[place] for place in seen}
