"""The running total of `custom.py` as a Bytewax dataflow, timed from its first row to its last.

Two processes of one worker each, so that both cores are used, with recovery as durability.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bytewax.operators as op
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition

WORKERS = 2
_ROWS_AT_A_TIME = 1_000
_SNAPSHOT_S = 5
_TIMES = "times"


def seconds(files: list[Path], folder: Path) -> float:
    """How long two workers take for all rows of some files."""
    recovery, times = folder / "recovery", folder / _TIMES
    for made in (recovery, times):
        made.mkdir(parents=True)
    own = [sys.executable, "-m"]
    subprocess.run([*own, "bytewax.recovery", str(recovery), str(WORKERS)], check=True)
    wanted = f"{Path(__file__).stem}:flow('{folder}', '{','.join(map(str, files))}')"
    subprocess.run(
        [
            *own,
            "bytewax.testing",
            "-p",
            str(WORKERS),
            "-r",
            str(recovery),
            "-s",
            str(_SNAPSHOT_S),
            "-b",
            "0",
            wanted,
        ],
        check=True,
        cwd=Path(__file__).parent,
    )
    noted = [float(path.read_text()) for path in times.iterdir()]
    return max(noted) - min(noted)


def flow(folder: str, files: str) -> Dataflow:
    """The dataflow: rows by user, a total and a count for each."""
    made = Dataflow("totals")
    rows = op.input("rows", made, _Files(Path(folder), files.split(",")))
    by_user = op.key_on("user", rows, lambda row: str(row[0]))
    totals = op.stateful_map("total", by_user, _add)
    op.output("out", totals, _Nowhere(Path(folder)))
    return made


def _add(
    held: tuple[int, int] | None, row: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int, int]]:
    total, n = held if held is not None else (0, 0)
    total, n = total + row[1], n + 1
    return (total, n), (row[0], total, n)


def _note(folder: Path, what: str) -> None:
    (folder / _TIMES / what).write_text(str(time.time()))


class _Files(FixedPartitionedSource[Any, int]):
    """Every worker reads its share of each file's rows."""

    def __init__(self, folder: Path, files: list[str]) -> None:
        self._folder, self._files = folder, files

    def list_parts(self) -> list[str]:
        return [str(number) for number in range(WORKERS)]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Any:
        return _Share(self._folder, self._files, int(for_part))


class _Share(StatefulSourcePartition[Any, int]):
    def __init__(self, folder: Path, files: list[str], number: int) -> None:
        self._batches = self._read(files, number)
        self._done = 0
        _note(folder, f"first-{number}")

    def _read(self, files: list[str], number: int) -> Iterator[list[Any]]:
        for file in files:
            table = pq.read_table(file, columns=["user", "v"])
            share = table.num_rows // WORKERS
            for batch in table.slice(number * share, share).to_batches(_ROWS_AT_A_TIME):
                users, values = (column.to_pylist() for column in batch.columns)
                yield list(zip(users, values, strict=True))

    def next_batch(self) -> list[Any]:
        rows = next(self._batches)
        self._done += len(rows)
        return rows

    def snapshot(self) -> int:
        return self._done


class _Nowhere(DynamicSink[Any]):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Any:
        return _Dropped(self._folder, worker_index)


class _Dropped(StatelessSinkPartition[Any]):
    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._number = folder, number

    def write_batch(self, items: list[Any]) -> None:
        pass

    def close(self) -> None:
        _note(self._folder, f"last-{self._number}")
