"""Random processors give what Spark's own APIs give: every output, and the state at each end."""

from __future__ import annotations

import json
import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from comparing import Comparison, check_all, new_seed, with_another_cell
from custom_cases import (
    CELLS,
    FRAMES,
    GROUPS,
    KINDS,
    ROWS,
    CustomCase,
    coverage,
    plan,
    seed_schema,
    seeds,
    tables,
)
from custom_outcomes import difference, run_case, short
from outcomes import in_order, plain
from pyspark.sql import SparkSession
from recordings import RECORDED_CUSTOM, CustomRecording

from holdfast.testing import StateTestDriver
from holdfast.testing._processed import ProcessorWork

_SOAK_PARTS = 6
_LIVE = 60
_DELAYS_MS = {"0 seconds": 0, "1 minute": 60_000, "10 minutes": 600_000}

_CASES = Comparison(
    plan=plan,
    coverage=coverage,
    cells="kind and API",
    label=lambda case: f"{case.label} {' '.join(case.cell)}",
    run_case=run_case,
    difference=lambda case, expected, found: difference(expected, found),
    recording=CustomRecording,
    folder=RECORDED_CUSTOM,
)


@pytest.mark.spark
def test_recorded_processors_give_what_spark_gave(spark: SparkSession, tmp_path: Path) -> None:
    _CASES.check_some_recorded(spark, tmp_path, 4)


@pytest.mark.spark
def test_live_processors_give_what_spark_gives(spark: SparkSession, tmp_path: Path) -> None:
    _CASES.check_some_live(spark, tmp_path, 1)


@pytest.mark.spark
@pytest.mark.soak  # `make test` replays four of them
@pytest.mark.parametrize("part", range(_SOAK_PARTS))
def test_all_recorded_processors_give_what_spark_gave(
    spark: SparkSession, tmp_path: Path, part: int
) -> None:
    if part == 0:
        print("Recorded cases by kind and API:")
        print(coverage([CustomRecording.load(path).case for path in _CASES.recorded()]))
    check_all(
        (path.stem, _CASES.difference_to_recording(spark, path, tmp_path / path.stem))
        for path in _CASES.recorded()[part::_SOAK_PARTS]
    )


@pytest.mark.spark
@pytest.mark.soak  # `make test` tries one live
@pytest.mark.parametrize("part", range(_SOAK_PARTS))
def test_60_random_processors_give_what_spark_gives(
    spark: SparkSession, tmp_path: Path, part: int, request: pytest.FixtureRequest
) -> None:
    seed = int(request.config.getoption("randomly_seed"))  # the same in every part
    _CASES.check_part(spark, tmp_path, seed, _LIVE, part, _SOAK_PARTS)


# -- the test driver ---------------------------------------------------------------------------


_FORMS = {ROWS: "row", FRAMES: "pandas", GROUPS: "group_state"}


@pytest.mark.parametrize("api", _FORMS)
def test_the_test_driver_gives_what_spark_gave_on_every_recorded_case(api: str) -> None:
    tried = 0
    paths = list(_CASES.recorded())
    random.Random(new_seed()).shuffle(paths)
    for path in paths:
        if tried == 10 and api == FRAMES:
            break  # they take a while
        recording = CustomRecording.load(path)
        case = recording.case
        if case.api != api or case.of.is_batch or case.of.is_chained or case.kind == "columns":
            continue  # the driver runs streams, of one operator, on the columns they come with
        told = [row for start in recording.outcome for rows in start["outputs"] for row in rows]
        assert _driven(case) == in_order(told), path.name
        tried += 1
    assert tried >= 9


def _driven(case: CustomCase) -> list[list[Any]]:
    """What a case gives when the test driver runs it."""
    kind = case.of
    driver = StateTestDriver(
        kind.make(),
        case.keys,
        case.schema,
        case.output,
        time_mode=kind.time,
        watermark=("ts", _DELAYS_MS[case.delay]) if kind.has_watermark else None,
        partitions=case.partitions,
        form=_FORMS[case.api],
        state_schema=kind.state or None,
    )
    # A DataFrame shows null and NaN alike: rows are compared.
    driver._work.shown = partial(ProcessorWork.shown, driver._work)  # type: ignore[method-assign]
    driver.set_clock(1_000_000)
    if kind.has_start:
        driver.preload(seeds(case), seed_schema(case))
    given: list[Any] = []
    batches = [table.to_pylist() for table in tables(case)]
    for count in case.starts:
        for rows in batches[:count]:
            kept = [row for row in rows if kind.takes_nulls or row["v"] is not None]
            given += driver.push(kept, idle=False)
            driver.advance_clock(1000, idle=False)
        batches = batches[count:]
        if kind.time.startswith("EventTime"):
            given += driver.tick()
    driver.close()
    return in_order([[short(plain(cell)) for cell in _then(case, row)] for row in given])


def _then(case: CustomCase, row: Any) -> list[Any]:
    """A row after what follows the processor."""
    if case.then != "select":
        return list(row)
    text = json.dumps({"what": row.what}, ensure_ascii=False, separators=(",", ":"))
    return [text, None if row.n is None else row.n + 1]


# -- the suite itself --------------------------------------------------------------------------


def test_recordings_are_small_and_hold_every_kind_of_every_api() -> None:
    recordings = [CustomRecording.load(path) for path in _CASES.recorded()]
    assert len(recordings) >= 60
    assert sum(path.stat().st_size for path in _CASES.recorded()) < 1_000_000
    cases = [recording.case for recording in recordings]
    assert {case.cell for case in cases} == set(CELLS)
    for setting in ("mode", "delay", "late_s", "nulls", "restarts", "partitions", "then"):
        assert len({getattr(case, setting) for case in cases}) >= 2, setting
    for api in {api for api, _ in KINDS}:
        assert {case.mode for case in cases if case.api == api} == {"Update", "Append"}


def test_a_case_is_the_same_when_made_again() -> None:
    assert plan(5, 60) == plan(5, 60)
    assert plan(5, 60) != plan(6, 60)
    case = plan(5, 1)[0]
    assert CustomCase.from_json(case.json()) == case


def test_a_difference_in_one_cell_is_noticed() -> None:
    rnd = random.Random(new_seed())
    for path in _CASES.recorded():
        outcome = CustomRecording.load(path).outcome
        assert difference(outcome, outcome) is None
        changed = with_another_cell(outcome, rnd)
        assert difference(outcome, changed) is not None


def test_every_test_idea_of_pysparks_own_suites_names_what_holds_it() -> None:
    page = (Path(__file__).parent / "pyspark_ideas.md").read_text()
    lines = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ")][1:]
    assert len(lines) >= 30
    known = {kind for _, kind in KINDS}
    for idea, _, holders in lines:
        kinds = re.findall(r"kind `([^`]+)`", holders)
        tests = re.findall(r"tests/([\w/]+\.py)::(\w+)", holders)
        assert kinds or tests or "differs" in holders or "cases" in holders or "`" in holders, idea
        assert set(kinds) <= known, idea
        for path, name in tests:
            body = (Path(__file__).parents[1] / path).read_text()
            assert f"def {name}(" in body, f"{idea}: {name}"
