"""The store against its bars and its peers, on one core.

python benchmarks/store.py            # full size, about 8 minutes
python benchmarks/store.py --small    # a tenth of everything, to try the script
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import holdfast
from harness import (
    Report,
    median_of,
    peak_private_bytes,
    private_bytes,
    timed,
    use_one_core,
    warm_memory,
)
from holdfast.backends import local
from peers import PEERS

MILLION = 1_000_000
DELTAS = 10
CONF = {
    # No tiers here: the chain is one snapshot and up to ten whole deltas, the worst case.
    "min_deltas_for_snapshot": 1, "merge_fanout": 64, "max_segments": 64,
    "maintenance_interval_ms": 10**9,
}  # fmt: skip
Keys = Callable[[np.ndarray], pa.Array]


def long_keys(numbers: np.ndarray) -> pa.Array:
    return pa.array(numbers)


def text_keys(numbers: np.ndarray) -> pa.Array:
    return pc.utf8_lpad(pc.cast(pa.array(numbers), pa.string()), 16, "0")


def add_one(rows: pa.Table, state: pa.Table) -> pa.Table:
    return pa.table({"v": pc.add(pc.fill_null(state["v"], 0), rows["v"])})


def batch_of(numbers: np.ndarray, keys: Keys) -> pa.Table:
    return pa.table({"k": keys(numbers), "v": np.ones(len(numbers), np.int64)})


def some_numbers(rng: np.random.Generator, size: int, below: int) -> np.ndarray:
    """Distinct numbers in random order, one in twenty of them new to the store."""
    if below < 4 * size:
        return rng.permutation(int(below * 1.05))[:size]
    drawn = np.unique(rng.integers(0, int(below * 1.05), int(size * 1.1)))
    return rng.permutation(drawn)[:size]


def snapshot(db: holdfast.VersionedStore) -> None:
    """Merge everything and have the next version start from it."""
    db.maintain(snapshot=True)
    with db.update():
        pass


def loaded(folder: Path, count: int, keys: Keys, kind: str) -> holdfast.VersionedStore:
    db = holdfast.open(folder, key=f"k {kind}", value="v long", conf=CONF)
    for start in range(0, count, MILLION):
        numbers = np.arange(start, min(start + MILLION, count))
        with db.update() as store:
            store.put_many(batch_of(numbers, keys))
        if db.version % 20 == 0:
            snapshot(db)
    snapshot(db)
    return db


def one_batch(db: holdfast.VersionedStore, batch: pa.Table) -> float:
    def work() -> None:
        with db.update() as store:
            store.update_many(batch, add_one)

    return timed(work)


def read_modify_write(
    report: Report, folder: Path, keys: Keys, kind: str, count: int, size: int, bar: float
) -> tuple[holdfast.VersionedStore, float]:
    """Rows a second on a fresh snapshot and behind ten deltas, medians of three rounds."""
    rng = np.random.default_rng(7)
    db = loaded(folder, count, keys, kind)
    one_batch(db, batch_of(some_numbers(rng, size, count), keys))
    fresh, behind = [], []
    for _ in range(3):
        snapshot(db)
        one_batch(db, batch_of(some_numbers(rng, size, count), keys))  # maps the new snapshot
        snapshot_behind = [
            one_batch(db, batch_of(some_numbers(rng, size, count), keys)) for _ in range(DELTAS)
        ]
        fresh.append(snapshot_behind[0])
        behind.append(snapshot_behind[-1])
    rate = size / statistics.median(fresh) / MILLION
    name = f"read-modify-write + durable commit, {count:,} {kind} keys, batches of {size:,}"
    report.add(f"{name}: fresh", rate, "M rows/s", at_least=bar)
    report.add(
        f"{name}: behind {DELTAS} deltas", size / statistics.median(behind) / MILLION, "M rows/s"
    )
    if kind == "long":
        slowdown = statistics.median(behind) / statistics.median(fresh)
        report.add(f"slower behind {DELTAS} deltas than fresh", slowdown, "times", at_most=1.6)
    return db, rate


def against_peers(report: Report, folder: Path, count: int, size: int, ours: float) -> None:
    rng = np.random.default_rng(11)
    best = 0.0
    for kind in PEERS:
        home = folder / "peers"
        home.mkdir()
        peer = kind(home)
        peer.load(range(count))
        batches = [peer.prepare(some_numbers(rng, size, count).tolist()) for _ in range(2)]
        seconds = statistics.median(timed(partial(peer.add_one, batch)) for batch in batches)
        peer.close()
        shutil.rmtree(home)
        rate = size / seconds / MILLION
        report.add(f"the same by {peer.name}", rate, "M rows/s")
        if peer.durable:
            best = max(best, rate)
    report.add("Holdfast against the best durable peer", ours / best, "times", at_least=5)


def single_calls(report: Report, db: holdfast.VersionedStore, count: int) -> None:
    """Opening, eviction, one cold get, the row API; on the store `read_modify_write` left."""
    root = db.root
    snapshot(db)
    db.close()

    def open_it() -> None:
        with holdfast.open(root) as opened:
            opened.at(opened.version)

    report.add(f"open a version of {count:,} keys", median_of(open_it, 9) * 1e3, "ms", at_most=20)

    def cold_get() -> float:
        with holdfast.open(root) as opened:
            reader = opened.at(opened.version)
            return timed(lambda: reader.get((random.randrange(count),)))

    cold = statistics.median(cold_get() for _ in range(9))
    report.add(f"first get of a newly opened store, {count:,} keys", cold * 1e3, "ms", at_most=5)
    rows_api(report, root, count)


def rows_api(report: Report, root: str, count: int) -> None:
    picked = [(random.randrange(count),) for _ in range(200_000)]
    with holdfast.open(root, conf=CONF) as db:
        store = db.update()

        def puts() -> None:
            for key in picked:
                store.put(key, (5,))

        report.add("row API: put", len(picked) / timed(puts) / 1e3, "k/s", at_least=300)
        store.abort()

        def gets() -> float:
            reader = db.at(db.version)
            reader.get(picked[0])

            def work() -> None:
                for key in picked:
                    reader.get(key)

            return len(picked) / timed(work) / 1e3

        gets()
        report.add("row API: get on a fresh snapshot", gets(), "k/s", at_least=80)
        rng = np.random.default_rng(3)
        for _ in range(DELTAS):
            one_batch(db, batch_of(some_numbers(rng, count // 10, count), long_keys))
        report.add(f"row API: get behind {DELTAS} deltas", gets(), "k/s", at_least=30)


def eviction(report: Report, folder: Path, count: int) -> None:
    """Raising a bound below every row's time, over one big snapshot."""
    db = holdfast.open(
        folder, key="k long, at long", value="v long", key_index_ordinal=1, conf=CONF
    )
    for start in range(0, count, MILLION):
        numbers = np.arange(start, min(start + MILLION, count))
        with db.update() as store:
            store.put_many(
                pa.table({"k": numbers, "at": numbers + 1000, "v": np.ones(len(numbers), np.int64)})
            )
    snapshot(db)

    def evict() -> float:
        store = db.update()
        seconds = timed(lambda: store.evict(bounds.pop()))
        store.abort()
        return seconds

    bounds = list(range(9, 0, -1))
    name = f"eviction with nothing to evict over {count:,} rows"
    report.add(name, statistics.median(evict() for _ in range(9)) * 1e3, "ms", at_most=30)
    db.close()
    shutil.rmtree(folder)


