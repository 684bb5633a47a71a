"""What second copies of new deltas and packs cost: the same batches with and without, in turn.

    python benchmarks/second_copies.py [--small] [--only store|stream] [--on FOLDER]

Each pair of batches is one with `keep_copies` on and one with it off, first the one, then the
other, on two roots of the same disk that are fed alike; figures are medians. A batch of the store
is read-modify-write and a durable commit, one of a stream the `triggerExecution` that Spark reports
for it. FOLDER is where the roots are made, the temporary folder by default.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import holdfast
from contenders import OURS, Contender
from harness import Report, timed
from stream import totals, write_file

MODES = ("off", "on")
_MOST_SHARE = 3.0
_STORE = ((1_000, 200), (100_000, 40), (1_000_000, 16))
_STREAM = ((1_000, 30), (200_000, 12))
"""Rows of a batch, and how many pairs of them."""


def add_one(rows: pa.Table, state: pa.Table) -> pa.Table:
    """The change of the store's batches."""
    return pa.table({"v": pc.add(pc.fill_null(state["v"], 0), rows["v"])})


class Bench:
    """Pairs of batches, and how much longer those with copies take."""

    def __init__(self, folder: Path, scale: int, report: Report) -> None:
        self._folder, self._scale, self._report = folder, scale, report
        self._rng = np.random.default_rng(7)

    def store(self, rows: int, pairs: int) -> None:
        """Batches of a store with twice as many keys as rows."""
        conf = {"maintenance_interval_ms": 10**9, "min_versions_to_retain": 2}
        places = {mode: self._folder / f"store-{rows}-{mode}" for mode in MODES}
        stores = {
            mode: holdfast.open(
                str(place), key="k long", value="v long", conf={**conf, "keep_copies": mode}
            )
            for mode, place in places.items()
        }
        times: dict[str, list[float]] = {mode: [] for mode in MODES}
        for number in range(pairs + 2):
            keys = self._rng.permutation(2 * rows)[:rows]
            batch = pa.table({"k": keys, "v": np.ones(rows, np.int64)})
            for mode in MODES[:: -1 if number % 2 else 1]:
                db = stores[mode]

                def work(db: holdfast.VersionedStore = db, batch: pa.Table = batch) -> None:
                    with db.update() as store:
                        store.update_many(batch, add_one)

                times[mode].append(timed(work))
                db.maintain()
        for db in stores.values():
            db.close()
        self._add(f"store, {rows:,} rows", {mode: spent[2:] for mode, spent in times.items()})

    def stream(self, rows: int, pairs: int) -> None:
        """Batches of a stream that keeps running totals."""
        found = {
            mode: Contender(
                OURS,
                self._folder / f"stream-{rows}-{mode}",
                totals,
                {"spark.holdfast.keepCopies": mode, "spark.holdfast.progress": "false"},
            )
            for mode in MODES
        }
        for contender in found.values():
            contender.start()
        for number in range(pairs + 5):
            users = self._rng.integers(0, 2 * rows, rows)
            path = self._folder / f"stream-{rows}-{number}.parquet"
            file = write_file(path, users, self._rng, number + 1)
            for mode in MODES[:: -1 if number % 2 else 1]:
                found[mode].feed(file)
        for contender in found.values():
            contender.stop()
        self._add(f"stream, {rows:,} rows", {mode: c.times[5:] for mode, c in found.items()})

    def _add(self, title: str, times: dict[str, list[float]]) -> None:
        off, on = (statistics.median(times[mode]) for mode in MODES)
        added = statistics.median(b - a for a, b in zip(*times.values(), strict=True))
        self._report.add(f"{title}: a batch without copies", 1000 * off, "ms")
        self._report.add(f"{title}: a batch with copies", 1000 * on, "ms")
        self._report.add(f"{title}: what copies add, median of pairs", 1000 * added, "ms")
        share = 100 * added / off
        self._report.add(f"{title}: as a share of a batch", share, "%", at_most=_MOST_SHARE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a tenth of everything")
    parser.add_argument("--only", choices=("store", "stream"), help="one of the two")
    parser.add_argument("--on", metavar="FOLDER", help="where the roots are made")
    chosen = parser.parse_args()
    scale = 10 if chosen.small else 1
    report = Report("Second copies: the same batches with and without")
    folder = Path(tempfile.mkdtemp(prefix="holdfast-copies-", dir=chosen.on))
    try:
        bench = Bench(folder, scale, report)
        for rows, pairs in _STORE if chosen.only != "stream" else ():
            bench.store(rows, max(4, pairs // scale))
        for rows, pairs in _STREAM if chosen.only != "store" else ():
            bench.stream(rows, max(4, pairs // scale))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not chosen.small:
        report.write("second_copies")
    sys.exit(0)


if __name__ == "__main__":
    main()
