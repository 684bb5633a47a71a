"""A pipeline whose process is killed delivers every closed window once, whatever its plan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from covering import Case, covering
from pipeline_to_kill import PHASES
from pipelines import DIMENSIONS, Pipeline, expected
from pyspark.sql import SparkSession

SEED = 20261118
KILLED = {
    **DIMENSIONS,
    "failure": tuple(PHASES),
    "sink": ("parquet",),
}
"""Files are what another process can see of a sink."""


def one_of_each_plan() -> list[Case]:
    """As many cases as there are plans, with every other value in some of them."""
    plans, *others = KILLED.values()
    return [
        (plan, *(values[(number + place) % len(values)] for place, values in enumerate(others)))
        for number, plan in enumerate(plans)
    ]


def kill(folder: Path, case: Case) -> None:
    """Run a case in a process that is killed, with its JVM and workers, once it is in its phase."""
    script = Path(__file__).parents[1] / "support" / "spark" / "pipeline_to_kill.py"
    with (folder / "killed.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(script), str(folder), case[2], *case],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert f"phase {case[2]}\n" in lines, (folder / "killed.log").read_text()[-3000:]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def check(spark: SparkSession, folder: Path, case: Case) -> None:
    folder.mkdir(exist_ok=True)
    pipeline = Pipeline(spark, folder, case)
    try:
        pipeline.write(0, 1)
        kill(folder, case)
        pipeline.write(2, 3)
        pipeline.finish()
        assert pipeline.delivered() == expected(spark, pipeline)
    finally:
        pipeline.close()


@pytest.mark.services
@pytest.mark.parametrize("case", one_of_each_plan(), ids="-".join)
def test_every_closed_window_is_delivered_once_after_a_kill(
    spark: SparkSession, tmp_path: Path, case: Case
) -> None:
    check(spark, tmp_path, case)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_three_kills_of_every_pair_lose_and_repeat_nothing(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    cases = covering(KILLED, seed)
    print(f"seed {seed}: {len(cases)} cases")
    for number, case in enumerate(cases):
        print("-".join(case))
        check(spark, tmp_path / str(number), case)
