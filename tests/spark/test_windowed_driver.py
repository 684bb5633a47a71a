"""Windowed queries run without Spark give what Spark's own streaming gave on the same batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from differential import Case, tables
from outcomes import Outcome, difference, in_order, own_state, plain
from recordings import RECORDED, Recording

from holdfast.testing import StateTestDriver, WindowedQuery

_WINDOWS: dict[str, dict[str, Any]] = {
    "key": {},
    "global": {},
    "tumbling": {"window": ("ts", "4 minutes")},
    "sliding": {"window": ("ts", "6 minutes", "2 minutes")},
    "offset": {"window": ("ts", "5 minutes", "5 minutes", "70 seconds")},
    "session": {"session": ("ts", "40 seconds")},
}
_AS_COLUMNS = {
    "count_if(n > 3)": "count_if(more)",
    "sum(n) FILTER (WHERE flag)": "sum(flagged)",
}
"""What goes over an expression in SQL goes over a column of the rows here."""


def _cases() -> list[Any]:
    found = []
    for path in sorted(RECORDED.glob("*.json")):
        case = Recording.load(path).case
        has_ratio = any("/" in name for name in case.aggregates)
        if case.kind in _WINDOWS and case.ansi and not has_ratio:
            found.append(pytest.param(path, id=f"{path.stem}-{case.mode}"))
    return found


def _query(case: Case) -> WindowedQuery:
    return WindowedQuery(
        [] if case.kind == "global" else "k",
        **_WINDOWS[case.kind],
        aggs={name: _AS_COLUMNS.get(name, name) for name in case.aggregates},
        watermark=None if case.delay is None else ("ts", case.delay),
        mode=case.mode,
    )


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    return [
        {
            **row,
            "more": None if row["n"] is None else row["n"] > 3,
            "flagged": row["n"] if row["flag"] else None,
        }
        for row in table.to_pylist()
    ]


def _run(case: Case) -> Outcome:
    """What the driver gives on a case: one version a batch, and ticks before each end."""
    schema = f"{case.schema}, more boolean, flagged long"
    driver = StateTestDriver(_query(case), schema=schema)
    waiting = list(tables(case))
    outcome = []
    for count in case.starts:
        given = [driver.recover()]
        given += [driver.push(_rows(table), idle=False) for table in waiting[:count]]
        given.append(driver.tick())
        waiting = waiting[count:]
        outcome.append({
            "outputs": [in_order([_cells(case, row) for row in rows]) for rows in given if rows],
            "state": [in_order(own_state(None, case, driver.location, 0))],
        })  # fmt: skip
    driver.close()
    return outcome


def _cells(case: Case, row: Any) -> list[Any]:
    cells = [plain(cell) for cell in row]
    if case.kind == "sliding":  # there the window comes first
        cells[:2] = cells[1::-1]
    return cells


@pytest.mark.parametrize("path", _cases())
def test_a_windowed_query_without_spark_gives_what_spark_gave(path: Path) -> None:
    recording = Recording.load(path)
    said = difference(recording.case, recording.outcome, _run(recording.case))
    assert said is None, f"{said}\nin the case {recording.case}"


def test_recorded_cases_of_every_window_and_mode_are_among_them() -> None:
    cases = [Recording.load(case.values[0]).case for case in _cases()]
    found = {(case.kind, case.mode) for case in cases}
    assert len(cases) >= 27
    assert {kind for kind, _ in found} == set(_WINDOWS)
    for kind in ("tumbling", "sliding", "offset"):
        assert {mode for own, mode in found if own == kind} == {"append", "update", "complete"}


def test_a_difference_would_be_noticed() -> None:
    recording = Recording.load(_cases()[-1].values[0])
    other = replace(recording.case, seed=recording.case.seed + 1)
    assert difference(recording.case, recording.outcome, _run(other)) is not None
