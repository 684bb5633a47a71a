"""What a case gave, start by start, in a form that JSON keeps and two runs are compared by."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from aggregates import AGGREGATES, Kept
from differential import PIPELINES, Case, pipeline, write_input
from naming import called
from native import collect
from pyspark.sql import Row, SparkSession

import holdfast

Cells = list[Any]
Outcome = list[dict[str, Any]]
"""For each start of the query: `outputs`, the rows of each batch that had some, and `state`, the
rows of each operator when it ended."""


def run_case(spark: SparkSession, case: Case, folder: Path, *, native: bool) -> Outcome:
    """Run a case in a folder of its own."""
    write_input(case, folder / "all")
    found = folder / "in"
    found.mkdir()
    waiting = sorted((folder / "all").glob("*.parquet"))
    outcome = []
    for count in case.starts:
        for path in waiting[:count]:
            path.rename(found / path.name)
        waiting = waiting[count:]
        with _ansi(spark, case.ansi):
            outputs = collect(
                spark,
                found,
                folder / "cp",
                pipeline(case),
                case.mode,
                native=native,
                schema=case.schema,
            )
        stages = range(PIPELINES[case.kind].stages)
        read = _native_state if native else own_state
        outcome.append({
            "outputs": [in_order([[plain(cell) for cell in row] for row in rows])
                        for rows in outputs],
            "state": [in_order(read(spark, case, folder / "cp", stage)) for stage in stages],
        })  # fmt: skip
    return outcome


@contextmanager
def _ansi(spark: SparkSession, enabled: bool) -> Iterator[None]:
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", str(enabled).lower())
    try:
        yield
    finally:
        spark.conf.set("spark.sql.ansi.enabled", str(before))


def _kept(case: Case) -> list[Kept]:
    return [kept for name in case.aggregates for kept in AGGREGATES[name].kept]


def _native_state(spark: SparkSession, case: Case, checkpoint: Path, stage: int) -> list[Cells]:
    """Spark's state of an operator: the key's columns, then those of the values that compare."""
    # Spark counts its operators from the last one.
    number = PIPELINES[case.kind].stages - 1 - stage
    reader = spark.read.format("statestore").option("operatorId", number)
    rows = reader.load(str(checkpoint)).select("key", "value").collect()
    if case.kind.startswith("session"):
        return [_native_session(case, row.value) for row in rows]
    return [
        [plain(cell) for cell in _flat(row.key)] + _native_values(case, _values(row.value))
        for row in rows
    ]


def _values(value: Row | None) -> Cells:
    """A row's values; those of a key without any are one dummy cell or none."""
    if value is None or value.__fields__ in ([], ["__dummy__"]):
        return []
    return [plain(cell) for cell in value]


def _flat(row: Row) -> list[Any]:
    """Cells with windows as start and end, as our state has them."""
    cells: list[Any] = []
    for name, cell in zip(row.__fields__, row, strict=True):
        cells.extend(cell if name in ("window", "session_window") else [cell])
    return cells


def _native_session(case: Case, value: Row) -> Cells:
    """Our order of what Spark keeps of a session: the key, the window's start and end, values."""
    return [plain(value[called(case.names, "k")]), *map(plain, value["session_window"]),
            *_native_values(case, [plain(cell) for cell in value[2:]])]  # fmt: skip


def _native_values(case: Case, cells: Cells) -> Cells:
    if not case.aggregates:
        return cells
    values, at = [], 0
    for kept in _kept(case):
        if kept.ours is not None:
            values += kept.ours(cells[at : at + kept.native_width])
        at += kept.native_width
    assert at == len(cells), f"Spark keeps {len(cells)} columns, not {at}, for {case}"
    return values


def own_state(spark: SparkSession | None, case: Case, checkpoint: Path, stage: int) -> list[Cells]:
    """Our state of an operator, in the form of `_native_state`."""
    state = holdfast.read(checkpoint, operator=stage)
    table = state.scan()
    keys = state.key_schema.names
    if case.kind == "sliding":  # the query has the window first, state may have it last
        keys = sorted(keys, key=lambda name: not name.startswith("window_"))
    names = [*keys, *state.value_schema.names]
    rows = [[plain(row[name]) for name in names] for row in table.to_pylist()]
    if case.kind == "global":
        return [_own_values(case, row[1:]) for row in rows]
    if case.kind.startswith("distinct") and not stage:
        return [row[: len(keys)] for row in rows]
    return [row[: len(keys)] + _own_values(case, row[len(keys) :]) for row in rows]


def _own_values(case: Case, cells: Cells) -> Cells:
    if not case.aggregates:
        return cells
    values, at = [], 0
    for kept in _kept(case):
        if kept.ours is not None:
            values += kept.unify(cells[at : at + kept.ours_width])
        at += kept.ours_width
    return values


# -- cells -------------------------------------------------------------------------------------


def plain(cell: Any) -> Any:
    """A cell of Spark's or Arrow's as JSON: times in UTC, structs by name, lists as multisets."""
    if isinstance(cell, float):
        return cell + 0.0 if math.isfinite(cell) else str(cell)
    if isinstance(cell, Decimal):
        return str(cell)
    if isinstance(cell, datetime):
        return cell.astimezone(UTC).isoformat()
    if isinstance(cell, date):
        return cell.isoformat()
    if isinstance(cell, (bytes, bytearray)):
        return cell.hex()
    if isinstance(cell, Row):
        return {name: plain(part) for name, part in cell.asDict().items()}
    if isinstance(cell, dict):
        return {name: plain(part) for name, part in cell.items()}
    if isinstance(cell, list):
        return sorted(map(plain, cell), key=_order)
    return cell


def in_order(rows: list[Cells]) -> list[Cells]:
    return sorted(rows, key=_order)


def _order(cell: Any) -> str:
    """A sort key under which doubles that differ in their last digits have the same place."""
    return json.dumps(_rounded(cell), sort_keys=True)


def _rounded(cell: Any) -> Any:
    if isinstance(cell, float):
        return float(f"{cell:.8g}")
    if isinstance(cell, list):
        return [_rounded(part) for part in cell]
    return cell


def difference(case: Case, expected: Outcome, found: Outcome) -> str | None:
    """Where two outcomes of a case differ first, in words; None where they agree."""
    for number, (native, own) in enumerate(zip(expected, found, strict=True)):
        start = f"start {number}"
        if len(native["outputs"]) != len(own["outputs"]):
            return f"{start}: {native['outputs']} expected, got {own['outputs']}"
        for batch, (a, b) in enumerate(zip(native["outputs"], own["outputs"], strict=True)):
            if said := row_difference(a, b):
                return f"{start}, output {batch}: {said}"
        for stage, (a, b) in enumerate(zip(native["state"], own["state"], strict=True)):
            if said := row_difference(a, b):
                return f"{start}, state of operator {stage}: {said}"
    return None


def row_difference(expected: list[Cells], found: list[Cells]) -> str | None:
    for a, b in zip(expected, found, strict=False):
        if len(a) != len(b) or not all(map(close, a, b)):
            return f"{a} expected, got {b}"
    if len(expected) != len(found):
        return f"{len(expected)} rows expected, got {len(found)}: {expected} and {found}"
    return None


def close(expected: Any, found: Any) -> bool:
    """Whether two cells agree: doubles to 1e-9, all else exactly."""
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(close, expected, found))
    if isinstance(expected, float) and isinstance(found, float):
        return math.isclose(expected, found, rel_tol=1e-9, abs_tol=1e-9)
    return type(expected) is type(found) and expected == found
