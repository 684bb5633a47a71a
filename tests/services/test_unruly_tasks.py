"""Tasks that fail late, are overtaken by a twin, or wake up too late change nothing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import holdfast
from holdfast.cli.app import app
from servers import SparkCluster

pytestmark = pytest.mark.services
BATCHES = 4


def _write_files(folder: Path, rnd: random.Random) -> list[Counter[int]]:
    """Random rows, one file a batch; the totals after each."""
    folder.mkdir()
    totals: Counter[int] = Counter()
    after = []
    for number in range(BATCHES):
        users = [rnd.randrange(50) for _ in range(200)]
        cells = [rnd.randrange(1, 100) for _ in users]
        path = folder / f"{number}.parquet"
        pq.write_table(pa.table({"user": users, "v": cells}), path)
        os.utime(path, (number + 1000, number + 1000))
        for user, cell in zip(users, cells, strict=True):
            totals[user] += cell
        after.append(Counter(totals))
    return after


def _run(folder: Path, how: str, master: str) -> set[str]:
    """Run the driver, check what it has kept, and return what the attempts noted."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    expected = _write_files(folder / "in", random.Random(seed))
    script = Path(__file__).parents[1] / "support" / "services" / "unruly_tasks.py"
    command = [sys.executable, str(script), str(folder), how, master]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert f"done {BATCHES}" in ended.stdout
    root = folder / "cp" / "holdfast"
    with holdfast.open(root) as db:
        assert db.version == BATCHES
        for version, totals in enumerate(expected, start=1):
            assert dict(zip(*db.at(version).scan().to_pydict().values(), strict=True)) == totals
    result = CliRunner().invoke(app, ["verify", str(root)])
    assert result.exit_code == 0, result.output
    return {path.name for path in (folder / "attempts").iterdir()}


def test_a_task_that_fails_after_its_work_changes_nothing(tmp_path: Path) -> None:
    attempts = _run(tmp_path, "fail", "local[2,4]")
    assert attempts == {"0-began", "1-began", "1-ended"}


def test_a_slower_twin_of_a_task_changes_nothing(tmp_path: Path, cluster: SparkCluster) -> None:
    attempts = _run(tmp_path, "twin", cluster.url)
    assert {"0-began", "1-began", "1-ended"} <= attempts


def test_a_zombie_that_finishes_late_changes_nothing(tmp_path: Path, cluster: SparkCluster) -> None:
    attempts = _run(tmp_path, "zombie", cluster.url)
    assert attempts == {"0-began", "stopped", "1-began", "1-ended", "0-ended"}
