"""A stream that runs for long at a fixed rate takes no more time, memory or files than at first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fixed_rate.py"


@pytest.mark.soak
def test_half_an_hour_at_a_fixed_rate_stays_flat() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--minutes", os.environ.get("HOLDFAST_MINUTES") or "30"],
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