def growth(report: Report, folder: Path, small: int, large: int, size: int) -> None:
    """Batch time and private memory with few and with many keys, in turn, each time in a process
    of its own and on a copy of the same snapshot.
    """
    times: dict[int, list[float]] = {small: [], large: []}
    private: dict[int, int] = {small: 0, large: 0}
    for count in times:
        loaded(folder / str(count), count, long_keys, "long").close()
    for _ in range(3):
        for count in times:
            copy = folder / "copy"
            shutil.copytree(folder / str(count), copy, copy_function=os.link)
            probe = [sys.executable, __file__, "--probe", str(copy), str(count), str(size)]
            answer = subprocess.run(probe, check=True, capture_output=True, text=True).stdout
            seconds, peak, batch_bytes = json.loads(answer)
            times[count] += seconds
            private[count] = max(private[count], peak)
            shutil.rmtree(copy)
    for count in times:
        shutil.rmtree(folder / str(count))
        median = statistics.median(times[count])
        report.add(f"batch of {size:,} with {count:,} keys", median, "s")
        note = f"beyond the batch, which is {batch_bytes / 2**20:.0f} MiB"
        at_most = 400 if count == large else None
        name = f"private memory at its peak with {count:,} keys"
        report.add(name, private[count] / 2**20, "MiB", at_most=at_most, note=note)
    ratio = statistics.median(times[large]) / statistics.median(times[small])
    report.add(f"batch with {large:,} keys against {small:,}", ratio, "times", at_most=1.5)


