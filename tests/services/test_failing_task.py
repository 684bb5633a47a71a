"""A task that fails after its work was done is run again, and changes nothing."""

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


def test_a_task_that_fails_after_its_work_changes_nothing(tmp_path: Path) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    expected = _write_files(tmp_path / "in", random.Random(seed))
    script = Path(__file__).with_name("failing_task.py")
    command = [sys.executable, str(script), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert f"done {BATCHES}" in ended.stdout
    attempts = {path.name for path in (tmp_path / "attempts").iterdir()}
    assert {"0-began", "1-began", "1-ended"} <= attempts
    root = tmp_path / "cp" / "holdfast"
    with holdfast.open(root) as db:
        assert db.version == BATCHES
        for version, totals in enumerate(expected, start=1):
            assert dict(zip(*db.at(version).scan().to_pydict().values(), strict=True)) == totals
    result = CliRunner().invoke(app, ["verify", str(root)])
    assert result.exit_code == 0, result.output
