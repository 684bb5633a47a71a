"""The checkpointing sample goes on after kill -9 as if nothing had happened."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from checkpointing import checkpoint_exercise, run_batches
from processes import is_alive

pytestmark = [pytest.mark.spark, pytest.mark.any_spark]

RUN = """
import sys, checkpointing
checkpointing.ROWS_PER_SECOND = int(sys.argv.pop(1))
checkpointing.main()
"""
PATIENCE_S = 120


@contextmanager
def running(
    *places: Path, said: Path, rows_per_second: int = 90_000
) -> Iterator[subprocess.Popen[bytes]]:
    """The sample in a process of its own; at the end it and its JVM are killed by SIGKILL."""
    with said.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, str(rows_per_second), *map(str, places)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL, said.read_text()


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes], said: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.05)


def committed(checkpoint: Path) -> int:
    """How many batches Spark has written down as done."""
    commits = checkpoint / "commits"
    return len([path for path in commits.glob("*") if path.name.isdigit()])


def test_values_have_no_gap_and_no_repeat_after_kill_9(spark: SparkSession, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    checkpoint, folder, said = tmp_path / "checkpoint", tmp_path / "rows", tmp_path / "said"
    for _ in range(2):
        done = committed(checkpoint)
        with running(checkpoint, folder, said=said) as process:
            wait_until(lambda: committed(checkpoint) > done + 1, process, said)  # noqa: B023
            time.sleep(chance.random())
        assert not is_alive(process.pid)
    query = checkpoint_exercise(spark, checkpoint, folder)
    run_batches(query, 2)
    query.stop()
    rows = spark.read.parquet(str(folder)).select(F.col("value").cast("long"))
    count, distinct, low, high = rows.agg(
        F.count("*"), F.count_distinct("value"), F.min("value"), F.max("value")
    ).head()
    assert (low, count, distinct) == (0, high + 1, high + 1)
    assert count > 90_000


def test_the_console_goes_on_with_the_next_batch_after_kill_9(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    shown = []
    for number in range(2):
        said = tmp_path / f"said-{number}"
        before = committed(checkpoint)
        # After the pause the console takes all its rows in one batch: fewer of them here.
        with running(checkpoint, said=said, rows_per_second=900) as process:
            wait_until(lambda: committed(checkpoint) > before, process, said)  # noqa: B023
        batches = [int(n) for n in re.findall(r"^Batch: (\d+)$", said.read_text(), re.MULTILINE)]
        assert batches == list(range(batches[0], batches[0] + len(batches)))
        # What was not yet written down as done is shown again, nothing is left out.
        assert batches[0] == before
        shown += batches
    assert set(shown) == set(range(max(shown) + 1))
