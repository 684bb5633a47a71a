"""Every example runs as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# The others have a test of their own below.
EXAMPLES = sorted(set((ROOT / "examples").glob("*.py")) - {ROOT / "examples/continuous_profit.py"})


def run(example: Path, cwd: Path, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example), *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONUTF8": "1", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Spark greets on stderr; an example without it says nothing there.
    assert done.stderr == "" or "pyspark" in example.read_text(), done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_leaves_nothing_behind(example: Path, tmp_path: Path) -> None:
    assert run(example, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_continuous_profit_is_that_of_the_worked_example(tmp_path: Path) -> None:
    shown = run(ROOT / "examples" / "continuous_profit.py", tmp_path)
    assert list(tmp_path.iterdir()) == []
    profits = [
        [line.split("|")[2].strip() for line in batch.splitlines() if line.startswith("|{")]
        for batch in shown.split("Batch: ")[1:]
    ]
    assert profits == [["10"], ["28"], ["28", "-5"], ["33", "-5"]]
    assert "10:10 to 10:15: 28" in shown


def test_demo_survives_the_crash_and_fits_a_terminal(tmp_path: Path) -> None:
    shown = run(ROOT / "examples" / "store_demo.py", tmp_path, tmp_path / "totals")
    assert max(len(line) for line in shown.splitlines()) <= 80
    for part in ("killed by SIGKILL", "(2, (500,), None)", "((200,), (500,))", "all intact",
                 "left by the crash", "columns _hash, user, total, _dead"):  # fmt: skip
        assert part in shown, part
    assert (tmp_path / "totals" / "versions" / "3").exists()


def test_make_demo_runs_an_example() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "examples/store_demo.py" in makefile.partition("\ndemo:")[2].partition("\n\n")[0]
