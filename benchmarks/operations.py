"""What operations on a root's state cost.

    python benchmarks/operations.py [--small] [--only fork] [--on FOLDER]

Each figure is the median of several operations on a local disk, each from its plan to its end.
FOLDER is where the roots are made, the temporary folder by default.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

import holdfast
from harness import Report
from holdfast import admin

_ROUNDS = 7
_KEYS = 10_000_000
_PARTITIONS = 4
_VERSIONS = 1_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="a tenth of the files, fewer keys")
    parser.add_argument("--only", choices=sorted(PARTS), help="measure one operation")
    parser.add_argument("--on", type=Path, help="where the roots are made")
    chosen = parser.parse_args()
    report = Report("Operations on state")
    for name, part in PARTS.items():
        if chosen.only in (None, name):
            with tempfile.TemporaryDirectory(dir=chosen.on) as folder:
                part(Path(folder), 10 if chosen.small else 1, report)
    if chosen.only is None and not chosen.small:
        report.write("operations")
    return 0 if report.all_hold else 1


def rollback(folder: Path, scale: int, report: Report) -> None:
    """Rollbacks of a large state; each goes back to the first version with all keys."""
    root, keys = filled(folder / "root", _KEYS // scale), _KEYS // scale
    times, sizes = [], size_below(root)
    for _ in range(_ROUNDS):
        times.append(seconds(lambda: admin.rollback(root, 1).run()))
    report.add(f"rollback of {keys:,} keys", statistics.median(times), "s", at_most=1.0)
    written = (size_below(root) - sizes) / _ROUNDS
    report.add("bytes that a rollback writes, its manifest and journal", written, "bytes")


def fork(folder: Path, scale: int, report: Report) -> None:
    """Forks of a store with many files; none of them is in a pack."""
    source = folder / "source"
    conf = {"pack_threshold_bytes": 0, "keep_copies": "on", "maintenance_interval_ms": 10**9}
    partitions = 250 // scale
    with holdfast.open(source, "k long", "v long", partitions=partitions, conf=conf) as db:
        for version in range(2):
            with db.update() as update:
                for key in range(20 * partitions):
                    update.put((key,), (version,))
    times, files = [], 0
    for number in range(_ROUNDS):
        started = time.perf_counter()
        done = admin.fork(source, folder / f"fork-{number}").run().detail
        times.append(time.perf_counter() - started)
        files = done["adopted_files"]
        assert not done["written_files"]
    report.add("files of the forked version", files, "files")
    per_thousand = statistics.median(times) * 1000 / files
    report.add("fork on one disk, for 1,000 files", per_thousand, "s", at_most=1.0)


def repair(folder: Path, scale: int, report: Report) -> None:
    """One key set in place of another value: planned, and committed as a version."""
    keys = _KEYS // scale
    root = filled(folder / "root", keys)
    planned, whole = [], []
    for number in range(_ROUNDS):
        wanted = {"key": number * (keys // _ROUNDS), "value": {"v": -1 - number}}
        started = time.perf_counter()
        plan = admin.repair(root, set=wanted)
        planned.append(time.perf_counter() - started)
        plan.run()
        whole.append(time.perf_counter() - started)
    what = f"repair one key of {keys:,}"
    report.add(f"{what}: plan it", statistics.median(planned), "s")
    report.add(f"{what}: plan and commit it", statistics.median(whole), "s", at_most=0.3)
    filtered = seconds(lambda: admin.repair(root, delete_where=f"k = {keys // 2}"))
    report.add(f"find one key of {keys:,} by a filter", filtered, "s")


def gc(folder: Path, scale: int, report: Report) -> None:
    """The plan of a clean-up over many versions, all of which it has to read."""
    versions = _VERSIONS // scale
    conf = {"maintenance_interval_ms": 10**9, "min_versions_to_retain": 2}
    with holdfast.open(
        folder / "root", "k long", "v long", partitions=_PARTITIONS, conf=conf
    ) as db:
        for version in range(versions):
            with db.update() as update:
                update.put_many(pa.table({"k": np.arange(10), "v": np.full(10, version)}))
            if version % 20 == 0:
                db.maintain()  # merges; nothing is removed within the grace period
    times = [seconds(lambda: admin.gc(folder / "root").lines()) for _ in range(_ROUNDS)]
    name = f"gc --dry-run over {versions + 1:,} versions"
    report.add(name, statistics.median(times), "s", at_most=2.0)


def filled(root: Path, keys: int) -> Path:
    """A store of so many keys, as one snapshot for each partition and a few deltas."""
    with holdfast.open(
        root, key="k long", value="v long, note string", partitions=_PARTITIONS
    ) as db:
        with db.update() as store:
            store.put_many(rows(0, keys))
        db.maintain(snapshot=True)
        for number in range(3):
            with db.update() as store:
                store.put_many(rows(number * 1000, 1000))
    return root


def rows(first: int, count: int) -> pa.Table:
    numbers = np.arange(first, first + count)
    return pa.table({"k": numbers, "v": numbers, "note": pa.repeat("a note", count)})


def size_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


PARTS = {"rollback": rollback, "fork": fork, "repair": repair, "gc": gc}


if __name__ == "__main__":
    sys.exit(main())
