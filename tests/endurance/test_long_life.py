"""Versions by the ten thousand cost as much in the end as at first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "long_life.py"
COUNTS = {"stream": "10000", "store": "100000"}


@pytest.mark.soak
@pytest.mark.parametrize("kind", COUNTS)
def test_a_long_life_stays_flat(kind: str) -> None:
    count = os.environ.get("HOLDFAST_VERSIONS") or COUNTS[kind]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), kind, "--count", count],
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
