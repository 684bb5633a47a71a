"""A second driver process on a checkpoint takes over, whatever the first one is doing.

Both are real processes under the default trigger and race for Spark's logs as well. What comes out
is compared with Spark's own query over the same files.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from test_exactly_once import PATIENCE_S, PHASES, await_phase, check, start_driver, write_files


def _take_over(spark: SparkSession, folder: Path, sink: str, phase: str, seed: int) -> None:
    """Start a second driver while the first is in a phase of some version."""
    print(f"seed {seed}: the first driver is in {phase}")
    rnd = random.Random(seed)
    write_files(folder / "in", rnd, count=14)
    first = start_driver(folder, sink, "first.log", trigger="default")
    second: subprocess.Popen[str] | None = None
    try:
        await_phase(first, phase, rnd.randrange(1, 4))
        second = start_driver(folder, sink, "second.log", trigger="default")
        said, _ = second.communicate(timeout=PATIENCE_S)
        first.communicate(timeout=PATIENCE_S)
    finally:
        for each in (first, second):
            if each is not None and each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)
                each.communicate()
    assert second.returncode == 0, (folder / "second.log").read_text()[-3000:]
    assert said.splitlines()[-1].startswith("done")
    told = (folder / "first.log").read_text()
    if first.returncode != 0:  # else it had read every file before the second one was there
        assert re.search(rf"has taken over .*process {second.pid} on", told), told[-5000:]
    check(spark, folder, sink)


@pytest.mark.services
@pytest.mark.parametrize(("sink", "phase"), [("parquet", "compute"), ("function", "commit")])
def test_a_second_driver_takes_over_and_the_first_stops_with_a_conflict(
    spark: SparkSession, tmp_path: Path, sink: str, phase: str
) -> None:
    _take_over(spark, tmp_path, sink, phase, random.randrange(10**9))


@pytest.mark.soak
@pytest.mark.parametrize("number", range(10))
def test_ten_drivers_are_taken_over_in_any_phase(
    spark: SparkSession, tmp_path: Path, number: int
) -> None:
    sink = ("parquet", "function")[number % 2]
    _take_over(spark, tmp_path, sink, PHASES[number % 5], random.randrange(10**9))
