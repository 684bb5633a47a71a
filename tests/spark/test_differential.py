"""Random queries give what Spark's own streaming gives: every output, and the state at each end."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from differential import AGGREGATES, KEYS, Case, coverage, plan, thin_cells
from outcomes import close, difference, run_case
from pyspark.sql import SparkSession
from recordings import RECORDED, Recording

_ROOT = Path(__file__).parents[2]
_SOAK = 300
_SOAK_RESULT = _ROOT / "benchmarks/results/soak-differential.md"
_ON_EVERY_SPARK = 20261116
"""The seed of the ten cases that run on every Spark."""


@pytest.fixture
def two_partitions(spark: SparkSession) -> Iterator[SparkSession]:
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    spark.conf.set(name, "2")
    yield spark
    spark.conf.set(name, before)


def _disagreement(spark: SparkSession, case: Case, folder: Path) -> str | None:
    """How Holdfast and the Spark of this session differ on a case; None where they agree."""
    native = run_case(spark, case, folder / "native", native=True)
    own = run_case(spark, case, folder / "own", native=False)
    said = difference(case, native, own)
    return None if said is None else f"{said}\nin the case {case}"


@pytest.mark.spark
def test_recorded_cases_give_what_spark_gave(two_partitions: SparkSession, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chosen = random.Random(seed).sample(sorted(RECORDED.glob("*.json")), 20)
    for number, path in enumerate(chosen):
        recording = Recording.load(path)
        found = run_case(two_partitions, recording.case, tmp_path / str(number), native=False)
        said = difference(recording.case, recording.outcome, found)
        assert said is None, f"{path.name}: {said}\nin the case {recording.case}"


@pytest.mark.spark
def test_live_cases_give_what_spark_gives(two_partitions: SparkSession, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    for number, case in enumerate(plan(seed, 3)):
        assert _disagreement(two_partitions, case, tmp_path / str(number)) is None


@pytest.mark.spark
@pytest.mark.any_spark
@pytest.mark.parametrize("number", range(10))
def test_ten_cases_give_what_any_spark_gives(
    two_partitions: SparkSession, tmp_path: Path, number: int
) -> None:
    case = plan(_ON_EVERY_SPARK, 10)[number]
    print(f"seed {_ON_EVERY_SPARK}, case {case}")
    assert _disagreement(two_partitions, case, tmp_path) is None


@pytest.mark.spark
@pytest.mark.soak
def test_300_random_cases_give_what_spark_gives(
    two_partitions: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.randrange(10**6)
    cases = plan(seed, _SOAK)
    assert not thin_cells(cases)
    failures: list[str] = []
    began = time.monotonic()
    with capsys.disabled():
        print(f"\nseed {seed}\n{coverage(cases)}\n")
        for number, case in enumerate(cases):
            said = _disagreement(two_partitions, case, tmp_path / str(number))
            print(f"{'agrees' if said is None else 'DIFFERS'} {case}", flush=True)
            if said is not None:
                failures.append(said)
    _write_summary(two_partitions.version, seed, cases, failures, time.monotonic() - began)
    assert not failures, "\n\n".join(failures)


def _write_summary(
    version: str, seed: int, cases: list[Case], failures: list[str], seconds: float
) -> None:
    agreed = len(cases) - len(failures)
    listed = "".join(f"\n- {failure}" for failure in failures)
    _SOAK_RESULT.parent.mkdir(parents=True, exist_ok=True)
    _SOAK_RESULT.write_text(
        f"# Managed state against Spark's own streaming\n\n"
        f"`make soak` writes this file. {agreed} of {len(cases)} random queries gave the rows "
        f"PySpark {version} gives after every batch, and the state it keeps at the end of every "
        f"start, in {seconds / 60:.0f} minutes. The plan's seed is {seed}: "
        f"`plan({seed}, {len(cases)})` in `tests/spark/differential.py` makes the same queries.\n"
        f"{listed}\n"
        f"Cases by kind of query and output mode, with each setting:\n\n{coverage(cases)}\n"
    )


# -- the suite itself --------------------------------------------------------------------------


def test_every_cell_of_a_soak_has_three_cases() -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    cases = plan(seed, _SOAK)
    assert not thin_cells(cases)
    assert {case.key for case in cases} == set(KEYS)
    assert {name for case in cases for name in case.aggregates} == set(AGGREGATES)


def test_a_case_is_the_same_when_made_again() -> None:
    assert plan(5, 40) == plan(5, 40)
    assert plan(5, 40) != plan(6, 40)
    case = plan(5, 1)[0]
    assert Case.from_json(case.json()) == case


def test_recordings_are_small_and_cover_every_kind() -> None:
    paths = list(RECORDED.glob("*.json"))
    recordings = [Recording.load(path) for path in paths]
    assert len(recordings) >= 60
    assert sum(path.stat().st_size for path in paths) < 1_000_000
    cells = {(recording.case.kind, recording.case.mode) for recording in recordings}
    assert cells == {(case.kind, case.mode) for case in plan(0, _SOAK)}


def test_a_difference_in_one_cell_is_noticed() -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rnd = random.Random(seed)
    for path in sorted(RECORDED.glob("*.json")):
        recording = Recording.load(path)
        assert difference(recording.case, recording.outcome, recording.outcome) is None
        changed = copy.deepcopy(recording.outcome)
        rows = [
            row
            for start in changed
            for rows in (*start["outputs"], *start["state"])
            for row in rows
            if row
        ]
        row = rnd.choice(rows)
        row[rnd.randrange(len(row))] = "another"
        assert difference(recording.case, recording.outcome, changed) is not None
        short = copy.deepcopy(recording.outcome)
        next(start for start in reversed(short) if start["outputs"])["outputs"][-1].pop()
        assert difference(recording.case, recording.outcome, short) is not None


def test_doubles_agree_to_nine_digits_and_estimates_within_their_error() -> None:
    assert close(1.0, 1.0 + 1e-10)
    assert not close(1.0, 1.0 + 1e-7)
    assert close("nan", "nan")
    assert not close("nan", 1.0)
    assert not close(1, True)
    assert close(100, 104, rsd=0.05)
    assert not close(100, 110, rsd=0.05)
