"""Random queries give what Spark's own streaming gives: every output, and the state at each end."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest
from differential import AGGREGATES, KEYS, Case, coverage, plan, thin_cells
from outcomes import close, difference, run_case
from pyspark.sql import SparkSession
from recordings import RECORDED, Recording

_ROOT = Path(__file__).parents[2]
_SOAK = 300
_SOAK_PARTS = 30
_ON_EVERY_SPARK = 20261116
"""The seed of the ten cases that run on every Spark."""


def _disagreement(spark: SparkSession, case: Case, folder: Path) -> str | None:
    """How Holdfast and the Spark of this session differ on a case; None where they agree."""
    native = run_case(spark, case, folder / "native", native=True)
    own = run_case(spark, case, folder / "own", native=False)
    said = difference(case, native, own)
    return None if said is None else f"{said}\nin the case {case}"


@pytest.mark.spark
def test_recorded_cases_give_what_spark_gave(spark: SparkSession, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chosen = random.Random(seed).sample(sorted(RECORDED.glob("*.json")), 20)
    for number, path in enumerate(chosen):
        recording = Recording.load(path)
        found = run_case(spark, recording.case, tmp_path / str(number), native=False)
        said = difference(recording.case, recording.outcome, found)
        assert said is None, f"{path.name}: {said}\nin the case {recording.case}"


@pytest.mark.spark
def test_live_cases_give_what_spark_gives(spark: SparkSession, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    for number, case in enumerate(plan(seed, 3)):
        assert _disagreement(spark, case, tmp_path / str(number)) is None


@pytest.mark.spark
@pytest.mark.any_spark
@pytest.mark.soak  # `make test` replays recordings, and tries three live
@pytest.mark.parametrize("number", range(10))
def test_ten_cases_give_what_any_spark_gives(
    spark: SparkSession, tmp_path: Path, number: int
) -> None:
    case = plan(_ON_EVERY_SPARK, 10)[number]
    print(f"seed {_ON_EVERY_SPARK}, case {case}")
    assert _disagreement(spark, case, tmp_path) is None


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("part", range(_SOAK_PARTS))
def test_300_random_cases_give_what_spark_gives(
    spark: SparkSession, tmp_path: Path, part: int, request: pytest.FixtureRequest
) -> None:
    seed = int(request.config.getoption("randomly_seed"))  # the same in every part
    cases = plan(seed, _SOAK)
    if part == 0:
        print(f"PySpark {spark.version}; cases by kind of query and mode:")
        print(coverage(cases))
    print(f"seed {seed}, cases {part} and every {_SOAK_PARTS}th after it")
    failures: list[str] = []
    for number, case in list(enumerate(cases))[part::_SOAK_PARTS]:
        said = _disagreement(spark, case, tmp_path / str(number))
        print(f"{'agrees' if said is None else 'DIFFERS'} {case.label}")
        if said is not None:
            failures.append(said)
    assert not failures, "\n\n".join(failures)


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
