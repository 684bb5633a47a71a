"""What operations on a root's state cost.

    python benchmarks/operations.py [--small] [--only fork] [--on FOLDER]

A fork is measured on a local disk, from its plan to its end, of a version with about a thousand
files, second copies included; the figure is the median of several. FOLDER is where the roots are
made, the temporary folder by default.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import holdfast
from harness import Report
from holdfast import admin

_ROUNDS = 7


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="a tenth of the files")
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


PARTS = {"fork": fork}


if __name__ == "__main__":
    sys.exit(main())
