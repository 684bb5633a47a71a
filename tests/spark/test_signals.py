"""A stream that is told to end by a signal goes on later as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast import stateful

pytestmark = pytest.mark.spark

DRIVER = Path(__file__).parents[1] / "support" / "spark" / "stream_to_signal.py"
FILES = 60
PATIENCE_S = 120


def _write(folder: Path, number: int, chance: random.Random) -> None:
    rows = [{"k": chance.choice("abc")} for _ in range(20)]
    path = folder / f"{number:03d}.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (number + 1000, number + 1000))


def _counts(folder: Path, files: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for path in sorted(folder.iterdir())[:files]:
        counts.update(json.loads(line)["k"] for line in path.read_text().splitlines())
    return counts


def _state(checkpoint: Path) -> tuple[int, Counter[str]]:
    state = holdfast.read(checkpoint)
    rows = state.scan().to_pylist()
    return state.version, Counter({row["k"]: row["count"] for row in rows})


def _committed(checkpoint: Path) -> int:
    """The newest version; a manifest still under its temporary name does not count."""
    try:
        return holdfast.read(checkpoint).version
    except holdfast.HoldfastError:
        return 0


def _wait_for_the_others(group: int) -> None:
    """The JVM of a driver that is gone may still write to the checkpoint."""
    deadline = time.monotonic() + PATIENCE_S
    with suppress(ProcessLookupError):
        while True:
            os.killpg(group, 0)
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_stream_without_harm(
    spark: SparkSession, tmp_path: Path, number: signal.Signals
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    source, checkpoint, said = tmp_path / "in", tmp_path / "cp", tmp_path / "said"
    source.mkdir()
    for file in range(FILES):
        _write(source, file, chance)
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, DRIVER, str(source), str(checkpoint)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )
    deadline = time.monotonic() + PATIENCE_S
    while _committed(checkpoint) < 2:
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.02)
    time.sleep(chance.random())
    process.send_signal(number)
    code = process.wait(PATIENCE_S)
    _wait_for_the_others(process.pid)
    version, counts = _state(checkpoint)
    assert 2 <= version < FILES
    assert counts == _counts(source, version)
    if number == signal.SIGINT:
        assert code == 0
        assert f"stopped at version {version}" in said.read_text()
    else:
        assert code == -signal.SIGTERM
    for path in sorted(source.iterdir())[version + 4 :]:
        path.unlink()  # few are enough to see that it goes on
    rows = spark.readStream.schema("k string").option("maxFilesPerTrigger", "1").json(str(source))
    query = (
        stateful(rows)
        .groupBy("k")
        .count()
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    last, counts = _state(checkpoint)
    # Spark may have listed files for a batch it did not come to plan: its next one takes them too.
    assert version < last <= version + 4
    assert counts == _counts(source, version + 4)
