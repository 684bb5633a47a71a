"""PySpark's own suites on Holdfast: run them, hold them against the list, write the report.

python -m pyspark_suites CHECKOUT [--suites state,listener] [--report PAGE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from pyspark_suites.outcomes import Outcome, judge, read_differences, stale
from pyspark_suites.report import suite_result, update
from pyspark_suites.suites import SUITES

LIST = Path(__file__).with_name("expected.txt")
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
RUNNER = [sys.executable, "-m", "pyspark_suites.running"]
SECONDS_A_TEST = 300
SECONDS_A_MODULE = 5400
# One partition: the streams without an operator get one that has as many tasks as the stream.
SUBMIT = "--conf spark.sql.shuffle.partitions=1 --conf spark.ui.enabled=false pyspark-shell"


def main(arguments: Sequence[str]) -> int:
    given = _arguments(arguments)
    differences = read_differences(LIST.read_text())
    versions, results, verdicts = _versions(given.checkout), {}, []
    for suite in given.suites:
        outcomes = [each for module in SUITES[suite] for each in _run(given.checkout, module)]
        judged = judge(outcomes, differences)
        results[suite] = suite_result(judged, versions)
        verdicts += judged
    print(update(given.report, results, list(SUITES)))
    unneeded = stale(verdicts, differences)
    for line in unneeded:
        print(f"No test needs this line of {LIST.name}: {line.tests} | {line.failure}")
    return 1 if unneeded or any(each.word == "unexpected" for each in verdicts) else 0


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make test-pyspark-suites")
    parser.add_argument("checkout", type=Path, help="a checkout of Spark of the same version")
    parser.add_argument(
        "--suites",
        type=lambda text: text.split(","),
        default=list(SUITES),
        help=f"some of {','.join(SUITES)}; the report keeps what it has of the others",
    )
    page_name = f"pyspark-suites-{version('pyspark')}.md"
    parser.add_argument("--report", type=Path, default=RESULTS / page_name)
    given = parser.parse_args(arguments)
    if not (given.checkout / "python" / "pyspark" / "sql" / "tests").is_dir():
        parser.error(f"{given.checkout} is not a checkout of Spark: it has no PySpark tests.")
    if unknown := set(given.suites) - set(SUITES):
        parser.error(f"no such suite: {', '.join(sorted(unknown))}")
    return given


def _run(checkout: Path, module: str) -> list[Outcome]:
    print(f"== {module}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        process = subprocess.Popen(
            [*RUNNER, str(checkout), module, str(result), str(SECONDS_A_TEST)],
            env={**os.environ, "PYSPARK_SUBMIT_ARGS": SUBMIT},
        )
        try:
            process.wait(SECONDS_A_MODULE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if not result.exists():
            return [Outcome(module, "unfinished", "The module could not be loaded.")]
        said: dict[str, list[str]] = json.loads(result.read_text())
    return [Outcome(test, *what) for test, what in said.items()]


def _versions(checkout: Path) -> str:
    parts = [f"PySpark {version('pyspark')}", f"Python {platform.python_version()}"]
    tests = f"tests of Spark's commit {_commit(checkout) or 'unknown'}"
    return ", ".join([*parts, f"PyArrow {version('pyarrow')}", tests])


def _commit(checkout: Path) -> str:
    if not (checkout / ".git").exists():
        return ""
    asked = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False)
    return said.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
