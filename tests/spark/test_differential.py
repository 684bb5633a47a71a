"""Random queries give what Spark's own streaming gives: every output, and the state at each end."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest
from comparing import Comparison, new_seed, with_another_cell
from differential import AGGREGATES, KEYS, Case, coverage, plan, thin_cells
from outcomes import close, difference, run_case
from pyspark.sql import SparkSession
from recordings import RECORDED, Recording

_SOAK = 300
_SOAK_PARTS = 30
_ON_EVERY_SPARK = 20261116
"""The seed of the ten cases that run on every Spark."""

_CASES = Comparison(
    plan=plan,
    coverage=coverage,
    cells="kind of query and mode",
    label=lambda case: case.label,
    run_case=run_case,
    difference=difference,
    recording=Recording,
    folder=RECORDED,
)


@pytest.mark.spark
def test_recorded_cases_give_what_spark_gave(spark: SparkSession, tmp_path: Path) -> None:
    _CASES.check_some_recorded(spark, tmp_path, 10)


@pytest.mark.spark
def test_live_cases_give_what_spark_gives(spark: SparkSession, tmp_path: Path) -> None:
    _CASES.check_some_live(spark, tmp_path, 2)


@pytest.mark.spark
@pytest.mark.any_spark
@pytest.mark.soak  # `make test` replays recordings, and tries two live
@pytest.mark.parametrize("number", range(10))
def test_ten_cases_give_what_any_spark_gives(
    spark: SparkSession, tmp_path: Path, number: int
) -> None:
    case = plan(_ON_EVERY_SPARK, 10)[number]
    print(f"seed {_ON_EVERY_SPARK}, case {case}")
    assert _CASES.disagreement(spark, case, tmp_path) is None


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("part", range(_SOAK_PARTS))
def test_300_random_cases_give_what_spark_gives(
    spark: SparkSession, tmp_path: Path, part: int, request: pytest.FixtureRequest
) -> None:
    seed = int(request.config.getoption("randomly_seed"))  # the same in every part
    _CASES.check_part(spark, tmp_path, seed, _SOAK, part, _SOAK_PARTS)


# -- the suite itself --------------------------------------------------------------------------


def test_every_cell_of_a_soak_has_three_cases() -> None:
    cases = plan(new_seed(), _SOAK)
    assert not thin_cells(cases)
    assert {case.key for case in cases} == set(KEYS)
    assert {name for case in cases for name in case.aggregates} == set(AGGREGATES)


def test_a_case_is_the_same_when_made_again() -> None:
    assert plan(5, 40) == plan(5, 40)
    assert plan(5, 40) != plan(6, 40)
    case = plan(5, 1)[0]
    assert Case.from_json(case.json()) == case


def test_recordings_are_small_and_cover_every_kind() -> None:
    paths = _CASES.recorded()
    recordings = [Recording.load(path) for path in paths]
    assert len(recordings) >= 60
    assert sum(path.stat().st_size for path in paths) < 1_000_000
    cells = {(recording.case.kind, recording.case.mode) for recording in recordings}
    assert cells == {(case.kind, case.mode) for case in plan(0, _SOAK)}


def test_a_difference_in_one_cell_is_noticed() -> None:
    rnd = random.Random(new_seed())
    for path in _CASES.recorded():
        recording = Recording.load(path)
        assert difference(recording.case, recording.outcome, recording.outcome) is None
        changed = with_another_cell(recording.outcome, rnd)
        assert difference(recording.case, recording.outcome, changed) is not None
        short = copy.deepcopy(recording.outcome)
        next(start for start in reversed(short) if start["outputs"])["outputs"][-1].pop()
        assert difference(recording.case, recording.outcome, short) is not None


def test_doubles_agree_to_nine_digits_and_all_else_exactly() -> None:
    assert close(1.0, 1.0 + 1e-10)
    assert not close(1.0, 1.0 + 1e-7)
    assert close("nan", "nan")
    assert not close("nan", 1.0)
    assert not close(1, True)
    assert not close(100, 101)
