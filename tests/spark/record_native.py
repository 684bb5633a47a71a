"""Record what Spark's own streaming gives on random cases and in tests, for tests that replay it.

python tests/spark/record_native.py [--custom] [--seed 1] [--count 70] [--first 0]
python tests/spark/record_native.py --tests
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "support"))
sys.path.append(str(Path(__file__).parents[1] / "support" / "spark"))

import custom_cases
import custom_outcomes
import differential
import outcomes
from native_recordings import RECORD, RECORDED_NATIVE
from pyspark.sql import SparkSession
from quiet_spark import SETTINGS, builder
from recordings import RECORDED, RECORDED_CUSTOM, CustomRecording, Recording


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--count", type=int, default=70)
    arguments.add_argument("--first", type=int, default=0, help="go on with this case")
    arguments.add_argument("--custom", action="store_true", help="cases of custom state")
    arguments.add_argument("--tests", action="store_true", help="Spark's side of tests, no cases")
    asked = arguments.parse_args()
    if not asked.tests:
        _record_cases(asked)
    if not asked.custom:
        _record_tests()


def _record_cases(asked: argparse.Namespace) -> None:
    spark = _session()
    cases: list[Any]
    if asked.custom:
        cases, folder = custom_cases.plan(asked.seed, asked.count), RECORDED_CUSTOM
        print(custom_cases.coverage(cases))
    else:
        cases, folder = differential.plan(asked.seed, asked.count), RECORDED
        print(differential.coverage(cases))
    folder.mkdir(exist_ok=True)
    for path in sorted(folder.glob("*.json"))[asked.first :]:
        path.unlink()
    for number, case in list(enumerate(cases))[asked.first :]:
        recording = _recorded(spark, case)
        words = case.kind if not asked.custom else " ".join(case.cell)
        path = folder / f"{number:02d}-{words.replace(', ', '-').replace(' ', '-')}.json"
        recording.save(path)
        print(path.name, flush=True)
    spark.stop()


def _recorded(spark: SparkSession, case: Any) -> Recording:
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(case, custom_cases.CustomCase):
            custom = custom_outcomes.run_case(spark, case, Path(folder), native=True)
            return CustomRecording(case, spark.version, custom)
        outcome = outcomes.run_case(spark, case, Path(folder), native=True)
        return Recording(case, spark.version, outcome)


def _record_tests() -> None:
    """Run the tests with a native side, which record it; a recording that no test has goes."""
    here = Path(__file__).parent
    modules = [p for p in sorted(here.glob("test_*.py")) if "native_runs: " in p.read_text()]
    for path in RECORDED_NATIVE.glob("*.json"):
        path.unlink()
    # The tests' own parameter: those that replay a recording.
    chosen = ["-m", "not services and not soak", "-k", "recorded", *map(str, modules)]
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", *chosen]
    raise SystemExit(subprocess.run(command, env={**os.environ, RECORD: "1"}).returncode)


def _session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {**SETTINGS, "spark.ui.showConsoleProgress": "false"}
    return builder("holdfast-recordings", settings).getOrCreate()


if __name__ == "__main__":
    main()
