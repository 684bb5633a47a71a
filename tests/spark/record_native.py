"""Record what Spark's own streaming gives on random cases, for tests that replay them.

python tests/spark/record_native.py [--seed 1] [--count 60] [--first 0]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from differential import coverage, plan
from outcomes import run_case
from pyspark.sql import SparkSession
from recordings import RECORDED, Recording


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--count", type=int, default=60)
    arguments.add_argument("--first", type=int, default=0, help="go on with this case")
    asked = arguments.parse_args()
    spark = _session()
    cases = plan(asked.seed, asked.count)
    print(coverage(cases))
    RECORDED.mkdir(exist_ok=True)
    for path in sorted(RECORDED.glob("*.json"))[asked.first :]:
        path.unlink()
    for number, case in list(enumerate(cases))[asked.first :]:
        with tempfile.TemporaryDirectory() as folder:
            outcome = run_case(spark, case, Path(folder), native=True)
        path = RECORDED / f"{number:02d}-{case.kind.replace(', ', '-').replace(' ', '-')}.json"
        Recording(case, spark.version, outcome).save(path)
        print(path.name, flush=True)
    spark.stop()


def _session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("holdfast-recordings")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    main()
