"""A driver killed at any moment, again and again, delivers every row exactly once.

A real driver process, its JVM and its workers get SIGKILL at moments drawn from the seed, in each
phase of a version, as what it said last proves; the next one continues on the same checkpoint. What
comes out is compared with Spark's own query over the same files, run without interruption.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driver_to_kill import SCHEMA, SHORTEST_S, windows
from file_batches import files_taken
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

import holdfast
from holdfast.cli.app import app

PHASES = ("read", "compute", "write", "commit", "deliver")
KILLS = {
    ("parquet", "availableNow"): PHASES[:3],
    ("function", "availableNow"): (*PHASES[3:], PHASES[0]),
    ("parquet", "default"): (*PHASES[3:], PHASES[1]),
    ("function", "default"): PHASES[:3],
}
"""What the drivers of each sink are killed in; all phases under each trigger."""
ATTEMPTS = 4
"""A busy machine kills late now and then, in the phase after the one that was meant."""
PATIENCE_S = 240
Row = tuple[Any, ...]


def write_files(folder: Path, rnd: random.Random, count: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        now = 1_700_000_000 + number * 200
        size = rnd.randrange(5, 60)
        table = pa.table(
            {
                "id": [rnd.choice("abcdefgh") for _ in range(size)],
                "v": [rnd.randrange(100) for _ in range(size)],
                "ts": pa.array(
                    [(now + rnd.randrange(-400, 200)) * 1_000_000 for _ in range(size)],
                    pa.timestamp("us", tz="UTC"),
                ),
            }
        )
        path = folder / f"{number:04d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (number + 1000, number + 1000))


def _same_batches(folder: Path, taken: list[int]) -> str:
    """A folder of files with the rows of one batch each."""
    files = sorted((folder / "in").iterdir())
    assert taken[-1] == len(files)
    together = folder / "batches"
    together.mkdir()
    for number, (start, end) in enumerate(itertools.pairwise([0, *taken])):
        path = together / f"{number:04d}.parquet"
        pq.write_table(pa.concat_tables(map(pq.read_table, files[start:end])), path)
        os.utime(path, (number + 1000, number + 1000))
    return str(together)


def _expected(spark: SparkSession, folder: Path, taken: list[int]) -> Counter[Row]:
    """What Spark's own query gives."""
    rows: Counter[Row] = Counter()

    def keep(batch: DataFrame, number: int) -> None:
        rows.update(tuple(row) for row in batch.collect())

    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
    query = (
        windows(source.parquet(_same_batches(folder, taken)))
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(folder / "native"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return rows


def _delivered(spark: SparkSession, folder: Path, sink: str) -> Counter[Row]:
    if sink == "parquet":
        return Counter(tuple(row) for row in spark.read.parquet(str(folder / "out")).collect())
    files = (folder / "out").glob("*.json")
    lines = [line for path in files for line in path.read_text().splitlines()]
    return Counter(tuple(json.loads(line).values()) for line in lines)


def start_driver(
    folder: Path, sink: str, log_name: str = "driver.log", trigger: str = "availableNow"
) -> subprocess.Popen[str]:
    script = Path(__file__).parents[1] / "support" / "services" / "driver_to_kill.py"
    with (folder / log_name).open("a") as log:
        return subprocess.Popen(
            [sys.executable, str(script), str(folder), sink, trigger],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )


def _lines(driver: subprocess.Popen[str]) -> Generator[str, None, None]:
    assert driver.stdout is not None
    with driver.stdout:
        for line in driver.stdout:
            yield line.strip()


def _run_and_kill(folder: Path, sink: str, trigger: str, phase: str, rnd: random.Random) -> str:
    """Start a driver and kill it in a phase of some version; the one it said last it was in."""
    driver = start_driver(folder, sink, trigger=trigger)
    left = rnd.randrange(1, 4)
    said = []
    lines = _lines(driver)
    try:
        for line in lines:
            said.append(line)
            left -= line == f"phase {phase}"
            if left == 0:
                time.sleep(rnd.uniform(0, SHORTEST_S))
                break
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    said += lines
    assert left == 0, f"the files ran out before the kills did: {said[-1:]}"
    return [line for line in said if line.startswith("phase ")][-1].removeprefix("phase ")


def _kill_in(folder: Path, sink: str, trigger: str, phase: str, rnd: random.Random) -> None:
    """Kill drivers until one of them has died in a phase."""
    for _ in range(ATTEMPTS):
        fell = _run_and_kill(folder, sink, trigger, phase, rnd)
        print(f"kill: asked for {phase}, fell in {fell}")
        if fell == phase:
            return
    raise AssertionError(f"{ATTEMPTS} kills missed the phase {phase}")


def _finish(folder: Path, sink: str, trigger: str) -> None:
    driver = start_driver(folder, sink, trigger=trigger)
    lines = list(_lines(driver))
    assert driver.wait() == 0, (folder / "driver.log").read_text()[-3000:]
    assert lines[-1].startswith("done")


def _kill_again_and_again(
    spark: SparkSession,
    folder: Path,
    sink: str,
    trigger: str,
    phases: list[str],
    rnd: random.Random,
) -> None:
    write_files(folder / "in", rnd, count=3 * len(phases) + 8)
    for phase in phases:
        _kill_in(folder, sink, trigger, phase, rnd)
    _finish(folder, sink, trigger)
    check(spark, folder, sink)


def check(spark: SparkSession, folder: Path, sink: str) -> None:
    """What came out is what Spark's own query gives, and the state verifies."""
    taken = files_taken(folder / "cp")
    expected = _expected(spark, folder, taken)
    assert sum(expected.values()) > 20
    assert _delivered(spark, folder, sink) == expected
    with holdfast.open(folder / "cp" / "holdfast") as db:
        assert db.version >= len(taken)
    result = CliRunner().invoke(app, ["verify", str(folder / "cp" / "holdfast")])
    assert result.exit_code == 0, result.output


@pytest.mark.services
@pytest.mark.parametrize(("sink", "trigger"), KILLS)
def test_a_killed_driver_delivers_every_row_exactly_once(
    spark: SparkSession, tmp_path: Path, sink: str, trigger: str
) -> None:
    under = [phases for (_, each), phases in KILLS.items() if each == trigger]
    assert {phase for phases in under for phase in phases} == set(PHASES)
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    rnd = random.Random(seed)
    phases = rnd.sample(KILLS[sink, trigger], 3)
    _kill_again_and_again(spark, tmp_path, sink, trigger, phases, rnd)


@pytest.mark.services
@pytest.mark.parametrize("phase", ["compute", "commit", "deliver"])
def test_a_paused_driver_that_wakes_up_after_its_successor_committed_damages_nothing(
    spark: SparkSession, tmp_path: Path, phase: str
) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    rnd = random.Random(seed)
    write_files(tmp_path / "in", rnd, count=13)
    paused = start_driver(tmp_path, "parquet", "paused.log")
    successor: subprocess.Popen[str] | None = None
    try:
        await_phase(paused, phase, rnd.randrange(2, 5))
        os.killpg(paused.pid, signal.SIGSTOP)
        successor = start_driver(tmp_path, "parquet")
        await_phase(successor, "deliver", rnd.randrange(5, 9))
        os.killpg(paused.pid, signal.SIGCONT)
        said, _ = successor.communicate(timeout=PATIENCE_S)
        paused.communicate(timeout=PATIENCE_S)
    finally:
        for driver in (paused, successor):
            if driver is not None and driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.communicate()
    assert successor.returncode == 0, (tmp_path / "driver.log").read_text()[-3000:]
    assert said.splitlines()[-1].startswith("done")
    assert paused.returncode == 1
    if phase != "deliver":
        told = (tmp_path / "paused.log").read_text()
        # The signal may come when its version is committed already: then Spark's own log stops it.
        overtaken = "has taken over|Another driver goes on with"
        assert re.search(overtaken, told), told[-5000:]
    check(spark, tmp_path, "parquet")


def await_phase(driver: subprocess.Popen[str], phase: str, times: int) -> None:
    """Read what a driver says until it has entered a phase so many times."""
    assert driver.stdout is not None
    while times:
        line = driver.stdout.readline()
        assert line, "the driver ended early"
        times -= line == f"phase {phase}\n"


@pytest.mark.soak
@pytest.mark.parametrize(("sink", "trigger"), KILLS)
def test_fifty_kills_lose_and_repeat_nothing(
    spark: SparkSession, tmp_path: Path, sink: str, trigger: str
) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    rnd = random.Random(seed)
    _kill_again_and_again(spark, tmp_path, sink, trigger, rnd.sample(PHASES * 3, 13), rnd)