def probe(root: str, count: int, size: int) -> None:
    """Print the times of batches but the first, the private memory beyond them, a batch's size."""
    rng = np.random.default_rng(5)
    batches = [batch_of(some_numbers(rng, size, count), long_keys) for _ in range(7)]
    base = private_bytes()
    with holdfast.open(root, conf=CONF) as db:
        times = [one_batch(db, batch) for batch in batches[:-1]]
        # Watching memory walks every mapped page, so it is kept out of the timed batches.
        with peak_private_bytes() as peak:
            one_batch(db, batches[-1])
    print(json.dumps([times[1:], peak[0] - base, batches[0].nbytes]))


def write_amplification(report: Report, folder: Path, count: int, size: int) -> None:
    """All bytes written over 200 batches with default settings, against those of the deltas."""
    written = [0]
    write_all = local.write_all

    def counting(descriptor: int, data: memoryview) -> int:
        written[0] += len(data)
        return write_all(descriptor, data)

    db = holdfast.open(folder, key="k long", value="v long", conf={"grace_period_ms": 0})
    with db.update() as store:
        store.put_many(batch_of(np.arange(count), long_keys))
    db.maintain()
    rng = np.random.default_rng(9)
    local.write_all = counting
    deltas = 0
    try:
        for _ in range(200):
            one_batch(db, batch_of(some_numbers(rng, size, count), long_keys))
            segments = db._manifest.entry(0, "default", 0).segments
            deltas += segments[0].info.size
            db.maintain()
    finally:
        local.write_all = write_all
    name = f"write amplification, 200 batches of {size:,} on {count:,} keys"
    report.add(name, written[0] / deltas, "times", at_most=8)
    db.close()
    shutil.rmtree(folder)


def start_up(report: Report) -> None:
    script = Path(sys.executable).parent / "holdfast"
    seconds = median_of(
        lambda: subprocess.run([script, "--version"], check=True, capture_output=True), 7
    )
    report.add("`holdfast --version`, start to end", seconds * 1e3, "ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a tenth of everything")
    parser.add_argument("--folder", help="where the stores go; a temporary folder by default")
    parser.add_argument("--probe", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        root, count, size = options.probe
        probe(root, int(count), int(size))
        return
    scale = 10 if options.small else 1
    count, size = 10 * MILLION // scale, MILLION // scale
    use_one_core()
    random.seed(1)
    report = Report("The store: one core, medians")
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=options.folder))
    try:
        if not options.small:
            warm_memory(8)
        db, rate = read_modify_write(report, folder / "long", long_keys, "long", count, size, bar=3)
        single_calls(report, db, count)
        shutil.rmtree(folder / "long")
        texts, _ = read_modify_write(
            report, folder / "text", text_keys, "string", count, size, bar=1.2
        )
        texts.close()
        shutil.rmtree(folder / "text")
        against_peers(report, folder, count, size, rate)
        eviction(report, folder / "evict", count)
        growth(report, folder, MILLION // scale, 50 * MILLION // scale, size)
        write_amplification(report, folder / "amplification", 2 * MILLION // scale, size // 50)
        start_up(report)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report.write("store-small" if options.small else "store")
    sys.exit(0 if report.all_hold else 1)


if __name__ == "__main__":
    main()
